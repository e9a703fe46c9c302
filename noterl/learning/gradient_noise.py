"""How much the gradients of an agent's losses differ between batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from noterl import backends
from noterl.backends import keras
from noterl.backends.common import CallOptions, NonFiniteError
from noterl.hyperparameters import discount_factor
from noterl.learning.learner import Learner
from noterl.learning.rollout_learner import RolloutLearner
from noterl.learning.sequence_learner import SequenceLearner
from noterl.learning.update import add_random_numbers
from noterl.random import Generators
from noterl.replay import Sample
from noterl.types import Batch, map_arrays


class Spread(NamedTuple):
    """Statistics of K gradients g_k with D elements each, on batches of one size; G is the mean of the g_k.

    Attributes:
        samples: K.
        size: D.
        squares: the sum of |g_k - G|^2 over k.
        mean_square: |G|^2.
        batch_size: B, transitions of each batch.
        population: N, the transitions of which each batch holds B different ones; infinite for independent samples.
        length: L, the transitions of a sequence, which are sampled together; 1 without sequences.
    """

    samples: int
    size: int
    squares: float
    mean_square: float
    batch_size: int
    population: float = math.inf
    length: int = 1

    @property
    def variance(self) -> float:
        """The mean over samples and coordinates of (g_kj - G_j)^2."""
        return self.squares / (self.samples * self.size)

    @property
    def correction(self) -> float:
        """The factor (N - B) / (N - L), by which the variance of a mean is lower if no transition is sampled twice."""
        if math.isinf(self.population):
            return 1.0
        return (self.population - self.batch_size) / (self.population - self.length)

    @property
    def transition_variance(self) -> float:
        """`variance` for independent samples, times B, which does not depend on the size of the batches."""
        return self.batch_size * self.variance / self.correction

    def signal_and_noise(self) -> tuple[float, float]:
        """Return unbiased estimates of |E g|^2 and of the trace of the covariance of one transition's gradient.

        McCandlish et al. (2018), appendix A.1, with batches of B (the mean of |g_k|^2) and of K B (|G|^2). The trace is
        divided by `correction`, which leaves the estimate of |E g|^2 unchanged.
        """
        small = self.mean_square + self.squares / self.samples
        large_size = self.samples * self.batch_size
        signal = (large_size * self.mean_square - self.batch_size * small) / (large_size - self.batch_size)
        noise = (small - self.mean_square) / (1.0 / self.batch_size - 1.0 / large_size)
        return signal, noise / self.correction


class GradientNoise:
    """Measures the spread of an agent's gradients over batches that are sampled as for the agent's updates.

    A measurement does not change the agent. If an update has several optimizers, the gradients of all optimizers
    are included, and no gradient is applied in between. If an agent learns from rollouts without a replay memory, the
    batches are minibatches of the last rollout, of at most half of this rollout. The weights are then the weights after
    the updates on this rollout.

    Args:
        learner: the agent's learner, which is built.
        samples: the number of batches, K.

    Raises:
        ValueError: if a rollout is a single transition or sequence, so that there are no minibatches to compare.

    Attributes:
        generator: samples the batches. Seeded by the agent's seed, but separate from the agent's generators.
    """

    def __init__(self, learner: Learner, samples: int) -> None:
        self._learner = learner
        self._samples = samples
        self._length = 1
        self._population: float = math.inf
        if isinstance(learner, RolloutLearner) and learner.replay is None:
            self._length = learner.sequence_length
            self._population = learner.num_rows
        if self._population < 2 * self._length:
            raise ValueError(
                f"gradient noise compares minibatches, but a rollout of {type(learner.algorithm).__name__} has "
                f"{self._population} transitions: rollout_steps times num_envs must be at least {2 * self._length}"
            )
        self.generator: np.random.Generator = Generators(learner.algorithm.generators.seed)("gradient_noise")
        self._spread: Callable[[Batch], Any] = compile_measurement(learner, partial(_spread, learner), "noise")

    def __call__(self) -> Spread | None:
        """Return the spread; None if there are no data at this step.

        If a loss is not finite, the result is None on torch. On TensorFlow and JAX the spread holds NaN or infinity.
        """
        batch = noise_batch(self._learner, self._samples, self.generator)
        if batch is None:
            return None
        try:
            squares, mean_square, size = self._spread(batch)
        except NonFiniteError:
            return None
        numbers = int(size), float(squares), float(mean_square)
        # Rewards have the shape [K, B, ...], where B counts sequences of rollouts, or [K, T, N] of `SequenceLearner`.
        count = math.prod(batch.reward.shape[1 : self._learner.batch_axis + 2])
        return Spread(self._samples, *numbers, count * self._length, self._population, self._length)


def compile_measurement(
    learner: Learner, function: Callable[[Batch], Any], name: str, *, training: bool = True
) -> Callable[[Batch], Any]:
    """Return a compiled function of a batch that computes gradients; traces are counted under this name.

    With `training`, modules of torch keep their mode; otherwise they are in evaluation mode.
    """
    algorithm = learner.algorithm
    options: CallOptions = {
        **learner.updater.options(name),
        "acting": False,
        "training": training,
        # Not from the agent's generator, because a measurement must not change later updates.
        "torch_seed": lambda advance: algorithm.updates,
    }
    return algorithm._reads.renewed(
        lambda: backends.current().compile_call(learner.updater.traced(function), learner.variables, **options)
    )


def noise_batch(learner: Any, samples: int, generator: np.random.Generator) -> Batch | None:
    """Return batches `[K, B, ...]` that are sampled like the batches of updates; None if there are no data yet.

    Neither the agent's generators nor the memory change.

    Args:
        learner: the agent's learner, which is built.
        samples: K.
        generator: of the random choices, instead of the agent's generators.
    """
    if isinstance(learner, RolloutLearner) and learner.replay is None:
        return _of_rollout(learner, samples, generator)
    algorithm = learner.algorithm
    sample = _sample(learner, samples, generator)
    if sample is None:
        return None
    sample.gamma = discount_factor(algorithm)
    return add_random_numbers(algorithm, learner.gather(sample), samples, lambda name: generator)


def _sample(learner: Any, samples: int, generator: np.random.Generator) -> Sample | None:
    """Sample the memory; None until `learning_starts`, or while the memory holds less than a batch."""
    replay = learner.replay if learner.rollout is not None else learner.memory
    size = learner.batch_size
    if isinstance(learner, SequenceLearner):
        if not size or not replay.num_sampleable(1):
            return None
        return learner.sequences.sample(samples, learner.rollout.num_envs, generator=generator)
    # A data set is complete from the start.
    is_own = learner.rollout is None and replay is learner.replay
    too_early = is_own and learner.algorithm.steps < learner.schedule.learning_starts
    if too_early or not size or replay.num_sampleable(size) < size:
        return None
    return replay.sample(samples, size, generator=generator)


def _of_rollout(learner: RolloutLearner, samples: int, generator: np.random.Generator) -> Batch | None:
    """Return minibatches of the last rollout; None unless the agent has learned from this rollout at this step.

    The minibatches hold at most half of the rollout, because batches of the whole rollout would all be equal.
    """
    if learner.prepared_rows is None or not learner.rollout.is_full:
        return None
    fetch = backends.current().fetch
    count = learner.num_rows // learner.sequence_length
    size = min(learner.share // learner.sequence_length, count // 2)
    indices = np.stack([generator.permutation(count)[:size] for _ in range(samples)])
    return map_arrays(lambda array: fetch(array)[indices], learner.prepared_rows)


class Recorder:
    """Stands in for an optimizer in `minimize`: appends the gradients with the variables, and applies nothing."""

    def __init__(self, pairs: list[tuple[Any, Any]]) -> None:
        self._pairs = pairs

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Store gradients with variables; skip the None that stands for the gradient of an unused variable."""
        self._pairs += [pair for pair in zip(gradients, variables, strict=True) if pair[0] is not None]


def gradients_of(learner: Learner, batch: Batch) -> list[Any]:
    """Return the gradients of the last update of a period on tensors `[B, ...]`, in the order of `minimize` calls."""
    pairs: list[tuple[Any, Any]] = []
    learner.updater.record(batch, dict.fromkeys(learner.optimizers, Recorder(pairs)))
    return [gradient for gradient, _ in pairs]


def _spread(learner: Learner, batches: Batch) -> tuple[Any, Any, int]:
    """Return `squares`, `mean_square` and `size` of `Spread` for batches `[K, B, ...]`, by Welford's algorithm."""
    ops = keras.ops
    isolated = backends.current().isolated

    def gradients(k: Any) -> list[Any]:
        batch = keras.tree.map_structure(lambda array: array[k], batches)
        return isolated(lambda: gradients_of(learner, batch), learner.variables)

    def add(k: Any, carry: tuple[list[Any], Any]) -> tuple[list[Any], Any]:
        mean, squares = carry
        new = gradients(k)
        before = [gradient - center for gradient, center in zip(new, mean, strict=True)]
        mean = [center + delta / ops.cast(k + 1, delta.dtype) for center, delta in zip(mean, before, strict=True)]
        after = [gradient - center for gradient, center in zip(new, mean, strict=True)]
        # The difference to the old mean times the difference to the new mean, which rounds less than a sum of squares.
        squares = squares + sum(ops.sum(first * second) for first, second in zip(before, after, strict=True))
        return mean, squares

    mean, squares = ops.fori_loop(1, batches.reward.shape[0], add, (gradients(0), ops.zeros(())))
    size = sum(math.prod(center.shape) for center in mean)
    return squares, sum(ops.sum(center * center) for center in mean), size

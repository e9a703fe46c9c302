"""How much the gradients of an agent's losses differ between batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from noterl import backends
from noterl.backends.common import NonFiniteError
from noterl.hyperparameters import discount_factor
from noterl.learning.schedule import batch_size_of
from noterl.learning.update import DISTRIBUTIONS, trace_counter, updated
from noterl.random import Generators
from noterl.types import Batch

import keras  # isort: skip  (noterl.backends has chosen by now)

if TYPE_CHECKING:
    from noterl.algorithm import Algorithm


class Spread(NamedTuple):
    """Statistics of K gradients g_k with D elements each, on batches of one size; G is their mean.

    Attributes:
        samples: K.
        size: D.
        squares: the sum of |g_k - G|^2 over k.
        mean_square: |G|^2.
    """

    samples: int
    size: int
    squares: float
    mean_square: float

    @property
    def variance(self) -> float:
        """The mean over samples and coordinates of (g_kj - G_j)^2."""
        return self.squares / (self.samples * self.size)

    def signal_and_noise(self, batch_size: int) -> tuple[float, float]:
        """Return unbiased estimates of |E g|^2 and of the trace of the covariance of one transition's gradient.

        McCandlish et al. (2018), appendix A.1, with batches of B (the mean of |g_k|^2) and of K B (|G|^2).
        """
        small = self.mean_square + self.squares / self.samples
        large_size = self.samples * batch_size
        signal = (large_size * self.mean_square - batch_size * small) / (large_size - batch_size)
        noise = (small - self.mean_square) / (1.0 / batch_size - 1.0 / large_size)
        return signal, noise


class GradientNoise:
    """Measures the spread of an agent's gradients over batches that are sampled as for its updates. Changes nothing.

    If an update has several optimizers, the gradients of all of them are included, and none is applied in between. For
    an agent that learns from rollouts without a replay memory, the batches are minibatches of the last rollout, and
    the weights are those after its updates.

    Args:
        agent: a compiled agent, during `fit`.
        samples: the number of batches, K.

    Raises:
        ValueError: if the agent learns from whole rollouts, so that there are no minibatches to compare.

    Attributes:
        generator: samples the batches. It is seeded by the agent's seed but is not one of the agent's generators.
    """

    def __init__(self, agent: Algorithm, samples: int) -> None:
        self._agent, self._samples = agent, samples
        if agent.on_policy is not None and agent.replay is None:
            rows = agent.on_policy.rollout.length * agent.on_policy.rollout.num_envs
            if self.batch_size == rows:
                raise ValueError(
                    f"gradient noise is measured between minibatches, and {type(agent).__name__} learns from whole "
                    f"rollouts of {rows} transitions: compile with a smaller batch_size"
                )
        self.generator = Generators(agent.generators.seed)("gradient_noise")
        self._compiled: Any = None

    @property
    def batch_size(self) -> int:
        """Transitions per batch."""
        return batch_size_of(self._agent)

    @property
    def ready(self) -> bool:
        """Whether there is data at this step. Without a replay memory, only just after the updates on a rollout."""
        agent = self._agent
        return agent.on_policy is None or agent.replay is not None or agent.on_policy.learned is not None

    def __call__(self) -> Spread | None:
        """Return the spread, or None before the first updates or if a loss is not finite."""
        agent, batch_size = self._agent, self.batch_size
        if not self.ready or agent.steps < agent.schedule.learning_starts:
            return None
        if agent.replay is not None and agent.replay.count_drawable(batch_size) < batch_size:
            return None
        if self._compiled is None:
            self._compiled = backends.current().compile_call(
                partial(_spread, agent),
                agent.all_variables,
                jit_compile=agent.jit_compile,
                on_trace=trace_counter(agent, "noise"),
                torch_seed=lambda advance: agent.updates,
            )
        try:
            squares, mean_square, size = self._compiled(self._batch(batch_size))
        except NonFiniteError:
            return None
        return Spread(self._samples, int(size), float(squares), float(mean_square))

    def _batch(self, batch_size: int) -> Batch:
        agent, samples, generator = self._agent, self._samples, self.generator
        if agent.replay is None:
            return self._minibatches(batch_size)
        drawn = agent.replay.draw(samples, batch_size, generator=generator)
        drawn.gamma = discount_factor(agent)
        batch = agent.gather(drawn)
        extra = {
            name: DISTRIBUTIONS[distribution](generator, (samples, batch_size, *shape))
            for name, (shape, distribution) in agent.random_spec.items()
        }
        return batch._replace(extra={**batch.extra, **extra})

    def _minibatches(self, batch_size: int) -> Batch:
        """Return minibatches of the last rollout, each without repeated rows."""
        learned, fetch = self._agent.on_policy.learned, backends.current().fetch  # type: ignore[union-attr]
        count = len(fetch(learned.reward))
        rows = np.stack([self.generator.permutation(count)[:batch_size] for _ in range(self._samples)])

        def taken(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: taken(part) for name, part in value.items()}
            return fetch(value)[rows]

        return Batch(*map(taken, learned))


class Recorder:
    """Stands in for an optimizer: stores the gradients and does not apply them."""

    def __init__(self) -> None:
        self.gradients: list[Any] = []

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Store the gradients; None of a variable that the loss does not depend on is skipped."""
        self.gradients += [gradient for gradient in gradients if gradient is not None]


def gradients_of(agent: Algorithm, batch: Batch) -> list[Any]:
    """Return the gradients of one update on tensors `[B, ...]`, in the order in which `update` takes them."""
    recorder, optimizers = Recorder(), agent.optimizers
    agent.optimizers = dict.fromkeys(optimizers, recorder)
    try:
        updated(agent, batch, agent.update_period - 1)
    finally:
        agent.optimizers = optimizers
    return recorder.gradients


def _spread(agent: Algorithm, batches: Batch) -> tuple[Any, Any, int]:
    """Return `squares`, `mean_square` and `size` of `Spread` for batches `[K, B, ...]`, by Welford's algorithm."""
    ops, isolated = keras.ops, backends.current().isolated

    def gradients(k: Any) -> list[Any]:
        batch = keras.tree.map_structure(lambda array: array[k], batches)
        return isolated(lambda: gradients_of(agent, batch), agent.all_variables)

    def add(k: Any, carry: tuple[list[Any], Any]) -> tuple[list[Any], Any]:
        mean, squares = carry
        found = gradients(k)
        before = [gradient - center for gradient, center in zip(found, mean, strict=True)]
        mean = [center + delta / ops.cast(k + 1, delta.dtype) for center, delta in zip(mean, before, strict=True)]
        after = [gradient - center for gradient, center in zip(found, mean, strict=True)]
        squares = squares + sum(ops.sum(one * other) for one, other in zip(before, after, strict=True))
        return mean, squares

    mean, squares = ops.fori_loop(1, batches.reward.shape[0], add, (gradients(0), ops.zeros(())))
    size = sum(math.prod(center.shape) for center in mean)
    return squares, sum(ops.sum(center * center) for center in mean), size

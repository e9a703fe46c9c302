"""How much the gradients of an agent's losses differ between batches.

Owns: drawing batches for it, with generators of its own, and the estimates. Taking the gradients is each backend's part
(`backends/*_noise.py`): one compiled call, in which an optimizer that only looks stands in for each of the agent's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from noterl import backends
from noterl.backends.common import NonFiniteError
from noterl.hyperparameters import discount_factor
from noterl.learning.schedule import batch_size_of
from noterl.learning.update import DISTRIBUTIONS, updated
from noterl.random import Generators
from noterl.types import Batch

if TYPE_CHECKING:
    from noterl.algorithm import Algorithm


class Spread(NamedTuple):
    """What K gradients of D numbers each, taken on batches of one size, say.

    Attributes:
        samples: K.
        size: D.
        squares: the sum over them of |g_k - G|^2, where G is their mean.
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
    """Measures the spread of an agent's gradients over batches drawn as its updates draw them; changes nothing.

    Of an update with several optimizers the gradients of all count, none of them being applied in between. An agent
    that learns from rollouts and remembers none is measured on minibatches of the rollout it has just learned from, at
    the weights it has learned.

    Args:
        agent: compiled, in a fit.
        samples: K, how many batches.

    Raises:
        ValueError: if the agent learns from whole rollouts, which has no minibatches to compare.

    Attributes:
        generator: what draws batches; it is no generator of the agent, and grows from the agent's seed.
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
        """Transitions of a batch."""
        return batch_size_of(self._agent)

    @property
    def ready(self) -> bool:
        """Whether there is something to measure at this step: of rollouts that are forgotten, the one just learned."""
        agent = self._agent
        return agent.on_policy is None or agent.replay is not None or agent.on_policy.learned is not None

    def __call__(self) -> Spread | None:
        """Return the spread; None before training has something to learn from, or if a loss is not finite."""
        agent, batch_size = self._agent, self.batch_size
        if not self.ready or agent.steps < agent.schedule.learning_starts:
            return None
        if agent.replay is not None and agent.replay.num_sampleable(batch_size) < batch_size:
            return None
        if self._compiled is None:
            self._compiled = backends.noise_programs().compile_spread(agent)
        try:
            squares, mean_square, size = self._compiled(self._batch(batch_size))
        except NonFiniteError:
            return None
        return Spread(self._samples, size, squares, mean_square)

    def _batch(self, batch_size: int) -> Batch:
        agent, samples, generator = self._agent, self._samples, self.generator
        if agent.replay is None:
            return self._minibatches(batch_size)
        drawn = agent.replay.sample(samples, batch_size, generator=generator)
        drawn.gamma = discount_factor(agent)
        batch = agent.gather(drawn)
        extra = {
            name: DISTRIBUTIONS[distribution](generator, (samples, batch_size, *shape))
            for name, (shape, distribution) in agent.random_spec.items()
        }
        return batch._replace(extra={**batch.extra, **extra})

    def _minibatches(self, batch_size: int) -> Batch:
        """Return minibatches of the rollout that was learned, each without a row twice."""
        learned, fetch = self._agent.on_policy.learned, backends.current().fetch  # type: ignore[union-attr]
        count = len(fetch(learned.reward))
        rows = np.stack([self.generator.permutation(count)[:batch_size] for _ in range(self._samples)])

        def taken(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: taken(part) for name, part in value.items()}
            return fetch(value)[rows]

        return Batch(*map(taken, learned))


class Recorder:
    """An optimizer that notes the gradients it is given, and applies none."""

    def __init__(self) -> None:
        self.gradients: list[Any] = []

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Note gradients; a variable that a loss does not depend on has none."""
        self.gradients += [gradient for gradient in gradients if gradient is not None]


def gradients_of(agent: Algorithm, batch: Batch) -> list[Any]:
    """Return the gradients of one update on tensors `[B, ...]`, in the order in which they are taken."""
    recorder, optimizers = Recorder(), agent.optimizers
    agent.optimizers = dict.fromkeys(optimizers, recorder)
    try:
        updated(agent, batch, agent.update_period - 1)
    finally:
        agent.optimizers = optimizers
    return recorder.gradients

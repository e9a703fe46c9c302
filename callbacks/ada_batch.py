"""Adapting to the noise of gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from noterl.callback import Budget
from noterl.types import Logs
from noterl.utils.checks import check_int, check_number, check_word

from .adapting import Adapting

if TYPE_CHECKING:
    from noterl.agent import Agent

SCALES = ("variance", "simple")


class AdaBatch(Adapting):
    """Move what it is given by how much gradients differ between batches.

    At each look `num_samples` batches are drawn as training draws them, and their gradients compared, in one call that
    changes nothing, compiled as updates are. With K gradients g_k of D numbers each and their mean G:

    - `scale="variance"` measures what Note_rl does, mean over k and j of (g_kj - G_j)^2. It depends on the size of the
      gradients and of the network, so its target has to be found for each task.
    - `scale="simple"` measures the noise scale of McCandlish et al. (2018), "An empirical model of large-batch
      training", B_simple = tr(S) / |G|^2, where S is the covariance of one transition's gradient: the batch at which
      noise and signal weigh the same. Both parts are estimated without bias (their appendix A.1) from batches of B and
      of K * B, and smoothed apart. It is told per transition of a batch, B_simple / B: above 1 a larger batch would
      still pay. A `batch=Scale()` then follows B_simple itself.

    The measure is smoothed, `ema = smooth * new + (1 - smooth) * ema`, and its ratio to `target_noise` moves the rest,
    by the table of `Adapting`.

    An agent that learns from rollouts and forgets them is measured on minibatches of the rollout it has just learned
    from: a look that falls due in between waits for that.

    Args:
        num_samples: batches at each look, at least 2.
        target_noise: what the measure is to be. The default is Note_rl's, for its variance; of "simple" 1 is a batch as
            large as its noise. None for what the first look finds.
        smooth: weight of the new value in the moving average, above 0 and up to 1 (no smoothing).
        scale: "variance" or "simple".
        every: how often it looks.
        unit: of `every`: "episodes", "steps" (of the environment), "updates" or "seconds".
        **adjusted: by name, a `Rate` or `Scale` for each; see `Adapting` for the names.

    Raises:
        ValueError: if an argument is not what it may be; as training begins, if the agent has no such number, or learns
            from whole rollouts at once.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import AdaBatch, Scale
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> agent.compile(batch_size=16, learning_starts=50)
    >>> adapt = AdaBatch(4, target_noise=1.0, scale="simple", batch=Scale(max=64))
    >>> history = agent.fit(steps=300, callbacks=[adapt], verbose=0)
    >>> set(history.history["batch"]) <= {8, 16, 32, 48, 64}
    True
    """

    measure, follows = "gradient_noise", "noise"

    def __init__(
        self,
        num_samples: int,
        target_noise: float | None = 1e-3,
        smooth: float = 0.2,
        *,
        scale: str = "variance",
        every: float = 1,
        unit: str = "episodes",
        **adjusted: Any,
    ) -> None:
        super().__init__(smooth, every, unit, adjusted)
        self.num_samples = check_int("num_samples", num_samples, least=2)  # one gradient differs from none
        self.scale = check_word("scale", scale, SCALES)
        self.target_noise: float | None = None
        if target_noise is not None:
            self.target_noise = check_number("target_noise", target_noise, low=0, above=True)
        self._baseline: float | None = None
        self._parts: list[float] | None = None  # smoothed |G|^2 and tr(S)
        self._noise: Any = None
        self._drawn: dict[str, Any] | None = None  # where the generator was

    def before_fit(self, agent: Agent, budget: Budget) -> None:
        """Listen between steps to an agent that forgets its rollouts: they seldom end where episodes do."""
        if agent.on_policy is not None and agent.replay is None:
            self.between_steps = self._look  # type: ignore[method-assign]

    def begin(self, logs: Logs) -> None:
        """Find out whether there are batches to compare, and everything can be adjusted."""
        from noterl.learning.gradient_noise import GradientNoise

        self._noise = GradientNoise(self.agent, self.num_samples)
        if self._drawn is not None:
            self._noise.generator.bit_generator.state = self._drawn
        super().begin(logs)

    def _look(self) -> None:
        """Measure and adjust, if it is time and there is something to measure."""
        if self._noise.ready:
            super()._look()

    def measured(self) -> float | None:
        """Compare gradients, once there is something to draw and training has begun."""
        found = self._noise()
        self._drawn = self._noise.generator.bit_generator.state
        if found is None:
            return None
        if self.scale == "variance":
            return float(found.variance)
        parts = list(found.signal_and_noise(self._noise.batch_size))
        if not all(map(math.isfinite, parts)):
            return None
        olds = self._parts or parts
        signal, noise = self._parts = [super(AdaBatch, self).smoothed(*pair) for pair in zip(parts, olds, strict=True)]
        # An estimate of a small signal may fall below 0, and says nothing then.
        return max(noise, 0.0) / signal / self._noise.batch_size if signal > 0 else None

    def smoothed(self, new: float, old: float | None) -> float:
        """Return the moving average that follows; of the noise scale both parts are smoothed already."""
        return new if self.scale == "simple" else super().smoothed(new, old)

    def target(self) -> float:
        """Return the target, or the first measure."""
        if self.target_noise is not None:
            return self.target_noise
        if self._baseline is None:
            self._baseline = self.ema
        return self._baseline or 0.0

    def get_state(self) -> dict[str, Any]:
        """Return what all have, the baseline and the smoothed parts."""
        parts = None if self._parts is None else list(self._parts)
        return {**super().get_state(), "baseline": self._baseline, "parts": parts, "drawn": self._drawn}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned."""
        super().set_state(state)
        self._baseline, self._parts, self._drawn = state["baseline"], state["parts"], state["drawn"]

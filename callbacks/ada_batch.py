"""A callback that adapts to gradient noise."""

from __future__ import annotations

import math
from typing import Any

from noterl.callback import AgentView, Budget
from noterl.types import Logs
from noterl.utils.checks import check_int, check_word, positive

from .support.adaptive_callback import AdaptiveCallback

# 1e-3 is the target of Note_rl. With "simple", 1 means a batch as large as the noise scale.
DEFAULT_TARGETS = {"variance": 1e-3, "simple": 1.0}


class AdaBatch(AdaptiveCallback):
    """Adapt batch size, learning rate and other tunables to how much gradients differ between batches.

    Each measurement samples K = `num_samples` batches as training does, and compares the gradients in one compiled call
    that does not change the agent. With the K gradients g_k of D numbers each and the mean G of all:

    - `scale="variance"` measures the mean over k and j of (g_kj - G_j)^2, as Note_rl does. The variance depends on the
      size of the gradients and of the network, so the target must be found for each task.
    - `scale="simple"` measures the noise scale of McCandlish et al. (2018), "An empirical model of large-batch
      training", B_simple = tr(S) / |G|^2, where S is the covariance of one transition's gradient. In a batch of this
      size, noise and signal are equal. Both parts are estimated without bias (their appendix A.1) from batches of B
      and of K * B transitions, where B is the batch size. The logged value is B_simple / B: above 1, a larger batch
      would still help. `batch=Scale()` then follows B_simple itself.

    What does not depend on B is smoothed, `new = smooth * measured + (1 - smooth) * old`: B times the variance, or
    tr(S) and |G|^2 separately. `ema` is the noise that follows for the current batch size. The ratio of `ema` to
    `target_noise` changes the tunables as the table in `AdaptiveCallback` shows. The logs hold the last variance,
    for the current batch size, but with "simple" the ratio of the smoothed parts, because the ratio of one
    measurement varies too much.

    For an agent that learns from rollouts without a replay memory, the batches are minibatches of the last rollout, of
    at most half of the rollout. The minibatches hold no transition twice, so the variance is divided by
    (N - B) / (N - 1), where N is the number of transitions in the rollout. A measurement that is due earlier waits
    until the updates on a rollout are complete.

    Args:
        num_samples: number of batches in each measurement, at least 2.
        target_noise: target of `ema`; None uses the first measurement. The default "auto" is Note_rl's 1e-3 for the
            variance, and 1 for "simple": a batch as large as the noise scale.
        smooth: weight of the new value in the moving average, above 0 and at most 1 (no smoothing).
        scale: "variance" or "simple".
        every: number of `unit` between measurements.
        unit: "episodes", "steps" (of the environment), "updates" or "seconds".
        **adjusted: a `Rate` or `Scale` for each tunable, by name; `AdaptiveCallback` lists the names.

    Raises:
        ValueError: if an argument is not one of the allowed values; when training begins, if the agent has no such
            tunable, or the rollouts are single transitions.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import AdaBatch, Scale
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> agent.compile(batch_size=16, learning_starts=50)
    >>> adapt = AdaBatch(4, scale="simple", batch=Scale(max=64))
    >>> history = agent.fit(steps=300, callbacks=[adapt], verbose=0)
    >>> set(history.history["batch"]) <= {8, 16, 32, 48, 64}
    True
    """

    saved = (*AdaptiveCallback.saved, "_baseline", "_parts", "_generator")
    measure: str = "gradient_noise"
    follows: str = "noise"

    def __init__(
        self,
        num_samples: int,
        target_noise: float | str | None = "auto",
        smooth: float = 0.2,
        *,
        scale: str = "variance",
        every: float = 1,
        unit: str = "episodes",
        **adjusted: Any,
    ) -> None:
        super().__init__(smooth, every, unit, adjusted)
        self.num_samples: int = check_int("num_samples", num_samples, least=2)  # a single gradient has no spread
        self.scale: str = check_word("scale", scale, tuple(DEFAULT_TARGETS))
        if isinstance(target_noise, str) and target_noise == "auto":
            target_noise = DEFAULT_TARGETS[scale]
        self.target_noise: Any = None if target_noise is None else positive("target_noise", target_noise)
        self._baseline: float | None = None
        self._parts: list[float] | None = None  # smoothed: B times the variance, or |G|^2 and tr(S)
        self._noise: Any = None
        self._waits = False  # whether a due measurement waits for a complete rollout
        self._generator: dict[str, Any] | None = None  # the state of the generator that samples batches

    def before_fit(self, agent: AgentView, budget: Budget) -> None:
        """Keep rollouts on the host, because complete rollouts are measured there."""
        self.needs_host: bool = agent.memory == "rollout" and agent.replay is None
        self._waits = self.needs_host

    def on_train_begin(self, logs: Logs) -> None:
        """Check that there are batches to compare and that the agent has every tunable."""
        self._noise = self.agent.gradient_noise(self.num_samples)
        # The agent makes a new generator for each fit, so that of a restored run goes on here.
        if self._generator is not None:
            self._noise.generator.bit_generator.state = self._generator
        super().on_train_begin(logs)

    def on_due(self, logs: Logs) -> bool | None:
        """Compare gradients, adapt and log; wait if there is no complete rollout at this step."""
        spread = self._noise()
        # The base class calls again at the next step as long as the result is False.
        if spread is None and self._waits:
            return False
        self._generator = self._noise.generator.bit_generator.state
        self._adapt(None if spread is None else self._noise_of(spread))
        self._log(logs)
        return None

    def _noise_of(self, spread: Any) -> float | None:
        """Smooth the parts of a measurement, and return the noise to log; None if there is none to adapt to."""
        batch = self.agent.update_batch_size
        estimates = [spread.transition_variance] if self.scale == "variance" else list(spread.signal_and_noise())
        if not all(map(math.isfinite, estimates)):
            return None
        # Not this class's `_average`, which returns the noise of parts that are smoothed already.
        previous = self._parts or estimates
        self._parts = [super(AdaBatch, self)._average(*pair) for pair in zip(estimates, previous, strict=True)]
        if self.scale == "variance":
            return float(estimates[0]) / batch
        signal, noise = self._parts
        # The unbiased estimate of a small signal may be 0 or below; B_simple is then not defined.
        return max(noise, 0.0) / signal / batch if signal > 0 else None

    def _average(self, new: float, old: float | None) -> float:
        """Return the noise of the smoothed parts, for the current batch size."""
        if self.scale == "simple" or self._parts is None:
            return new
        return self._parts[0] / self.agent.update_batch_size

    def _target(self) -> float:
        """Return the target; without a target, the first measurement, which is stored for all later calls."""
        if self.target_noise is not None:
            return self.target_noise
        if self._baseline is None:
            self._baseline = self.ema
        return self._baseline or 0.0

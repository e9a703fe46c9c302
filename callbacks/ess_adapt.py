"""A callback that adapts to the effective sample size of the memory."""

from __future__ import annotations

from typing import Any

from noterl.types import Logs
from noterl.utils.checks import check_number

from .support.adaptive_callback import AdaptiveCallback
from .window import has_priorities, warn_without_priorities


class ESSAdapt(AdaptiveCallback):
    """Adapt batch size, learning rate and other tunables to the effective sample size of a prioritized memory.

    The effective sample size is ESS = 1 / sum of p^2, where p are the sampling probabilities: the number of equally
    weighted transitions whose mean has the same variance. ESS is smoothed: `ema = smooth * ESS + (1 - smooth) * ema`.
    The ratio of `ema` to `target_ess` changes the tunables as the table in `AdaptiveCallback` shows.

    If `target_ess` is None, ESS divided by the number of transitions is smoothed instead, because ESS itself grows
    while the memory fills. The target is then the first measurement, and is measured again regularly during training.
    Each target holds for as many environment steps as the memory held transitions when the target was measured. Then
    the target is set to the current `ema`, and every tunable is reset to the first value. If only the first target
    held, it would be too high for good, because all priorities are equal when it is measured.

    If the memory has no priorities, ESS is the number of transitions and does not depend on what was learned. A warning
    then says so when training begins, and every tunable stays as before.

    Args:
        target_ess: target of the smoothed ESS, in transitions; None to compare with the first measurement.
        smooth: weight of the new value in the moving average, above 0 and at most 1 (no smoothing).
        every: number of `unit` between measurements.
        unit: "episodes", "steps" (of the environment), "updates" or "seconds".
        **adjusted: a `Rate` or `Scale` for each tunable, by name; `AdaptiveCallback` lists the names.

    Raises:
        ValueError: if an argument is not one of the allowed values, or there is nothing to adapt; when training begins,
            if the agent has no such tunable, or no replay memory.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import ESSAdapt, Rate, Scale
    >>> from noterl.replay import Prioritized
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> agent.compile(replay=noterl.Replay(1000, sampler=Prioritized()), batch_size=16, learning_starts=50)
    >>> adapt = ESSAdapt(target_ess=400, batch=Scale(max=64), lr=Rate(1e-4, 1e-4, 1e-2))
    >>> history = agent.fit(steps=300, callbacks=[adapt], verbose=0)
    >>> set(history.history["batch"]) <= {8, 16, 32, 48, 64}, min(history.history["lr"]) >= 1e-4
    (True, True)
    """

    saved = (*AdaptiveCallback.saved, "_baseline", "_until")
    measure: str = "ess"
    follows: str = "ess"
    needs_memory = True

    def __init__(
        self,
        target_ess: float | None = None,
        smooth: float = 0.2,
        *,
        every: float = 1,
        unit: str = "episodes",
        **adjusted: Any,
    ) -> None:
        super().__init__(smooth, every, unit, adjusted)
        self.target_ess: Any = None if target_ess is None else check_number("target_ess", target_ess, low=0, above=True)
        if not self._adjusted:
            raise ValueError("ESSAdapt needs something to adapt, such as lr=Rate(1e-4, 1e-4, 1e-2)")
        self._baseline: float | None = None  # smoothed ESS per stored transition
        self._until = 0  # environment steps at which the baseline is next measured; moves on with each measurement

    def on_train_begin(self, logs: Logs) -> None:
        """Check that the agent has every tunable; warn if the memory has no priorities."""
        self._adapts = has_priorities(self.agent.replay)
        super().on_train_begin(logs)
        warn_without_priorities(self.agent, "ESSAdapt")

    def _adjust(self, name: str, ratio: float) -> None:
        # Without priorities, the ratio is the number of transitions / `target_ess`: it says nothing about the samples.
        if self._adapts:
            super()._adjust(name, ratio)

    def _write(self, name: str) -> None:
        if self._adapts:  # otherwise a resumed run would overwrite what other callbacks have set
            super()._write(name)

    def _measure(self) -> float | None:
        """Return ESS; None if the memory holds less than a batch."""
        if self.agent.replay.num_sampleable() < self.agent.update_batch_size:
            return None
        return float(self.agent.replay.effective_sample_size())

    def _average(self, new: float, old: float | None) -> float:
        """Return the next moving average: of ESS, or of ESS per transition if `target_ess` is None."""
        return super()._average(new if self.target_ess is not None else new / len(self.agent.replay), old)

    def _target(self) -> float:
        """Return `target_ess`, or the baseline. If the baseline is due, measure it and reset every tunable.

        The first measurement of the baseline resets nothing.
        """
        if self.target_ess is not None:
            return self.target_ess
        agent = self.agent
        # By then, a full memory holds other transitions, and a filling memory has doubled.
        if self._baseline is None or agent.steps >= self._until:
            if self._baseline is not None:
                self._reset()
            self._baseline = self.ema or 0.0
            self._until = agent.steps + len(agent.replay)
        return self._baseline

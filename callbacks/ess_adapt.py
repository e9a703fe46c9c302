"""Adapting to the effective sample size of the memory."""

from __future__ import annotations

from typing import Any

from noterl.learning.schedule import batch_size_of
from noterl.types import Logs
from noterl.utils.checks import check_number

from .adapting import Adapting


class ESSAdapt(Adapting):
    """Move what it is given by the effective sample size of a prioritized memory, ESS = 1 / sum of p^2.

    ESS is the number of transitions that, drawn uniformly, would vary as those that the memory draws. It is smoothed,
    `ema = smooth * ESS + (1 - smooth) * ema`, and its ratio to `target_ess` moves the rest, by the table of `Adapting`.

    Without a `target_ess` it is compared with itself: with the smoothed ESS of the first look, both per transition in
    the memory, since a memory that fills has a growing one. That baseline is measured anew, and everything adjusted set
    back to its first value, when the memory has been filled with other transitions once.

    Args:
        target_ess: transitions; None to compare with what it was at first.
        smooth: weight of the new value in the moving average, above 0 and up to 1 (no smoothing).
        every: how often it looks.
        unit: of `every`: "episodes", "steps" (of the environment), "updates" or "seconds".
        **adjusted: by name, a `Rate` or `Scale` for each; see `Adapting` for the names.

    Raises:
        ValueError: if an argument is not what it may be; as training begins, if the agent has no such number, or no
            replay memory.

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

    measure, follows = "ess", "ess"

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
        self.target_ess = None if target_ess is None else check_number("target_ess", target_ess, low=0, above=True)
        self._baseline: float | None = None  # per transition
        self._measured_at = 0

    def begin(self, logs: Logs) -> None:
        """Find out whether there is a memory, and everything can be adjusted."""
        if not hasattr(self.agent.replay, "effective_sample_size"):
            raise ValueError(f"ESSAdapt looks at a replay memory, which {type(self.agent).__name__} has not")
        super().begin(logs)

    def measured(self) -> float | None:
        """Return the ESS, once there is a batch."""
        if len(self.agent.replay) < batch_size_of(self.agent):
            return None
        return float(self.agent.replay.effective_sample_size())

    def target(self) -> float:
        """Return the target, or what the baseline is for as many transitions as there are."""
        if self.target_ess is not None:
            return self.target_ess
        agent = self.agent
        if self._baseline is None or agent.steps - self._measured_at >= agent.replay.capacity:
            if self._baseline is not None:
                self._reset()
            self._baseline, self._measured_at = (self.ema or 0.0) / len(agent.replay), agent.steps
        return self._baseline * len(agent.replay)

    def get_state(self) -> dict[str, Any]:
        """Return what all have, and the baseline."""
        return {**super().get_state(), "baseline": self._baseline, "measured_at": self._measured_at}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned."""
        super().set_state(state)
        self._baseline, self._measured_at = state["baseline"], state["measured_at"]

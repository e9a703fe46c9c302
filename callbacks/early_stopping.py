"""Stopping when training is good enough, or gets no better."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from noterl.callback import Callback
from noterl.types import Logs


class EarlyStopping(Callback):
    """Stop when a moving mean reaches a criterion, or has not improved for a while.

    Both look at the mean of `monitor` over the last `trial_count` finished episodes, once there are so many. What it
    remembers outlives a `fit` and a save: the next `fit` with the same object goes on where it was.

    Args:
        trial_count: number of episodes in the mean.
        criterion: stop when the mean reaches it; None for never.
        monitor: the quantity in an episode's logs.
        patience: stop when the mean has not been better than its best for so many episodes; None for never.
        mode: "max" if more is better, "min" if less.

    Raises:
        ValueError: if an argument is not what it may be, or neither `criterion` nor `patience` is given; at an
            episode's end if its logs have no `monitor`.

    Example:
    >>> from noterl.callbacks import EarlyStopping
    >>> import noterl
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> history = agent.fit(callbacks=[EarlyStopping(trial_count=2, criterion=5)], verbose=0)
    >>> len(history), history.stop_reason
    (2, 'reward reached 5')
    """

    stops_training = True

    def __init__(
        self,
        trial_count: int,
        criterion: float | None = None,
        *,
        monitor: str = "reward",
        patience: int | None = None,
        mode: str = "max",
    ) -> None:
        for name, value in (("trial_count", trial_count), ("patience", patience)):
            if value is None and name == "patience":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive int, got {value!r}")
        if criterion is None and patience is None:
            raise ValueError("criterion or patience must be given, or training would never stop")
        if criterion is not None and not isinstance(criterion, int | float):
            raise ValueError(f"criterion must be a number, got {criterion!r}")
        if mode not in ("max", "min"):
            raise ValueError(f"mode must be 'max' or 'min', got {mode!r}")
        self.trial_count, self.criterion, self.monitor, self.patience = trial_count, criterion, monitor, patience
        self.mode = mode
        self._sign = 1 if mode == "max" else -1
        self._recent: deque[float] = deque(maxlen=trial_count)
        self._best: float | None = None
        self._waited = 0

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Look at the moving mean, and stop if it is time."""
        if not logs.get("complete", True):
            return
        if self.monitor not in logs:
            if self.monitor == "loss":  # there is none before the first update
                return
            raise ValueError(
                f"monitor: the episode's logs have no {self.monitor!r}; they have {', '.join(sorted(logs))}"
            )
        self._recent.append(float(logs[self.monitor]))
        if len(self._recent) < self.trial_count:
            return
        mean = math.fsum(self._recent) / self.trial_count
        if self.criterion is not None and self._sign * mean >= self._sign * self.criterion:
            self.agent.stop(f"{self.monitor} reached {self.criterion}")
        if self._best is None or self._sign * mean > self._sign * self._best:
            self._best, self._waited = mean, 0
            return
        self._waited += 1
        if self.patience is not None and self._waited >= self.patience:
            self._waited = 0
            self.agent.stop(f"{self.monitor} has not improved for {self.patience} episodes")

    def get_state(self) -> dict[str, Any]:
        """Return the recent values, the best mean and how long ago it was."""
        return {"recent": list(self._recent), "best": self._best, "waited": self._waited}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned."""
        self._recent = deque(state["recent"], maxlen=self.trial_count)
        self._best, self._waited = state["best"], state["waited"]

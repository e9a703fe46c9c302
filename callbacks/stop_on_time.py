"""Stopping after a time."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from noterl.callback import Callback
from noterl.types import Logs
from noterl.utils.checks import check_number


class StopOnTime(Callback):
    """End training after so many seconds of it, at the step in progress.

    Time between two `fit`s does not count; that of earlier `fit`s and of processes that were resumed does.

    Args:
        seconds: of training.

    Raises:
        ValueError: unless `seconds` is a finite number above 0.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import StopOnTime
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> agent.fit(callbacks=[StopOnTime(0.05)], verbose=0).stop_reason
    'trained for 0.05 seconds'
    """

    stops_training = True

    def __init__(self, seconds: float) -> None:
        self.seconds = check_number("seconds", seconds, low=0, above=True)
        self._spent = 0.0  # up to the last fit's end
        self._began: float | None = None

    def on_train_begin(self, logs: Logs) -> None:
        """Let the clock run."""
        self._began = perf_counter()

    def between_steps(self) -> None:
        """Stop if the time is over."""
        if self._elapsed() >= self.seconds:
            self.agent.stop(f"trained for {self.seconds:g} seconds")

    def on_train_end(self, logs: Logs) -> None:
        """Halt the clock."""
        self._spent, self._began = self._elapsed(), None

    def _elapsed(self) -> float:
        return self._spent if self._began is None else self._spent + perf_counter() - self._began

    def get_state(self) -> dict[str, Any]:
        """Return the seconds trained so far."""
        return {"seconds": self._elapsed()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned."""
        self._spent, self._began = state["seconds"], None

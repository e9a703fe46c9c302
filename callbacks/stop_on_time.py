"""A callback that ends training after a number of seconds."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from noterl.callback import Callback
from noterl.types import Logs
from noterl.utils.checks import check_number


class StopOnTime(Callback):
    """End training after a number of seconds; the step in progress is completed.

    The time of all `fit` calls counts. If the agent was restored, so does the time before the file was saved. Time
    between calls does not count.

    Args:
        seconds: the training time in seconds.

    Raises:
        ValueError: if `seconds` is not a finite number above 0.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import StopOnTime
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> agent.fit(callbacks=[StopOnTime(0.05)], verbose=0).stop_reason
    'trained for 0.05 seconds'
    """

    stops_training = True

    def __init__(self, seconds: float) -> None:
        self.seconds: float = check_number("seconds", seconds, low=0, above=True)
        self._spent = 0.0  # seconds in earlier fits
        self._began: float | None = None

    def on_train_begin(self, logs: Logs) -> None:
        """Start the clock."""
        self._began = perf_counter()

    def on_step_end(self) -> None:
        """End training if the time has passed."""
        if self._elapsed() >= self.seconds:
            self.agent.stop(f"trained for {self.seconds:g} seconds")

    def on_train_end(self, logs: Logs) -> None:
        """Stop the clock."""
        self._spent = self._elapsed()
        self._began = None

    def _elapsed(self) -> float:
        return self._spent if self._began is None else self._spent + perf_counter() - self._began

    def get_state(self) -> dict[str, Any]:
        """Return the training time so far, in seconds."""
        return {"seconds": self._elapsed()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._spent = state["seconds"]
        self._began = None

"""Lines of text about the progress of training: what `fit(verbose=2)` prints."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from time import perf_counter
from typing import Any

from noterl.callback import LOGGER, Callback
from noterl.types import Logs
from noterl.utils.checks import check_positive

# Seconds after which a line is printed even if no episode ends.
INTERVAL = 10.0


class FitCounter(Callback):
    """Base of the callbacks that show the progress of `fit`: keeps counts, and prints a line at the end.

    Args:
        recent: the number of episodes whose mean reward the last line holds.
    """

    order = LOGGER
    takes_epochs = True
    _unit, _count = "episode", "steps"  # of `fit(dataset=, updates=)`, "epoch" and "updates"

    def __init__(self, recent: int) -> None:
        self._recent: deque[float] = deque(maxlen=recent)
        self._finished = 0
        self._first_episode = 0

    def on_train_begin(self, logs: Logs) -> None:
        """Start the counts of this fit."""
        self._recent.clear()
        self._finished = 0
        self._first_step = self.agent.log_step
        self._first_update = self.agent.updates
        is_of_data = self.agent.history is not None and self.agent.history.unit == "epoch"
        self._unit, self._count = ("epoch", "updates") if is_of_data else ("episode", "steps")
        self._first_episode = self.agent.finished_epochs if is_of_data else self.agent.episodes
        self._started = perf_counter()

    def on_train_end(self, logs: Logs) -> None:
        """Print why the fit ended, and the numbers of episodes, steps and updates."""
        seconds = perf_counter() - self._started
        steps = self.agent.log_step - self._first_step
        reason = None if self.agent.history is None else self.agent.history.stop_reason
        texts = [
            f"fit ended{f' ({reason})' if reason else ''}: {self._finished:,} {self._unit}s",
            *([f"{steps:,} steps"] if self._count == "steps" else []),
            f"{self.agent.updates - self._first_update:,} updates in {seconds:.1f} s",
            f"{steps / max(seconds, 1e-9):,.0f} {self._count}/s",
        ]
        if self._recent:
            texts.append(f"mean reward {mean(self._recent):.2f} over the last {len(self._recent)}")
        print(", ".join(texts), flush=True)


class EpisodePrinter(FitCounter):
    """Print a line every `every` finished episodes, and at least every 10 seconds.

    The line holds all finished episodes and steps of the agent, mean reward since the last line, loss, and steps per
    second. The last line summarizes the `fit`, with the mean reward of the last `every` episodes, or of fewer if fewer
    have finished.

    Args:
        every: number of finished episodes between lines.

    Raises:
        ValueError: if `every` is not a positive int.

    Example:
    >>> from noterl.callbacks import EpisodePrinter
    >>> printer = EpisodePrinter(every=1)
    >>> printer.on_episode_end(0, {"reward": 2.0, "length": 2, "steps": 2, "time": 0.5})
    episode 1 | steps 2 | reward 2.00 | 4 steps/s
    """

    def __init__(self, every: int = 10) -> None:
        self._every = check_positive("every", every)
        super().__init__(self._every)
        self._rewards: list[float] = []  # since the last line
        self._last_line = (0, 0.0)  # steps, or updates, and time at the last line
        self._next_line = math.inf  # when a line is due even if no episode ends

    def on_train_begin(self, logs: Logs) -> None:
        """Start the counts of this fit, and the time until the first line."""
        super().on_train_begin(logs)
        self._rewards.clear()
        self._last_line = (getattr(self.agent, self._count), 0.0)
        self._next_line = self._started + INTERVAL

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Count the episode, and print a line if one is due."""
        if not logs.get("complete", True):
            return
        self._finished += 1
        if "reward" in logs:
            self._rewards.append(logs["reward"])
            self._recent.append(logs["reward"])
        if self._finished % self._every == 0:
            self._print_line(logs[self._count], logs["time"], logs.get("loss"))

    def on_step_end(self) -> None:
        """Print a line if none was printed for 10 seconds."""
        if perf_counter() >= self._next_line:
            self._print_line(getattr(self.agent, self._count), perf_counter() - self._started)

    def _print_line(self, steps: int, seconds: float, loss: float | None = None) -> None:
        """Print a line about the time since the last line; `steps` and `seconds` are the counts so far."""
        rate = (steps - self._last_line[0]) / max(seconds - self._last_line[1], 1e-9)
        texts: list[Any] = [f"{self._unit} {self._first_episode + self._finished}", f"{self._count} {steps}"]
        if self._rewards:
            texts.append(f"reward {mean(self._rewards):.2f}")
        if loss is not None:
            texts.append(f"loss {loss:.4g}")
        print(" | ".join([*texts, f"{rate:,.0f} {self._count}/s"]), flush=True)
        self._rewards.clear()
        self._last_line = (steps, seconds)
        if self._next_line < math.inf:
            self._next_line = perf_counter() + INTERVAL


def mean(values: Collection[float]) -> float:
    """Return the mean of rewards."""
    return math.fsum(values) / len(values)

"""A line of text for a number of episodes: what `fit(verbose=2)` prints."""

from __future__ import annotations

import math
from typing import Any

from noterl.callback import LOGGER, Callback
from noterl.types import Logs
from noterl.utils.checks import check_positive


class EpisodePrinter(Callback):
    """Print a line every `every` finished episodes.

    The line holds episode, steps, mean reward since the last line, loss, and steps per second.

    Args:
        every: finished episodes between lines.

    Raises:
        ValueError: if `every` is not a positive int.

    Example:
    >>> from noterl.callbacks import EpisodePrinter
    >>> printer = EpisodePrinter(every=1)
    >>> printer.on_episode_end(0, {"reward": 2.0, "length": 2, "steps": 2, "time": 0.5})
    episode 1 | steps 2 | reward 2.00 | 4 steps/s
    """

    order = LOGGER

    def __init__(self, every: int = 10) -> None:
        self._every = check_positive("every", every)
        self._rewards: list[float] = []
        self._finished = 0
        self._last_line = (0, 0.0)  # steps and time at the last line

    def on_train_begin(self, logs: Logs) -> None:
        """Start the counts of this fit."""
        self._rewards.clear()
        self._finished = 0
        self._last_line = (self.agent.steps, 0.0)

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Count the episode, and print a line if one is due."""
        if not logs.get("complete", True):
            return
        self._finished += 1
        self._rewards.append(logs["reward"])
        if self._finished % self._every:
            return
        steps, seconds = logs["steps"], logs["time"]
        rate = (steps - self._last_line[0]) / max(seconds - self._last_line[1], 1e-9)
        parts: list[Any] = [
            f"episode {self._finished}",
            f"steps {steps}",
            f"reward {math.fsum(self._rewards) / len(self._rewards):.2f}",
        ]
        if "loss" in logs:
            parts.append(f"loss {logs['loss']:.4g}")
        print(" | ".join([*parts, f"{rate:,.0f} steps/s"]), flush=True)
        self._rewards.clear()
        self._last_line = (steps, seconds)

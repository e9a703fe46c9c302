"""What callbacks watch that judge training: the mean of a quantity over the last finished episodes."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from noterl.types import Logs
from noterl.utils.checks import check_positive, check_word

if TYPE_CHECKING:
    from noterl.agent import Agent


class Monitor:
    """The mean of a quantity in the episodes' logs over the last `window` of them that had it.

    Args:
        name: the quantity.
        window: how many episodes; fewer at the start.
        mode: "max" if more is better, "min" if less.
        window_name: what messages call `window`.

    Raises:
        ValueError: if an argument is not what it may be.

    Attributes:
        recent: the last values.

    Example:
    >>> from noterl.callbacks.monitor import Monitor
    >>> monitor = Monitor("reward", window=2)
    >>> for reward in (1.0, 3.0, 5.0):
    ...     heard = monitor.hear({"reward": reward}, None)
    >>> monitor.mean
    4.0
    """

    def __init__(self, name: str, window: int, mode: str = "max", *, window_name: str = "window") -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"monitor must be the name of a quantity in an episode's logs, got {name!r}")
        self.name, self.mode = name, check_word("mode", mode, ("max", "min"))
        self.recent: deque[float] = deque(maxlen=check_positive(window_name, window))

    def hear(self, logs: Logs, agent: Agent | None) -> bool:
        """Take the value out of an episode's logs; say whether there is one.

        A loss is there from the first update on, and what a callback adds comes when it comes: these are waited for.

        Raises:
            ValueError: if the quantity is missing and nobody is known to add it; the message names those there are.
        """
        if self.name in logs:
            self.recent.append(float(logs[self.name]))
            return True
        others = agent._callbacks.callbacks if agent is not None else ()
        if self.name != "loss" and not any(self.name in other.adds for other in others):
            raise ValueError(f"monitor: the episode's logs have no {self.name!r}; they have {', '.join(sorted(logs))}")
        return False

    @property
    def full(self) -> bool:
        """Whether the mean is one of as many episodes as were asked for."""
        return len(self.recent) == self.recent.maxlen

    @property
    def mean(self) -> float:
        """The mean, NaN before the first value."""
        return math.fsum(self.recent) / len(self.recent) if self.recent else math.nan

    def better(self, value: float, than: float | None, by: float = 0.0) -> bool:
        """Say whether a value is better than another by more than so much; any number is better than none."""
        if math.isnan(value):
            return False
        if than is None or math.isnan(than):
            return True
        return value > than + by if self.mode == "max" else value < than - by

    def set_recent(self, values: list[float]) -> None:
        """Take the values of a saved state."""
        self.recent = deque(values, maxlen=self.recent.maxlen)

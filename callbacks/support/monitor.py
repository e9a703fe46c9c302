"""The mean of a metric over the last finished episodes."""

from __future__ import annotations

import math
from collections import deque

from noterl.callback import Callback
from noterl.types import Logs
from noterl.utils.checks import check_positive, check_word


class Monitor:
    """The mean of a metric over the last `window` finished episodes whose logs hold it.

    Args:
        name: name of a metric in an episode's logs.
        window: number of episodes in the mean; there are fewer at the start.
        mode: "max" if higher is better, "min" if lower is better.

    Raises:
        ValueError: if an argument is not one of the allowed values.

    Attributes:
        recent: the values in the mean, oldest first.

    Example:
    >>> from noterl.callbacks.support.monitor import Monitor
    >>> monitor = Monitor("reward", window=2)
    >>> for reward in (1.0, 3.0, 5.0):
    ...     updated = monitor.update({"reward": reward}, None)
    >>> monitor.mean
    4.0
    """

    def __init__(self, name: str, window: int, mode: str = "max") -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"monitor must be the name of a metric in an episode's logs, got {name!r}")
        self.name, self.mode = name, check_word("mode", mode, ("max", "min"))
        self.recent: deque[float] = deque(maxlen=check_positive("window", window))

    def update(self, logs: Logs, owner: Callback | None) -> bool:
        """Add the metric of an episode to the mean; return whether the logs hold the metric.

        A metric of updates is missing before the first update. A metric that another callback adds, or that comes from
        `fit(info=)`, may be missing in some episodes.

        Args:
            logs: of the episode.
            owner: the callback that monitors; None if the logs must hold the metric.

        Raises:
            ValueError: if the metric is missing, and neither updates, `info` nor a callback add it, or only a callback
                that runs after the owner does.
        """
        if self.name in logs:
            self.recent.append(float(logs[self.name]))
            return True
        agent = None if owner is None else owner.agent
        if agent is not None and (self.name in agent.metric_names or self.name in agent.recorded_info):
            return False
        callbacks = [] if agent is None else list(agent.callbacks)
        adding = [other for other in callbacks if self.name in other.adds]
        if not adding:
            raise ValueError(f"monitor: the episode's logs have no {self.name!r}; they have {', '.join(sorted(logs))}")
        if owner in callbacks and callbacks.index(owner) < callbacks.index(adding[0]):
            first, second = type(adding[0]).__name__, type(owner).__name__
            raise ValueError(f"monitor: {first} adds {self.name!r}, so it must come before {second} in callbacks")
        return False

    @property
    def is_full(self) -> bool:
        """Whether there are `window` values."""
        return len(self.recent) == self.recent.maxlen

    @property
    def mean(self) -> float:
        """The mean; NaN before the first value."""
        return math.fsum(self.recent) / len(self.recent) if self.recent else math.nan

    def is_better(self, value: float, than: float | None, by: float = 0.0) -> bool:
        """Return whether a value is better than another by more than `by`; any number is better than None or NaN."""
        if math.isnan(value):
            return False
        if than is None or math.isnan(than):
            return True
        return value > than + by if self.mode == "max" else value < than - by

    def set_recent(self, values: list[float]) -> None:
        """Replace the values in the mean, such as by those of a saved state."""
        self.recent = deque(values, maxlen=self.recent.maxlen)

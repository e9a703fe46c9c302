"""The mean of a metric over the last values."""

from __future__ import annotations

import math
import warnings
from collections import deque
from typing import Any

from noterl.callback import Callback
from noterl.types import Logs
from noterl.utils.checks import check_positive, check_word


class Monitor:
    """The mean of a metric over the last `window` values, one for each finished episode that logs the metric.

    Each callback with an argument `monitor` has one, and updates it in `on_episode_end`.

    A metric is rare if another callback such as `Evaluate` adds the metric, or if the logs of an episode have lacked
    the metric. A value of a rare metric is a score of the agent at the end of that episode only, so it is averaged over
    one value by default, and compared at that step only.

    Args:
        name: name of a metric in an episode's logs.
        window: number of values in the mean; fewer at the start. None for `default`, or 1 for a rare metric.
        mode: "max" if higher is better, "min" if lower is better.
        default: the default of `window`.
        argument: the name of `window` in error messages.

    Raises:
        ValueError: if an argument is not one of the allowed values.

    Attributes:
        recent: the values in the mean, oldest first.
        is_rare: whether some episodes lack the metric.
        has_compared: whether `is_better` has compared a number in this `fit`.

    Example:
    >>> from noterl.callbacks.support.monitor import Monitor
    >>> monitor = Monitor("reward", window=2)
    >>> for reward in (1.0, 3.0, 5.0):
    ...     updated = monitor.update({"reward": reward}, None)
    >>> monitor.mean
    4.0
    """

    def __init__(
        self, name: str, window: int | None, mode: str = "max", *, default: int = 10, argument: str = "window"
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"monitor must be the name of a metric in an episode's logs, got {name!r}")
        self.name: str = name
        self.mode: str = check_word("mode", mode, ("max", "min"))
        window = check_positive(argument, window, none=True)
        self._is_default = window is None
        self._argument = argument
        self.recent: deque[float] = deque(maxlen=default if window is None else window)
        self.is_rare: bool = False
        self.has_compared: bool = False
        self._steps: int | None = None  # `log_step` of the agent at the last value
        self._episodes = 0  # of this `fit`

    def end(self, owner: Callback) -> None:
        """Called when a `fit` ends: warn if the `fit` has compared nothing, although episodes have finished."""
        has_only_waited = self._episodes > 0 and not self.has_compared
        # Reset first: a filter of warnings may turn the warning into an error.
        self._episodes = 0
        self.has_compared = False
        if has_only_waited:
            warnings.warn(
                f"{type(owner).__name__} has compared no {self.name!r}: it needs {self._argument}={self.recent.maxlen} "
                f"values, and has {len(self.recent)}. Train for longer, or set {self._argument}=",
                stacklevel=3,
            )

    def update(self, logs: Logs, owner: Callback | None) -> bool:
        """Add the metric of an episode to the mean; return whether the logs hold the metric.

        Called once for each complete episode.

        A metric of updates is missing before the first update. A metric that another callback adds, or that comes from
        `fit(info=)`, may be missing in some episodes.

        Args:
            logs: of the episode.
            owner: the callback that monitors; None if the logs must hold the metric.

        Raises:
            ValueError: if the metric is missing, and neither updates, `info` nor a callback add it, or only a callback
                that runs after the owner does.
        """
        self._episodes += 1
        agent = None if owner is None else owner.agent
        callbacks = [] if agent is None else list(agent.callbacks)
        adding = [other for other in callbacks if self.name in other.adds]
        if adding and not self.is_rare:
            self._set_rare()
        if self.name in logs:
            self.recent.append(float(logs[self.name]))
            # Scores of rare metrics are compared at this step only; see `is_current`.
            self._steps = None if agent is None else agent.log_step
            return True
        if agent is not None and self.name in agent.metric_names:
            return False
        if agent is not None and self.name in agent.recorded_info:
            self._set_rare()
            return False
        if not adding:
            raise ValueError(f"monitor: the episode's logs have no {self.name!r}; they have {', '.join(sorted(logs))}")
        if owner in callbacks and callbacks.index(owner) < callbacks.index(adding[0]):
            first = type(adding[0]).__name__
            second = type(owner).__name__
            raise ValueError(f"monitor: {first} adds {self.name!r}, so it must come before {second} in callbacks")
        return False

    def _set_rare(self) -> None:
        self.is_rare = True
        if self._is_default:
            self.recent = deque(self.recent, maxlen=1)

    def check_choice(self, owner: Callback) -> None:
        """Raise a ValueError if the agent changes before the metric is known, so `owner` cannot keep its weights."""
        for other in owner.agent.callbacks:
            if self.name in other.adds and getattr(other, "background", False):
                raise ValueError(
                    f"monitor: {type(owner).__name__} cannot keep the weights of the best {self.name!r}, because they "
                    "have changed when a result of background=True is known: use Evaluate(on_best=path)"
                )

    def is_current(self, steps: int) -> bool:
        """Return whether the mean is a score of the agent at this `log_step`."""
        return not self.is_rare or self._steps == steps

    @property
    def is_full(self) -> bool:
        """Whether there are `window` values."""
        return len(self.recent) == self.recent.maxlen

    @property
    def mean(self) -> float:
        """The mean; NaN before the first value."""
        return math.fsum(self.recent) / len(self.recent) if self.recent else math.nan

    def is_better(self, value: float, than: float | None, by: float = 0.0) -> bool:
        """Return whether a value is better than another by more than `by`; any number is better than None or NaN.

        A value that is not NaN counts as a comparison: `end` then gives no warning.
        """
        if math.isnan(value):
            return False
        self.has_compared = True
        if than is None or math.isnan(than):
            return True
        return value > than + by if self.mode == "max" else value < than - by

    def follow(self, name: str) -> None:
        """Monitor another metric from now on; the values of the old one leave the mean."""
        if name != self.name:
            self.name = name
            self.recent.clear()

    def get_state(self) -> dict[str, Any]:
        """Return the values in the mean, and whether the metric is rare."""
        return {"recent": list(self.recent), "is_rare": self.is_rare}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore these entries of a callback's state; files of older versions have no `is_rare`."""
        self.recent = deque(state["recent"], maxlen=self.recent.maxlen)
        if state.get("is_rare"):
            self._set_rare()

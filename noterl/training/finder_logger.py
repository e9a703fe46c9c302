"""A callback that records the trial run of a finder."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter

from noterl.callback import LOGGER, Callback
from noterl.types import Logs
from noterl.utils.checks import check_positive, check_word

METRICS = ("reward", "loss")


class FinderLogger(Callback):
    """Record the reward and the loss, and end training after a number of points.

    A point is a finished episode. For the metric "loss", a point is a gradient update, which then runs as a
    separate compiled call. Episodes before the first update are not points, because such episodes do not depend on the
    learning rate or the optimizer.

    Args:
        metric: "reward" or "loss".
        points: number of points after which training ends.
        before: called with the number of each point, from 0, before the updates of the point.
        collapsed: called with the values of the metric so far; if the function returns True, training ends.

    Raises:
        ValueError: if an argument is not one of the allowed values.

    Attributes:
        rewards: the reward of each point; for the metric "loss", of each finished episode since the first update.
        losses: the mean loss of each point, NaN without an update; for the metric "loss", the loss of each update.
        seconds: the duration of training.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import FinderLogger
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> agent.compile(learning_starts=100, batch_size=8)
    >>> logger = FinderLogger("loss", points=20)
    >>> history = agent.fit(callbacks=[logger], verbose=0)
    >>> len(logger.losses), agent.updates >= 20  # the group in progress is completed
    (20, True)
    """

    order = LOGGER
    stops_training = True

    def __init__(
        self,
        metric: str,
        points: int,
        *,
        before: Callable[[int], None] | None = None,
        collapsed: Callable[[list[float]], bool] | None = None,
    ) -> None:
        self.metric: str = check_word("metric", metric, METRICS)
        self.points: int = check_positive("points", points)
        self.rewards: list[float] = []
        self.losses: list[float] = []
        self.seconds: float = 0.0
        self._over = False
        self._before = before
        self._collapsed = collapsed
        self.needs_host: bool = before is not None
        self.needs_live_updates: bool = metric == "loss"

    def _handler(self, event: str) -> Callable[..., None] | None:
        # Each update with a batch hook costs a fetch of its loss.
        return None if event == "on_batch_end" and self.metric != "loss" else super()._handler(event)

    @property
    def values(self) -> list[float]:
        """The values of the metric, one for each point."""
        return self.rewards if self.metric == "reward" else self.losses

    def on_train_begin(self, logs: Logs) -> None:
        """Start the clock and the first point."""
        self._started = perf_counter()
        self._first_update = self.agent.updates
        if self._before is not None:
            self._before(0)

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Record a complete episode."""
        if not logs.get("complete", True) or self.agent.updates == self._first_update:
            return
        if self.metric == "loss":
            self.rewards.append(float(logs["reward"]))
        elif not self._over:
            self.rewards.append(float(logs["reward"]))
            self.losses.append(float(logs.get("loss", math.nan)))
            self._end_point()

    def on_train_end(self, logs: Logs) -> None:
        """Record the duration."""
        self.seconds = perf_counter() - self._started

    def on_batch_end(self, batch: int, logs: Logs) -> None:
        """Record the loss of an update."""
        if not self._over:
            self.losses.append(float(logs["loss"]))
            self._end_point()

    def _end_point(self) -> None:
        """End training after the last point or a collapse; otherwise announce the next point by `before`."""
        collapsed = self._collapsed is not None and self._collapsed(self.values)
        self._over = collapsed or len(self.values) >= self.points
        if self._over:  # the group in progress is completed
            self.agent.stop(f"the {self.metric} collapsed" if collapsed else "the search is over")
        elif self._before is not None:
            self._before(len(self.values))

"""A callback that reduces the learning rate when training no longer improves."""

from __future__ import annotations

from typing import Any

from noterl.callback import Budget, Every
from noterl.learning.optimizers import check_without_schedule
from noterl.types import Logs
from noterl.utils.checks import check_int, check_number, check_positive

from .support.monitor import Monitor
from .support.stateful import MonitoringCallback
from .support.tunables import TUNABLES

LEARNING_RATES = TUNABLES["lr"]._replace(name="learning_rate")


class ReduceLROnPlateau(MonitoringCallback):
    """Reduce the learning rate of every optimizer on a plateau, and end training after a number of plateaus.

    The mean of `monitor` is checked every `every` episodes, at the first one that logs the metric. A plateau is
    `patience` checks in a row in which the mean is not better than the best mean so far. Before `starts_at` environment
    steps, only the best mean is updated. The logs of each episode hold the rates as `learning_rate`, or as
    `learning_rate/<optimizer>` if there are several optimizers.

    `stop_after` corresponds to the divergence monitoring of xagents. A better mean resets the number of plateaus to 0.

    Args:
        factor: the factor of the rate on each plateau; above 0 and below 1.
        patience: checks without improvement in a plateau.
        monitor: the metric, a name in an episode's logs.
        window: number of values in the mean of the metric, one for each finished episode that logs the metric, fewer at
            the start. By default 100, or 1 for a metric that not every episode logs, such as `evaluation_reward_mean`.
        mode: "max" if higher is better, "min" if lower is better.
        every: number of finished episodes between checks.
        min_delta: a mean is better only if the difference from the best mean is larger.
        cooldown: number of checks after a plateau that are not counted.
        min_lr: the lower bound of the rate.
        starts_at: number of environment steps, or updates on a data set, before checks are counted.
        stop_after: number of plateaus in a row that end training; None to continue.

    Raises:
        ValueError: if an argument is not one of the allowed values; at an episode's end, if the logs do not hold
            `monitor`; when `fit` is called, if a learning rate has a schedule.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import ReduceLROnPlateau
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> slower = ReduceLROnPlateau(factor=0.5, patience=1, monitor="steps", window=1, mode="min")
    >>> history = agent.fit(episodes=3, callbacks=[slower], verbose=0)
    >>> [round(rate, 6) for rate in history.history["learning_rate"]]
    [0.001, 0.0005, 0.00025]
    """

    saved = ("_best", "_waited", "_plateaus", "_cooling")

    def __init__(
        self,
        factor: float = 0.9,
        patience: int = 10,
        *,
        monitor: str = "reward",
        window: int | None = None,
        mode: str = "max",
        every: int = 1,
        min_delta: float = 0.0,
        cooldown: int = 0,
        min_lr: float = 0.0,
        starts_at: int = 0,
        stop_after: int | None = None,
    ) -> None:
        self.factor: float = check_number("factor", factor, low=0, high=1, above=True)
        if self.factor == 1.0:
            raise ValueError(f"factor must be below 1, got {factor!r}")
        self.patience: int = check_positive("patience", patience)
        self._monitor = Monitor(monitor, window, mode, default=100)
        self.every: Every = Every(check_positive("every", every), "episodes", counts_epochs=True)
        self.min_delta: float = check_number("min_delta", min_delta, low=0)
        self.cooldown: int = check_int("cooldown", cooldown, least=0)
        self.min_lr: float = check_number("min_lr", min_lr, low=0)
        self.starts_at: int = check_int("starts_at", starts_at, least=0)
        self.stop_after: Any = check_positive("stop_after", stop_after, none=True)
        self.stops_training: bool = stop_after is not None
        self._best: float | None = None
        self._waited = self._plateaus = self._cooling = 0

    def before_fit(self, agent: Any, budget: Budget) -> None:
        """Raise a ValueError if a learning rate has a schedule, because the first plateau may be hours later."""
        for optimizer in agent.optimizers.values():
            check_without_schedule(optimizer)

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Update the mean and log the rates."""
        if logs.get("complete", True):
            self._monitor.update(logs, self)
            logs.update(LEARNING_RATES.read(self.agent))

    def on_due(self, logs: Logs) -> bool:
        """Check the mean and log the rates; return False if the episode does not log the metric."""
        if self._monitor.name not in logs:
            return False
        self._check(self._monitor.mean)
        logs.update(LEARNING_RATES.read(self.agent))
        return True

    def _check(self, mean: float) -> None:
        """Store a better mean, or count a check without improvement; reduce the rates after `patience` of these."""
        is_cooling = self._cooling > 0
        self._cooling -= is_cooling
        if self._monitor.is_better(mean, self._best, self.min_delta):
            self._best = mean
            self._waited = 0
            self._plateaus = 0
            return
        # After a reduction, the mean still covers episodes with the old rate.
        if is_cooling or self.agent.log_step < self.starts_at:
            return
        self._waited += 1
        if self._waited >= self.patience:
            self._reduce()

    def _reduce(self) -> None:
        """Reduce the rate of each optimizer, and stop training after `stop_after` plateaus."""
        self._waited = 0
        self._cooling = self.cooldown
        self._plateaus += 1
        for name in self.agent.optimizer_names:
            before = self.agent.get_rule("learning_rate", name)
            # A rate that is below `min_lr` from the start is not raised to it.
            after = max(before * self.factor, self.min_lr)
            if after < before:
                self.agent.set_rule("learning_rate", after, name)
                self.agent.show_message(f"reducing the learning rate of {name} from {before:.4g} to {after:.4g}")
        if self.stop_after is not None and self._plateaus >= self.stop_after:
            self._plateaus = 0
            self.agent.stop(f"{self._monitor.name} has not improved for {self.stop_after} plateaus")

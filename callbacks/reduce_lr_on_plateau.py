"""Lowering the learning rate when training gets no better."""

from __future__ import annotations

from typing import Any

from noterl.callback import Callback
from noterl.learning import optimizers
from noterl.types import Logs
from noterl.utils.checks import check_int, check_number, check_positive

from .monitor import Monitor


class ReduceLROnPlateau(Callback):
    """Lower the learning rate of every optimizer on a plateau, and end training after so many plateaus.

    A plateau is `patience` looks in a row at the mean of `monitor` that found none better than the best. Nothing counts
    before `starts_at` environment steps but the best. The rates that an episode ended with stand in its logs as
    `learning_rate`, or `learning_rate/<optimizer>` where there are several.

    With `stop_after` this is the divergence monitoring of xagents: a better mean forgets the plateaus so far.

    Args:
        factor: the rate is multiplied by it.
        patience: looks without improvement that make a plateau.
        monitor: the quantity in an episode's logs.
        window: finished episodes in its mean, fewer at the start.
        mode: "max" if more is better, "min" if less.
        every: finished episodes between looks.
        min_delta: what a mean must exceed the best by to be better.
        cooldown: looks after a plateau that do not count.
        min_lr: the lowest rate.
        starts_at: environment steps before which nothing is a plateau.
        stop_after: plateaus without improvement between them that end training; None for never.

    Raises:
        ValueError: if an argument is not what it may be; at an episode's end if its logs have no `monitor`.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import ReduceLROnPlateau
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> slower = ReduceLROnPlateau(factor=0.5, patience=1, monitor="steps", window=1, mode="min")
    >>> history = agent.fit(episodes=3, callbacks=[slower], verbose=0)
    >>> [round(rate, 6) for rate in history.history["learning_rate"]]
    [0.001, 0.0005, 0.00025]
    """

    def __init__(
        self,
        factor: float = 0.9,
        patience: int = 10,
        *,
        monitor: str = "reward",
        window: int = 100,
        mode: str = "max",
        every: int = 1,
        min_delta: float = 0.0,
        cooldown: int = 0,
        min_lr: float = 0.0,
        starts_at: int = 0,
        stop_after: int | None = None,
    ) -> None:
        self.factor = check_number("factor", factor, low=0, high=1, above=True)
        if self.factor == 1.0:
            raise ValueError(f"factor must be below 1, or the rate would stay, got {factor!r}")
        self.patience = check_positive("patience", patience)
        self._monitor = Monitor(monitor, window, mode)
        self.every = check_positive("every", every)
        self.min_delta = check_number("min_delta", min_delta, low=0)
        self.cooldown = check_int("cooldown", cooldown, least=0)
        self.min_lr = check_number("min_lr", min_lr, low=0)
        self.starts_at = check_int("starts_at", starts_at, least=0)
        self.stop_after = check_positive("stop_after", stop_after, none=True)
        self.stops_training = stop_after is not None
        self._best: float | None = None
        self._waited = self._plateaus = self._cooling = 0

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Look at the mean if it is time; log the rates."""
        if not logs.get("complete", True):
            return
        if self._monitor.hear(logs, self.agent) and self.agent.episodes % self.every == 0:
            self._look(self._monitor.mean)
        names = self.agent.optimizer_names
        for name in names:
            rate = optimizers.get_rule(self.agent.optimizers[name], "learning_rate")
            logs["learning_rate" if len(names) == 1 else f"learning_rate/{name}"] = rate

    def _look(self, mean: float) -> None:
        if self._monitor.better(mean, self._best, self.min_delta):
            self._best, self._waited, self._plateaus = mean, 0, 0
            return
        if self._cooling:
            self._cooling -= 1
            return
        if self.agent.steps < self.starts_at:
            return
        self._waited += 1
        if self._waited >= self.patience:
            self._reduce()

    def _reduce(self) -> None:
        self._waited, self._cooling = 0, self.cooldown
        self._plateaus += 1
        for name in self.agent.optimizer_names:
            before = optimizers.get_rule(self.agent.optimizers[name], "learning_rate")
            after = max(before * self.factor, self.min_lr)
            if after < before:
                self.agent.set_rule("learning_rate", after, name)
                self.agent.say(f"the learning rate of {name} goes from {before:.4g} to {after:.4g}")
        if self.stop_after is not None and self._plateaus >= self.stop_after:
            self._plateaus = 0
            self.agent.stop(f"{self._monitor.name} has not improved for {self.stop_after} plateaus")

    def get_state(self) -> dict[str, Any]:
        """Return the recent values, the best mean, and what has been counted since."""
        return {
            "recent": list(self._monitor.recent),
            "best": self._best,
            "waited": self._waited,
            "plateaus": self._plateaus,
            "cooling": self._cooling,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned."""
        self._monitor.set_recent(state["recent"])
        self._best, self._waited = state["best"], state["waited"]
        self._plateaus, self._cooling = state["plateaus"], state["cooling"]

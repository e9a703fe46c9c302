"""A callback that sets a hyperparameter by a schedule."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from noterl.types import Logs
from noterl.utils.checks import check_word

from .support.stateful import StatefulCallback

UNITS = ("steps", "updates", "episodes")
RULES = ("learning_rate", "beta_1", "beta_2", "weight_decay")


class HyperparameterScheduler(StatefulCallback):
    """Set a hyperparameter of the agent to a function of the steps, updates or episodes so far.

    The value is set when training begins and when each episode ends. With `live`, the value is also set before each
    gradient update, and each update then runs as a separate compiled call. The counts are the agent's totals. If a run
    is resumed in the middle of an episode, the value is kept until the episode ends. The logs of each episode hold,
    under `name`, or `name/optimizer` for one of several optimizers, the value at the end of the episode.

    Args:
        name: one of `agent.hyperparameters`, or a rule of the optimizer: "learning_rate", "beta_1", "beta_2" or
            "weight_decay".
        schedule: a function of the count that returns the value, such as one of `noterl.schedules`.
        unit: the count: environment "steps", gradient "updates" or finished "episodes".
        live: set the value before each update.
        optimizer: the name of the optimizer whose rule is set; None for all.

    Raises:
        ValueError: if an argument is not one of the allowed values; when training begins, if the agent has no such
            hyperparameter, or another schedule sets it; if `schedule` returns a value that is not allowed.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import HyperparameterScheduler
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), gamma=0.9, seed=1)
    >>> scheduler = HyperparameterScheduler("gamma", lambda episode: 0.9 + 0.01 * episode, unit="episodes")
    >>> history = agent.fit(episodes=3, callbacks=[scheduler], verbose=0)
    >>> [round(value, 2) for value in history.history["gamma"]], round(float(agent.gamma), 2)
    ([0.9, 0.91, 0.92], 0.93)
    """

    saved = ("_at",)
    takes_epochs = True

    def __init__(
        self,
        name: str,
        schedule: Callable[[int], float],
        *,
        unit: str = "steps",
        live: bool = False,
        optimizer: str | None = None,
    ) -> None:
        if not callable(schedule):
            raise ValueError(f"schedule must be a function of the number of {unit}, got {schedule!r}")
        try:
            inspect.signature(schedule).bind(0)
        except TypeError as error:
            raise ValueError(f"schedule must be a function of one argument, the number of {unit}: {error}") from error
        except ValueError:  # some functions written in C have no signature
            pass
        self.name: str = name
        self.schedule = schedule
        self.optimizer: str | None = optimizer
        self.unit: str = check_word("unit", unit, UNITS)
        self._at: int | None = None  # the count that the current value was computed from
        self.needs_live_updates: bool = live
        self.needs_host: bool = live

    def _handler(self, event: str) -> Callable[..., None] | None:
        # An event without handlers costs nothing.
        return None if event == "on_batch_begin" and not self.needs_live_updates else super()._handler(event)

    @property
    def state_key(self) -> str:
        """The names of the class and the hyperparameter, and the optimizer if one is given."""
        return ":".join([type(self).__name__, self.name, *([self.optimizer] if self.optimizer else [])])

    def on_train_begin(self, logs: Logs) -> None:
        """Check that the hyperparameter exists, and set the value."""
        if self.name not in RULES and self.name not in self.agent.hyperparameters:
            names = ", ".join([*self.agent.hyperparameters, *RULES])
            raise ValueError(f"name must be one of {names}, got {self.name!r}")
        if self.optimizer is not None and self.name in self.agent.hyperparameters:
            raise ValueError(f"optimizer must be None for the agent's {self.name}, got {self.optimizer!r}")
        now = self._now
        # A run that resumes within an episode keeps its value; a count above the agent's comes from another agent.
        self._set(now if self._at is None or self._at > now else self._at)

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Log the value and set the next one, unless the end of `fit` cuts the episode short."""
        is_one_of_several = self.optimizer is not None and len(self.agent.optimizer_names) > 1
        logs[f"{self.name}/{self.optimizer}" if is_one_of_several else self.name] = self.value
        if logs.get("complete", True):
            self._set(self._now)

    @property
    def value(self) -> float:
        """The current value; if several optimizers have the value, the first optimizer's."""
        if self.name in self.agent.hyperparameters:
            return float(self.agent.hyperparameters[self.name])
        return self.agent.get_rule(self.name, self.optimizer)

    @property
    def _now(self) -> int:
        return int(getattr(self.agent, self.unit))

    def on_batch_begin(self, batch: int, logs: Logs) -> None:
        """Set the hyperparameter before an update."""
        self._set(self._now)

    def _set(self, count: int) -> None:
        """Set the value of the schedule at this count, and store the count, from which a resumed run sets the value."""
        value = float(self.schedule(count))
        self._at = count
        if self.name in self.agent.hyperparameters:
            self.agent.hyperparameters[self.name].assign(value)
        else:
            self.agent.set_rule(self.name, value, self.optimizer)

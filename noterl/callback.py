"""The base class of callbacks, the events that they handle, and what they may use of an agent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from noterl.types import Logs
from noterl.utils.checks import check_positive, check_word

Handlers = tuple[Callable[..., None], ...]


class Events(NamedTuple):
    """For each event, the bound methods that handle it; an empty tuple if no callback does."""

    on_train_begin: Handlers = ()
    on_train_end: Handlers = ()
    on_episode_begin: Handlers = ()
    on_episode_end: Handlers = ()
    on_batch_begin: Handlers = ()
    on_batch_end: Handlers = ()
    on_evaluate_begin: Handlers = ()
    on_evaluate_end: Handlers = ()
    on_exception: Handlers = ()
    on_step_end: Handlers = ()


EVENTS = Events._fields

# Callbacks run in this order, and within a group in the user's order. Each sees what earlier ones added to `logs`.
USER, HISTORY, LOGGER, CHECKPOINT = range(4)


class AgentView(Protocol):
    """What a callback may use of the agent that it is attached to."""

    history: Any
    stop_training: bool
    optimizer_names: tuple[str, ...]

    @property
    def steps(self) -> int:
        """Environment steps so far."""

    @property
    def updates(self) -> int:
        """Gradient updates so far."""

    @property
    def episodes(self) -> int:
        """Finished episodes so far."""

    @property
    def stop_reason(self) -> str | None:
        """Why training was asked to stop, or None."""

    @property
    def replay(self) -> Any:
        """The replay memory, or None."""

    @property
    def policy(self) -> Any:
        """The exploration policy, or None."""

    @property
    def optimizers(self) -> Mapping[str, Any]:
        """The optimizers by name."""

    @property
    def hyperparameters(self) -> Mapping[str, Any]:
        """The hyperparameters by name."""

    @property
    def learning_rate(self) -> float:
        """The learning rate of the first optimizer."""

    def stop(self, reason: str) -> None:
        """End training after the step in progress."""

    def set_rule(self, rule: str, value: float, optimizer: str | None = None) -> None:
        """Set a rule of one optimizer or of all, such as `learning_rate`."""

    def evaluate(self, env: Any = None, episodes: int = 10, **arguments: Any) -> dict[str, Any]:
        """Play whole episodes without learning."""

    def act(self, observation: Any, *, deterministic: bool = True) -> Any:
        """Return the action for one observation or a batch."""

    def save(self, path: str | Path, *, replay: bool = True) -> None:
        """Write everything into one file."""

    def save_weights(self, path: str | Path) -> None:
        """Write the weights into a file."""

    def get_weights(self) -> dict[str, np.ndarray]:
        """Return the weights and the statistics of the normalisers."""

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set what `get_weights` returned."""

    def networks(self) -> dict[str, Any]:
        """Return the networks by the names of their attributes."""


@dataclass
class Budget:
    """Where a `fit` ends, in the agent's own counts; `Callback.before_fit` may change it.

    Attributes:
        last_episode: total of finished episodes at which `fit` ends.
        last_step: total of environment steps at which `fit` ends.
        resumed: whether a callback has restored the agent, so that this fit continues an interrupted one.
    """

    last_episode: float = math.inf
    last_step: float = math.inf
    resumed: bool = False


UNITS = ("steps", "episodes", "updates")


@dataclass
class Every:
    """How often a callback acts: `Every(10, "steps")`, `Every(5, "episodes")` or `Every(100, "updates")`.

    Args:
        count: how many units lie between two actions.
        unit: "steps", "episodes" or "updates".

    Raises:
        ValueError: if an argument is not one of the allowed values.
    """

    count: int
    unit: str

    def __post_init__(self) -> None:
        self.count = check_positive("count", self.count)
        check_word("unit", self.unit, UNITS)


class Callback:
    """Base of all callbacks: override the events that you want to handle.

    `self.agent` is the agent that trains, from `on_train_begin` on. `self.agent.stop("reason")` ends training.
    Episodes are numbered by their start from 0; batches are gradient updates, numbered from 0. Both numbers continue in
    the next `fit`. A value that a callback adds to the `logs` of an episode's end becomes a column of `History`.

    Attributes:
        order: `USER`, `LOGGER` or `CHECKPOINT`: the group that the callback runs in.
        needs_live_updates: True for a callback that must act between two gradient updates. Updates then run one per
            compiled call. Otherwise the hooks of a group's updates run after the call that made all of them.
        stops_training: True for a callback that can end training, so that `fit` needs no budget.
        adds: the names that the callback adds to some episodes' logs, so that monitors of them wait instead of failing.

    Example:
    >>> from noterl.callbacks import Callback
    >>> class Shout(Callback):
    ...     def on_episode_end(self, episode, logs):
    ...         print(episode, logs["reward"])
    """

    order: int = USER
    needs_live_updates: bool = False
    stops_training: bool = False
    adds: Sequence[str] = ()
    agent: AgentView

    @property
    def state_key(self) -> str:
        """The name under which a file keeps this callback's state; unique within a list.

        Callbacks of one class that keep the default are numbered by their order in the list.
        """
        return type(self).__name__

    def get_state(self) -> dict[str, Any]:
        """Return what a resumed run needs, as nested dicts of arrays, numbers and strings."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""

    def before_fit(self, agent: Any, budget: Budget) -> None:
        """Called before the environments are opened; may restore the agent and change the budget of this `fit`."""

    def on_step_end(self) -> None:
        """Called after each environment step and the updates due with it; must not change weights.

        The agent is consistent here and can be saved. The event is not logged. It runs after every step, so a
        microsecond here is a noticeable part of a run.
        """

    def on_train_begin(self, logs: Logs) -> None:
        """Called when `fit` begins, before the first step."""

    def on_train_end(self, logs: Logs) -> None:
        """Called when `fit` ends, also after `stop`, an exception or Ctrl-C."""

    def on_episode_begin(self, episode: int, logs: Logs) -> None:
        """Called when an episode starts, and for each episode that continues from the previous `fit`."""

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Called when an episode ends.

        `logs` holds `reward` (the return), `length`, `loss` (mean since the last episode's end; absent before the first
        update), `steps`, `updates` and `time` (seconds since train begin). `logs["complete"]` is False for an episode
        that the end of training cuts short.
        """

    def on_batch_begin(self, batch: int, logs: Logs) -> None:
        """Called when a gradient update begins."""

    def on_batch_end(self, batch: int, logs: Logs) -> None:
        """Called when a gradient update ends; `logs` holds `loss` and what `Agent.update` returned."""

    def on_evaluate_begin(self, logs: Logs) -> None:
        """Called when `Agent.evaluate` begins."""

    def on_evaluate_end(self, logs: Logs) -> None:
        """Called when `Agent.evaluate` ends; `logs` is what it returns."""

    def on_exception(self, error: BaseException) -> None:
        """Called with the error that ends training; `on_train_end` follows."""


class LambdaCallback(Callback):
    """A callback made of functions, one for each event named.

    Raises:
        ValueError: if a name is not an event, or a value cannot be called.

    Example:
    >>> from noterl.callbacks import LambdaCallback
    >>> callback = LambdaCallback(on_episode_end=lambda episode, logs: print(logs["reward"]))
    """

    def __init__(self, **functions: Callable[..., None]) -> None:
        for name, function in functions.items():
            if name not in EVENTS:
                raise ValueError(f"LambdaCallback: {name!r} is not an event; events are {', '.join(EVENTS)}")
            if not callable(function):
                raise ValueError(f"LambdaCallback: {name} must be callable, got {function!r}")
            setattr(self, name, function)

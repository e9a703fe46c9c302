"""Callbacks: what they may hear, and the list that calls them.

Owns: the events' names and order, and binding them once so that an event nobody listens to costs nothing; the budget
that a callback may change before a `fit` begins. The loop (`loop.py`) decides when an event happens; the catalogue
(`noterl.callbacks`) says what happens then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from noterl.types import Logs

if TYPE_CHECKING:
    from noterl.agent import Agent

Handlers = tuple[Callable[..., None], ...]


class Events(NamedTuple):
    """For each event, and for the moments between steps, the bound methods that hear it; empty where nobody does."""

    on_train_begin: Handlers = ()
    on_train_end: Handlers = ()
    on_episode_begin: Handlers = ()
    on_episode_end: Handlers = ()
    on_batch_begin: Handlers = ()
    on_batch_end: Handlers = ()
    on_evaluate_begin: Handlers = ()
    on_evaluate_end: Handlers = ()
    on_exception: Handlers = ()
    between_steps: Handlers = ()


EVENTS = tuple(name for name in Events._fields if name.startswith("on_"))

# Who hears an event when: the user's callbacks in the order given, then History, then loggers, checkpoints last,
# so that each sees in `logs` what those before it added.
USER, HISTORY, LOGGER, CHECKPOINT = range(4)


@dataclass
class Budget:
    """Where a `fit` ends, counted as the agent counts; `Callback.before_fit` may change it.

    Attributes:
        last_episode: finished episodes of the agent in all.
        last_step: environment steps of the agent in all.
        resumed: whether the agent was brought to where an earlier process was in this fit, so that it goes on there
            instead of beginning.
    """

    last_episode: float = math.inf
    last_step: float = math.inf
    resumed: bool = False


class Callback:
    """Base of all callbacks: override the events you want to hear.

    `self.agent` is the agent that trains, from `on_train_begin` on; `self.agent.stop("reason")` ends training.
    Episodes are numbered by their start from 0, batches are gradient updates numbered from 0; both go on counting in
    the next `fit`. What a callback adds to the `logs` of an episode's end becomes a column of `History`.

    Attributes:
        order: `USER`, `LOGGER` or `CHECKPOINT`: who hears an event when.
        needs_live_updates: True for a callback that must act between two gradient updates. Updates then run one to
            a compiled call; otherwise the hooks of a group's updates fire after the call that made them all.
        stops_training: True for a callback that can end training, so that `fit` needs no budget.
        adds: the names that the callback adds to an episode's logs, if not at every episode's end: whoever monitors
            one of them waits for it.

    Example:
    >>> from noterl.callbacks import Callback
    >>> class Shout(Callback):
    ...     def on_episode_end(self, episode, logs):
    ...         print(episode, logs["reward"])
    """

    order: int = USER
    needs_live_updates: bool = False
    stops_training: bool = False
    adds: tuple[str, ...] = ()
    agent: Agent

    @property
    def state_key(self) -> str:
        """The name under which a save file keeps this callback's state; unique within a list.

        Several callbacks of one class that leave it at the class's name are told apart by their order in the list.
        """
        return type(self).__name__

    def get_state(self) -> dict[str, Any]:
        """Return what the callback must remember across a save, as nested dicts of arrays, numbers and strings."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` said."""

    def before_fit(self, agent: Agent, budget: Budget) -> None:
        """Change where this `fit` starts or ends, before anything of it is prepared."""

    def between_steps(self) -> None:
        """Do what needs the agent whole, after an environment step and all that fell due with it.

        This is no event, and is called after every step: a tenth of a microsecond is much here. The agent may be saved
        here, and training ended, at a step and not only at the end of an episode.
        """

    def on_train_begin(self, logs: Logs) -> None:
        """Hear that `fit` begins; nothing has been stepped yet."""

    def on_train_end(self, logs: Logs) -> None:
        """Hear that `fit` ends, whatever ended it."""

    def on_episode_begin(self, episode: int, logs: Logs) -> None:
        """Hear that an environment was reset, or that `fit` goes on with an episode the last one left."""

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Hear an episode's end.

        `logs` holds `reward` (the return), `length`, `loss` (mean since the last episode's end; absent before the first
        update), `steps`, `updates` and `time` (seconds since train begin). `logs["complete"]` is False for an episode
        that only the end of training cut short.
        """

    def on_batch_begin(self, batch: int, logs: Logs) -> None:
        """Hear that a gradient update begins."""

    def on_batch_end(self, batch: int, logs: Logs) -> None:
        """Hear that a gradient update ended; `logs` holds `loss` and what `Agent.update` returned."""

    def on_evaluate_begin(self, logs: Logs) -> None:
        """Hear that `Agent.evaluate` begins."""

    def on_evaluate_end(self, logs: Logs) -> None:
        """Hear that `Agent.evaluate` ends; `logs` is what it returns."""

    def on_exception(self, error: BaseException) -> None:
        """Hear what is about to end training; `on_train_end` still follows."""


class LambdaCallback(Callback):
    """A callback made of functions, one for each event named.

    Raises:
        ValueError: for a name that is no event, or a value that cannot be called.

    Example:
    >>> from noterl.callbacks import LambdaCallback
    >>> callback = LambdaCallback(on_episode_end=lambda episode, logs: print(logs["reward"]))
    """

    def __init__(self, **functions: Callable[..., None]) -> None:
        for name, function in functions.items():
            if name not in EVENTS:
                raise ValueError(f"LambdaCallback: {name!r} is no event; events are {', '.join(EVENTS)}")
            if not callable(function):
                raise ValueError(f"LambdaCallback: {name} must be callable, got {function!r}")
            setattr(self, name, function)


class CallbackList:
    """The callbacks of one `fit`, in the order they hear events.

    Args:
        callbacks: instances of `noterl.Callback`, or of `keras.callbacks.Callback`, which are adapted.

    Raises:
        ValueError: for anything else, or if two of them say their states under one key of their own; the message
            names it.
    """

    def __init__(self, callbacks: Iterable[Any] = ()) -> None:
        if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
            raise ValueError(f"callbacks must be a list of callbacks, got {callbacks!r}")
        self.callbacks = sorted((_adapted(callback) for callback in callbacks), key=lambda callback: callback.order)
        self._keyed()

    def set_agent(self, agent: Agent) -> None:
        """Tell every callback whose training it will hear of."""
        for callback in self.callbacks:
            callback.agent = agent

    def bind(self) -> Events:
        """Build, once, one tuple of bound methods per event, of those callbacks alone that override it."""
        bound = {}
        for name in Events._fields:
            bound[name] = tuple(getattr(callback, name) for callback in self.callbacks if _overrides(callback, name))
        return Events(**bound)

    @property
    def needs_live_updates(self) -> bool:
        """Whether a callback must act between two gradient updates."""
        return any(callback.needs_live_updates for callback in self.callbacks)

    @property
    def stops_training(self) -> bool:
        """Whether a callback can end training."""
        return any(callback.stops_training for callback in self.callbacks)

    def get_state(self) -> dict[str, Any]:
        """Return every callback's state by its key."""
        states = ((key, callback.get_state()) for key, callback in self._keyed())
        return {key: state for key, state in states if state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Give every callback its state back; keys without a callback are passed over."""
        for key, callback in self._keyed():
            if key in state:
                callback.set_state(state[key])

    def _keyed(self) -> list[tuple[str, Callback]]:
        seen: dict[str, int] = {}
        keyed = []
        for callback in self.callbacks:
            key = callback.state_key
            seen[key] = seen.get(key, 0) + 1
            if seen[key] > 1 and key != type(callback).__name__ and _overrides(callback, "get_state"):
                raise ValueError(
                    f"callbacks: two of them have the state_key {key!r}, the second a {type(callback).__name__}: a "
                    "save file could not tell their states apart; give one of them another state_key"
                )
            keyed.append((key if seen[key] == 1 else f"{key}#{seen[key]}", callback))
        return keyed


def _overrides(callback: Callback, name: str) -> bool:
    """Whether hearing the event does anything: overridden in the class, or set on the instance."""
    return name in vars(callback) or getattr(type(callback), name) is not getattr(Callback, name)


def _adapted(callback: Any) -> Callback:
    if isinstance(callback, Callback):
        return callback
    if isinstance(callback, type):
        raise ValueError(f"callbacks: got the class {callback.__name__}; pass an instance, {callback.__name__}(...)")
    if hasattr(callback, "set_model") and hasattr(callback, "on_epoch_end"):
        from noterl.training.keras_adapter import KerasCallback

        return KerasCallback(callback)
    raise ValueError(f"callbacks: {callback!r} is neither a noterl.Callback nor a keras.callbacks.Callback")

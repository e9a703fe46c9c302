"""The callbacks of one `fit` in order, and a function that calls all handlers of an event even if one raises."""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from noterl.callback import EVENTS, Callback, Events, Every, Handlers, overrides
from noterl.utils.errors import first_error

# For each value of `Every.at`, the events that check whether a callback is due.
_ENDS = ("on_episode_end", "on_epoch_end")
_CHECKED = {"episode": _ENDS, "step": ("on_step_end",), "both": (*_ENDS, "on_step_end")}
_MARK = "every mark"  # in the state of a callback: what its `Every` counts from


class CallbackList:
    """The callbacks of one `fit`, sorted by `order`.

    Args:
        callbacks: instances of `noterl.Callback`, or of `keras.callbacks.Callback`, which are wrapped in an adapter.

    Raises:
        ValueError: if an element is neither, or if two callbacks share a `state_key` that is not the default.
    """

    def __init__(self, callbacks: Iterable[Any] = ()) -> None:
        if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
            raise ValueError(f"callbacks must be a list of callbacks, got {callbacks!r}")
        self.callbacks: list[Callback] = sorted(map(_adapt, callbacks), key=lambda callback: callback.order)
        self.keyed()  # raises an error if two callbacks share a key

    def of_rank(self, rank: int) -> CallbackList:
        """Return the callbacks of the process with this rank: all in the chief, otherwise the ones with `all_ranks`."""
        return CallbackList(callback for callback in self.callbacks if rank == 0 or callback.all_ranks)

    @property
    def needs_live_updates(self) -> bool:
        """Whether a callback acts between updates."""
        return any(callback.needs_live_updates for callback in self.callbacks)

    def set_agent(self, agent: Any) -> None:
        """Set the `agent` attribute of every callback."""
        for callback in self.callbacks:
            callback.agent = agent

    def begin_fit(self, agent: Any) -> None:
        """Set the `agent` attribute of every callback.

        A callback that another agent has used gets the state from before the callback's first `fit`. If `get_state`
        raises an error then, because `on_train_begin` sets some attributes, the state is left to `on_train_begin`.
        """
        for callback in self.callbacks:
            before = getattr(callback, "agent", None)
            callback.agent = agent
            # In its first `fit`, the callback keeps the state that it gets back for another agent.
            if callback._first_state is None:
                callback._first_state = False  # unknown
                with contextlib.suppress(Exception):
                    callback._first_state = copy.deepcopy(callback.get_state())
            elif before is not agent:
                callback._every_mark = None
                if callback._first_state is not False:
                    callback.set_state(copy.deepcopy(callback._first_state))

    def bind(self) -> Events:
        """Return, for each event, the bound methods that handle the event; every `Every` starts to count."""
        for callback in self.callbacks:
            if _every_of(callback) is not None:
                callback.start_counting()

        return Events(*map(self.handlers, EVENTS))

    def handlers(self, event: str) -> Handlers:
        """Return the bound methods that handle an event."""
        return tuple(handler for callback in self.callbacks for handler in _handlers(callback, event))

    def get_state(self) -> dict[str, Any]:
        """Return the state of each callback by key, with the mark that the callback's `Every` counts from."""
        states = {}
        for key, callback in self.keyed():
            states[key] = callback.get_state()
            every = _every_of(callback)
            if every is not None and every.unit != "seconds":  # another process has another clock
                states[key] = {**states[key], _MARK: callback._every_mark}
        return {key: state for key, state in states.items() if state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state of each callback whose key is in `state`."""
        for key, callback in self.keyed():
            if key in state:
                callback_state = dict(state[key])
                mark = callback_state.pop(_MARK, None)
                callback._every_mark = mark if isinstance(mark, int) else None
                callback.set_state(callback_state)

    def keyed(self) -> list[tuple[str, Callback]]:
        """Return the callbacks with the keys of the callbacks' states.

        Raises:
            ValueError: if two callbacks share a `state_key` that is not the default.
        """
        counts: dict[str, int] = {}
        keyed = []
        for callback in self.callbacks:
            key = callback.state_key
            counts[key] = counts.get(key, 0) + 1
            if counts[key] > 1 and key != type(callback).__name__ and overrides(callback, "get_state"):
                raise ValueError(
                    f"callbacks: two of them have the state_key {key!r}, the second is a {type(callback).__name__}; "
                    "give one of them another state_key, so that a file can keep both states"
                )
            keyed.append((key if counts[key] == 1 else f"{key}#{counts[key]}", callback))
        return keyed


def _every_of(callback: Callback) -> Every | None:
    """Return how often `on_due` is called; None if the callback does not override `on_due`.

    Raises:
        ValueError: if the callback overrides `on_due` and `every` is not an `Every`.
    """
    every = callback.every if overrides(callback, "on_due") else None
    if not isinstance(every, Every | None):
        raise ValueError(
            f"every of {type(callback).__name__} must be an Every, such as Every(10, 'steps'), got {every!r}"
        )
    return every


def _handlers(callback: Callback, event: str) -> Iterator[Callable[..., None]]:
    """Return the bound methods of a callback that handle an event."""
    handler = callback._handler(event)
    if handler is not None:
        yield handler
    every = _every_of(callback)
    if every is not None and event in _CHECKED[every.at]:
        yield callback.call_if_due


def _adapt(callback: Any) -> Callback:
    """Return a callback of noterl as it is, and a callback of Keras in an adapter.

    Raises:
        ValueError: if the object is neither, or a class.
    """
    if isinstance(callback, Callback):
        return callback
    if isinstance(callback, type):
        raise ValueError(f"callbacks: got the class {callback.__name__}; pass an instance, {callback.__name__}(...)")
    if hasattr(callback, "set_model") and hasattr(callback, "on_epoch_end"):
        from noterl.training.keras_adapter import KerasCallback

        return KerasCallback(callback)
    raise ValueError(f"callbacks: {callback!r} is neither a noterl.Callback nor a keras.callbacks.Callback")


def call_handlers(handlers: Handlers, *args: Any, call: Callable[..., Any] = operator.call) -> None:
    """Call every handler, even if one raises; then raise the first error, with the others as notes.

    So each begin event has its end event.

    Args:
        handlers: of one event.
        *args: the event's values.
        call: calls a handler; in a `fit`, `InterruptGuard.call`.
    """
    failure = None
    for handler in handlers:
        try:
            call(handler, *args)
        except BaseException as error:
            add_source(handler, error)
            failure = first_error(failure, error)
    if failure is not None:
        raise failure


def add_source(handler: Callable[..., None], error: BaseException) -> None:
    """Add a note with the callback and the event that raised the error; not for Ctrl-C, which may arrive anywhere."""
    if isinstance(error, Exception):
        callback = getattr(handler, "__self__", None)
        adapted = getattr(callback, "callback", None)  # of Keras
        owner = "" if callback is None else f"{type(adapted).__name__ if adapted else callback.state_key}."
        note = f"raised by the callback {owner}{getattr(handler, '__name__', handler)}"
        if note not in getattr(error, "__notes__", ()):  # a callback may raise the same error again
            error.add_note(note)

"""Calling everybody who is to be called, also after one has raised.

Owns: which of several errors is raised, and that none is lost: the others are noted on it, and who raised it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from noterl.callback import Handlers


def deliver(handlers: Handlers, *args: Any) -> None:
    """Tell everybody, also after one has raised: who heard a begin hears its end. Then raise the first error."""
    failure = None
    for handler in handlers:
        try:
            handler(*args)
        except BaseException as error:
            name_raiser(handler, error)
            failure = _first(failure, error)
    if failure is not None:
        raise failure


def name_raiser(handler: Callable[..., None], error: BaseException) -> None:
    """Note on an error which callback raised it, and in which event; Ctrl-C may come in any and says nothing of it."""
    if isinstance(error, Exception):
        callback = getattr(handler, "__self__", None)
        owner = "" if callback is None else f"{callback.state_key}."
        note = f"raised by the callback {owner}{getattr(handler, '__name__', handler)}"
        if note not in getattr(error, "__notes__", ()):  # a callback may raise one and the same error again
            error.add_note(note)


def call_all(*parts: Callable[[], None]) -> None:
    """Call every part, also after one has raised; then raise the first error."""
    failure = None
    for part in parts:
        try:
            part()
        except BaseException as error:
            failure = _first(failure, error)
    if failure is not None:
        raise failure


@contextmanager
def noted_on(error: BaseException) -> Iterator[None]:
    """Let what is raised inside not hide the error that is being raised already."""
    try:
        yield
    except BaseException as other:
        _first(error, other)


def _first(error: BaseException | None, other: BaseException) -> BaseException:
    """Return the first of two errors, with the other noted on it."""
    if error is None or error is other:
        return other
    error.add_note("And then:\n" + "".join(traceback.format_exception(other, chain=False)).rstrip())
    return error

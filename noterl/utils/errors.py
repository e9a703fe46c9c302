"""Several errors at a time: the first one is raised, with the others as notes."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def run_all(*parts: Callable[[], None]) -> None:
    """Call every part, even if one raises; then raise the first error, with the others as notes."""
    failure = None
    for part in parts:
        try:
            part()
        except BaseException as error:
            failure = first_error(failure, error)
    if failure is not None:
        raise failure


@contextmanager
def keep_first_error(error: BaseException) -> Iterator[None]:
    """Add an error that is raised inside as a note to `error`, which is being raised already."""
    try:
        yield
    except BaseException as other:
        first_error(error, other)


def first_error(error: BaseException | None, other: BaseException) -> BaseException:
    """Return the first of two errors, with the other as a note."""
    if error is None or error is other:
        return other
    error.add_note("And then:\n" + "".join(traceback.format_exception(other, chain=False)).rstrip())
    return error

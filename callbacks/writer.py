"""Files that are written while training goes on, one after another."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from noterl.replay.machine import available_bytes


class Writer:
    """Writes in a thread of its own; a second job waits for the first, so that none overtakes another.

    A job that fails is remembered, and raised by the next `write` or by `drain`.

    Example:
    >>> from noterl.callbacks.writer import Writer
    >>> writer, written = Writer(), []
    >>> writer.write(lambda: written.append(1), undo=written.clear)
    >>> writer.drain()
    >>> written
    [1]
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failure: tuple[BaseException, Callable[[], None]] | None = None

    def write(self, job: Callable[[], None], *, undo: Callable[[], None]) -> None:
        """Start a job; the one before is waited for.

        Args:
            job: what to do, in the thread.
            undo: what to do, in the caller's thread, once the job is known to have failed.

        Raises:
            BaseException: what the job before raised; this one is not started then.
        """
        self.drain()
        self._thread = threading.Thread(target=self._run, args=(job, undo), name="noterl-writer")
        self._thread.start()

    def drain(self) -> None:
        """Wait until everything is written, and raise what went wrong."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            (error, undo), self._failure = self._failure, None
            undo()
            raise error

    def _run(self, job: Callable[[], None], undo: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._failure = (error, undo)


def copied(tree: Any) -> Any | None:
    """Return a copy of a state tree that later steps do not change, or None if there is no memory for one."""
    available = available_bytes()
    if available is not None and _nbytes(tree) > 0.8 * available:
        return None
    return copy.deepcopy(tree)


def _nbytes(tree: Any) -> int:
    if isinstance(tree, np.ndarray):
        return int(tree.nbytes)
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return sum(map(_nbytes, parts))

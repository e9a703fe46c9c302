"""Files that are written while training goes on, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from noterl.utils.memory import available_bytes

# Arrays begin at multiples of it, so that copying is as fast as it may be.
_ALIGNMENT = 64


class Writer:
    """Writes in a thread of its own; a second job waits for the first, so that none overtakes another.

    A job that fails is remembered, and raised by the next `write` or by `drain`.

    Example:
    >>> from noterl.callbacks.writer import Writer
    >>> writer, written = Writer(), []
    >>> writer.write(lambda: written.append(1), undo=written.clear)
    >>> writer.close()
    >>> written
    [1]
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pending: tuple[Future[None], Callable[[], None]] | None = None
        self._arena = np.empty(0, np.uint8)

    def write(self, job: Callable[[], None], *, undo: Callable[[], None]) -> None:
        """Start a job; the one before is waited for.

        Args:
            job: what to do, in the thread.
            undo: what to do, in the caller's thread, once the job is known to have failed.

        Raises:
            BaseException: what the job before raised; this one is not started then.
        """
        self.drain()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "noterl-writer")
        self._pending = self._pool.submit(job), undo

    def drain(self) -> None:
        """Wait until everything is written, and raise what went wrong."""
        if self._pending is not None:
            (future, undo), self._pending = self._pending, None
            try:
                future.result()
            except BaseException:
                undo()
                raise

    def close(self) -> None:
        """Wait until everything is written, end the thread and let the memory go; `write` would begin anew."""
        try:
            self.drain()
        finally:
            self._arena = np.empty(0, np.uint8)
            if self._pool is not None:
                self._pool.shutdown()
                self._pool = None

    def copied(self, tree: Any) -> Any | None:
        """Return a copy of a state tree that later steps do not change, or None if there is no memory for one.

        It is there until the next copy is made. All arrays lie in one piece of memory that is used again: fresh memory
        costs several times what copying does.
        """
        self.drain()
        needed = sum(_room(array) for array in _arrays(tree))
        if needed > len(self._arena):
            self._arena = np.empty(0, np.uint8)
            available = available_bytes()
            if available is not None and needed > 0.8 * available:
                return None
            spare = needed // 2 if available is None or 2 * needed < available else 0
            self._arena = np.empty(needed + spare, np.uint8)  # what is not touched takes no memory
        return self._put(tree, [0])

    def _put(self, tree: Any, position: list[int]) -> Any:
        if isinstance(tree, dict):
            return {key: self._put(part, position) for key, part in tree.items()}
        if isinstance(tree, list):
            return [self._put(part, position) for part in tree]
        if not isinstance(tree, np.ndarray):
            return tree
        place = self._arena[position[0] : position[0] + tree.nbytes].view(tree.dtype).reshape(tree.shape)
        np.copyto(place, tree)
        position[0] += _room(tree)
        return place


def _arrays(tree: Any) -> Iterator[np.ndarray]:
    if isinstance(tree, np.ndarray):
        yield tree
    for part in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _arrays(part)


def _room(array: np.ndarray) -> int:
    return -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT

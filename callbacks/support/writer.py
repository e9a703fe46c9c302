"""Writing files in a thread during training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from noterl.utils.memory import available_bytes

# Arrays in a copy begin at multiples of this, so that copying is fast.
_ALIGNMENT = 64


class Writer:
    """Runs jobs in a separate thread; each waits for the previous one, so files are written in order.

    An error of a job is raised by the next call of `write` or `wait`.

    Example:
    >>> from noterl.callbacks.support.writer import Writer
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
        """Wait for the previous job and start another.

        Args:
            job: called in the thread.
            undo: called in the caller's thread if the job has failed.

        Raises:
            BaseException: what the previous job raised; this one is not started then.
        """
        self.wait()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "noterl-writer")
        self._pending = self._pool.submit(job), undo

    def wait(self) -> None:
        """Wait until everything is written; raise the error of a failed job."""
        if self._pending is not None:
            (future, undo), self._pending = self._pending, None
            try:
                future.result()
            except BaseException:
                undo()
                raise

    def close(self) -> None:
        """Wait until everything is written, end the thread and release the memory; `write` starts again."""
        try:
            self.wait()
        finally:
            self._arena = np.empty(0, np.uint8)
            if self._pool is not None:
                self._pool.shutdown()
                self._pool = None

    def copy(self, tree: Any) -> Any | None:
        """Return a copy of a state tree, valid until the next one is made; None if it does not fit in memory.

        All arrays are in one block of memory, which is used again: fresh memory costs several times as much as copying.
        """
        self.wait()
        needed = sum(_aligned_size(array) for array in _arrays(tree))
        if needed > len(self._arena):
            self._arena = np.empty(0, np.uint8)
            available = available_bytes()
            if needed > 0.8 * available:
                return None
            spare = needed // 2 if 2 * needed < available else 0
            self._arena = np.empty(needed + spare, np.uint8)  # untouched pages take no memory
        return self._place(tree, [0])

    def _place(self, tree: Any, position: list[int]) -> Any:
        if isinstance(tree, dict):
            return {key: self._place(part, position) for key, part in tree.items()}
        if isinstance(tree, list):
            return [self._place(part, position) for part in tree]
        if not isinstance(tree, np.ndarray):
            return tree
        array = self._arena[position[0] : position[0] + tree.nbytes].view(tree.dtype).reshape(tree.shape)
        np.copyto(array, tree)
        position[0] += _aligned_size(tree)
        return array


def _arrays(tree: Any) -> Iterator[np.ndarray]:
    if isinstance(tree, np.ndarray):
        yield tree
    for part in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _arrays(part)


def _aligned_size(array: np.ndarray) -> int:
    return -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT

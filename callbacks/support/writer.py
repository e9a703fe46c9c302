"""Writing files, in the calling thread or in a background thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from noterl.callback import AgentView
from noterl.utils.memory import available_bytes

# Arrays in a copy begin at multiples of this number of bytes, so that copying is fast.
_ALIGNMENT = 64


class Writer:
    """Runs jobs in the calling thread or in a background thread, each after the previous one has ended.

    `Checkpoint` and `BackupAndRestore` write through a writer each.

    An error in the background thread is raised by the next call of `write`, `wait`, `detach` or `close`.

    Example:
    >>> from noterl.callbacks.support.writer import Writer
    >>> writer, written = Writer(), []
    >>> writer.write(lambda: written.append(1), background=True)
    >>> writer.close()
    >>> written
    [1]
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pending: tuple[Future[None], Callable[[], None]] | None = None
        self._arena = np.empty(0, np.uint8)

    def write(self, job: Callable[[], None], *, background: bool, undo: Callable[[], None] = lambda: None) -> None:
        """Wait for the previous job and start another.

        Args:
            job: the function that writes.
            background: whether to call the function in the background thread.
            undo: called in the calling thread if the job has failed in the background thread.

        Raises:
            BaseException: the error of the previous job, in which case this job is not started; or the error of this
                job, if `background` is False.
        """
        self.wait()
        if not background:
            job()
            return
        # One thread is enough, because a job starts after the previous one has ended.
        self._pool = self._pool or ThreadPoolExecutor(1, "noterl-writer")
        self._pending = self._pool.submit(job), undo

    def wait(self) -> None:
        """Wait until everything is written; raise the error of a failed job."""
        if self._pending is not None:
            future, undo = self._pending
            self._pending = None
            try:
                future.result()
            except BaseException:
                undo()
                raise

    def close(self) -> None:
        """Wait until everything is written, end the thread and release the memory; `write` may be called again."""
        try:
            self.wait()
        finally:
            self._arena = np.empty(0, np.uint8)
            if self._pool is not None:
                self._pool.shutdown()
                self._pool = None

    def detach(self, document: dict[str, Any], path: Path, agent: AgentView) -> bool:
        """Replace the replay memory in a document by a copy, because training changes the original.

        The copy is valid until the next call.

        Args:
            document: what `Agent.get_document` returned.
            path: where the document will be written.
            agent: shows a message if the copy does not fit in memory.

        Returns:
            Whether the document can be written in the background.
        """
        self.wait()
        replay = self._copy(document["state"]["replay"])
        if replay is None and document["state"]["replay"] is not None:
            agent.show_message(f"a copy of the replay memory does not fit in memory: writing {path} at once")
            return False
        document["state"]["replay"] = replay
        return True

    def _copy(self, tree: Any) -> Any | None:
        """Return a copy of a state tree; None if the copy does not fit in memory.

        All arrays share one block of memory, which is reused: allocating new memory takes several times as long as
        copying.
        """
        arrays = list(_arrays(tree))
        ends = np.cumsum([-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays], dtype=np.int64)
        needed = int(ends[-1]) if arrays else 0
        if needed > len(self._arena):
            # The old block is released first, so that its memory counts as available.
            self._arena = np.empty(0, np.uint8)
            available = available_bytes()
            # A fifth of the available memory stays free for training.
            if needed > 0.8 * available:
                return None
            # Room for a memory that still grows: a new allocation for each write would cost page faults.
            spare = needed // 2 if 2 * needed < available else 0
            self._arena = np.empty(needed + spare, np.uint8)  # untouched pages take no memory
        copies = {}
        for array, block in zip(arrays, np.split(self._arena, ends)[:-1], strict=True):
            copies[id(array)] = block[: array.nbytes].view(array.dtype).reshape(array.shape)
            np.copyto(copies[id(array)], array)
        # `deepcopy` takes the copies from its memo, and copies only the rest of the tree.
        return deepcopy(tree, copies)


def _arrays(tree: Any) -> Iterator[np.ndarray]:
    if isinstance(tree, np.ndarray):
        yield tree
    for part in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _arrays(part)

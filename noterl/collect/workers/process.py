"""A worker process as the learner sees it: the start, the messages, and the rows that the worker has returned."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from multiprocessing import Pipe
from typing import Any, Protocol

import numpy as np

from noterl.collect.workers import platforms
from noterl.collect.workers.pickling import dumps
from noterl.collect.workers.shared_memory import Ring, SharedMemory
from noterl.collect.workers.transitions import Row, RowReader
from noterl.collect.workers.worker import ENTERED, Job

Array = np.ndarray[Any, Any]

# The new interpreter has the import path of this one, and imports nothing but the worker. The script is not imported
# again, so it needs no `if __name__ == "__main__":`.
_CODE = (
    "import json, sys; sys.path[:], memory, pipe = json.loads(sys.argv[1]); "
    "from noterl.collect.workers.worker import main; main(memory, pipe)"
)

# Several workers share the cores, so that threads of one would take the time of another.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Inbox:
    """The rounds of one worker that the loop has not consumed: the oldest in chunks, then those in the ring.

    Args:
        ring: of the worker.
        count: number of the worker's lanes, the rows of one round.
        reader: reads rows; None if `round` is not called.

    Attributes:
        current: the rows of the oldest round, once `round` has returned the rows, until the round is
            released or copied.
    """

    def __init__(self, ring: Ring, count: int, reader: RowReader | None = None) -> None:
        self.ring: Ring = ring
        self.count: int = count
        self._reader = reader
        self._chunks: deque[dict[str, Array]] = deque()
        self._first = 0  # the first row of the first chunk that was not released
        self._read: list[Row] = []  # rows that were read together
        self._released = 0  # how many of them were released
        self.current: list[Row] = []

    @property
    def rows(self) -> int:
        """Number of rows that were not released."""
        if not self._chunks:
            return self.ring.unread
        return sum(len(chunk["reward"]) for chunk in self._chunks) - self._first + self.ring.unread

    def front(self) -> tuple[Mapping[str, Array], int]:
        """Return the fields that hold the oldest round, and the first row of the round."""
        if self._chunks:
            return self._chunks[0], self._first
        return self.ring.fields, self.ring.first()

    def round(self) -> list[Row]:
        """Set `current` to the rows of the oldest round, `[count]`, and return the rows; there must be a round."""
        if self._released == len(self._read):
            assert self._reader is not None
            fields, first = self.front()
            # All rows of the first chunk, or of the ring up to its end: `RowReader` is faster with many rows.
            stop = len(fields["reward"]) if self._chunks else min(first + self.ring.unread, self.ring.capacity)
            self._read = self._reader.read(fields, slice(first, stop))
            self._released = 0
        self.current = self._read[self._released : self._released + self.count]
        return self.current

    def release(self) -> None:
        """Remove the oldest round."""
        self.current = []
        self._released = min(self._released + self.count, len(self._read))
        if not self._chunks:
            self.ring.release(self.count)
            return
        self._first += self.count
        if self._first == len(self._chunks[0]["reward"]):
            self._chunks.popleft()
            self._first = 0

    def keep(self) -> None:
        """Copy all rows out of the ring, so that the worker can go on."""
        rows = self.ring.published - self.ring.released
        if rows:
            self._chunks.append(self.ring.copy(self.ring.released, rows))
            self.ring.release(rows)
            # Rows that were read are views of the ring.
            self._read = []
            self._released = 0
            self.current = []

    def begun(self) -> Array:
        """Return how often each lane was reset in the rows, `[count]`; all rows are copied out of the ring."""
        self.keep()
        return self.get_state()["begun"].reshape(-1, self.count).sum(axis=0)

    def ended(self) -> Array:
        """Return in which lanes an episode ends in the rows, bool `[count]`; all rows are copied out of the ring."""
        self.keep()
        rows = self.get_state()
        return np.asarray((rows["terminated"] | rows["truncated"]).reshape(-1, self.count).any(axis=0))

    def get_state(self) -> dict[str, Array]:
        """Return all rows that were not released; the ring must be empty."""
        # Without chunks, the rows are empty arrays with the shapes and dtypes of the ring.
        empty = {name: field[:0] for name, field in self.ring.fields.items()}
        rows = {name: np.concatenate([empty[name], *(chunk[name] for chunk in self._chunks)]) for name in empty}
        return {name: field[self._first :] for name, field in rows.items()}

    def set_state(self, rows: Mapping[str, Array]) -> None:
        """Put saved rows in front of the rows in the ring; fields that the saved rows lack are zeros."""
        count = len(rows["reward"])
        if count:
            fields = self.ring.fields.items()
            zeros = {name: np.zeros((count, *field.shape[1:]), field.dtype) for name, field in fields}
            self._chunks.appendleft({name: rows.get(name, array) for name, array in zeros.items()})


class WorkerHandle(ABC):
    """A running worker, and what the worker has answered.

    Args:
        job: what the worker does.
        control: the worker's control array; see `noterl.collect.workers.worker`.

    Attributes:
        job: what the worker does.
        pipe: receives answers.
        running: which of the worker's lanes have an episode in progress at the start; None until the worker is ready.
        state: the answer to "send_state"; None before.
        answer: the answer to the last "call": the number of the call, and the results or the error.
    """

    pipe: Any

    def __init__(self, job: Job, control: Array) -> None:
        self.job: Job = job
        self._control = control
        self.running: list[bool] | None = None
        self.state: dict[str, Any] | None = None
        self.answer: tuple[int, Any] = (0, None)

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a command; raises OSError if the worker has ended."""
        # `Connection.send` keeps a view of a `BytesIO`, which Python 3.13 reports if an exception holds both.
        self.pipe.send_bytes(pickle.dumps(message))

    def seconds_inside(self) -> float:
        """Return for how many seconds the worker has been inside the environment; 0 outside."""
        entered = int(self._control[ENTERED])
        return (time.monotonic_ns() - entered) / 1e9 if entered else 0.0

    @abstractmethod
    def exit_status(self) -> str:
        """Describe how the worker has ended; wait a moment for the end."""

    def ask_to_close(self) -> None:
        """Send the command to close the environments and end."""
        with contextlib.suppress(OSError):
            self.send(("close",))

    @abstractmethod
    def has_ended(self) -> bool:
        """Return whether the worker has ended."""

    @abstractmethod
    def close_after_end(self) -> None:
        """If the worker has ended, close the worker's end of the pipe, so that this process notices the end."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the worker; nothing that the worker has not yet returned is used."""


class Launcher(Protocol):
    """Starts the workers of a `fit`."""

    def launch(self, job: Job) -> WorkerHandle:
        """Start a worker without waiting until the worker is ready.

        Raises:
            ValueError: if the job cannot be sent to another process.
        """

    def close(self) -> None:
        """Release what the workers needed; the workers have ended."""


class ProcessLauncher:
    """Starts worker processes on this machine.

    Args:
        memory: shared with the processes.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory

    def launch(self, job: Job) -> WorkerHandle:
        """Start a process."""
        return WorkerProcess(job, self._memory)

    def close(self) -> None:
        """Do nothing: the owner of the memory closes it."""


class WorkerProcess(WorkerHandle):
    """A running worker process.

    Args:
        job: what the worker does.
        memory: shared with the process.
    """

    def __init__(self, job: Job, memory: SharedMemory) -> None:
        super().__init__(job, memory.arrays[f"control/{job.index}"])
        pickled = dumps(job)
        self.pipe, worker_pipe = Pipe()
        try:
            descriptor = worker_pipe.fileno()
            paths = [path for path in sys.path if isinstance(path, str)]  # Python ignores others
            # Without -P, Python would import the modules of `_CODE` from the working folder.
            command = [sys.executable, "-P", "-c", _CODE, json.dumps([paths, memory.handle, descriptor])]
            variables = {**os.environ, **dict.fromkeys(_THREADS, "1")}
            self._has_group = True
            self._process = platforms.start(command, memory.handle, descriptor, stdin=subprocess.DEVNULL, env=variables)
        except BaseException:
            self.pipe.close()
            raise
        finally:
            worker_pipe.close()
        with contextlib.suppress(OSError):  # if it has ended already, the next receive reports it
            self.pipe.send_bytes(pickled)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def exit_status(self) -> str:
        """Describe how the process has ended; wait a moment for the end."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with the exit status {code}"

    def has_ended(self) -> bool:
        """Return whether the process has ended; if so, kill the processes that the environments have started."""
        if self._process.poll() is None:
            return False
        self._end_group()
        return True

    def close_after_end(self) -> None:
        """If the process has ended, kill the processes that environments have forked, which hold the pipe too."""
        self.has_ended()

    def kill(self) -> None:
        """Kill the process, and the processes that the environments have started."""
        self._end_group()
        self._process.kill()
        self._process.wait()
        self.pipe.close()

    def _end_group(self) -> None:
        """Kill the group of the process, once: later, another group could have the number."""
        if self._has_group:
            self._has_group = False
            platforms.kill_group(self.pid)

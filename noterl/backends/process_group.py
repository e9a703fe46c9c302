"""The processes of a run, which exchange messages over the collective operations of a framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np


class ConnectionLost(RuntimeError):
    """Raised if an operation over all processes fails; the message holds the error of the other process, if known."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, for another message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


class ProcessGroup(ABC):
    """The processes of a run, as seen by one process.

    Attributes:
        rank: the number of this process.
        count: the number of processes.
    """

    rank: int
    count: int

    @abstractmethod
    def exchange(self, own: np.ndarray) -> np.ndarray:
        """Return the int32 vectors `[n]` of all processes, `[processes, n]`; n is the same in all processes.

        Raises:
            ConnectionLost: if another process has failed.
        """

    def agree(self, values: Sequence[float]) -> np.ndarray:
        """Return the values of all processes, `[processes, n]` float64."""
        # Sent as int32, the dtype of `exchange`.
        bits = self.exchange(np.asarray(values, np.float64).view(np.int32))
        return np.array(bits, order="C").view(np.float64)

    def gather(self, message: bytes) -> list[bytes]:
        """Return the messages of all processes, by rank."""
        lengths = self.agree([float(len(message))])[:, 0].astype(int)
        longest = int(lengths.max())
        if not longest:
            return [b""] * self.count
        size = max(64, 1 << (longest - 1).bit_length())  # few sizes, because TensorFlow compiles each
        rows = self.exchange(np.frombuffer(message.ljust(size, b"\0"), np.int32))
        return [row.tobytes()[:length] for row, length in zip(rows, lengths, strict=True)]


def settle(future: Future[Any], function: Callable[[], Any]) -> None:
    """Call a function, and set the result or the error of a future, for a thread that waits."""
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)

"""The number of threads of updates on the CPU: one for small products, and one beside programs that use the cores.

For small products, a second thread saves little time. If another program uses one of the cores, the threads wait for
each other, and an update takes three to four times as long. One thread also leaves cores to worker processes.
Convolutions use all threads, because the last bits of the gradients depend on the number.
"""

from __future__ import annotations

import math
import os
import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from noterl.utils.cores import available_cores

# An update whose largest product takes fewer floating-point operations uses one thread. DQN with 256x256 weights and a
# batch of 64 needs 8 million: on two cores, one thread takes 0.9 to 1.2 times as long as two. SAC with a batch of 256
# needs 34 million, and one thread takes 1.2 times as long. See benchmarks/threads.py.
SMALL_PRODUCT = 2**24

# Of each `PERIOD` groups of updates, the first runs on one thread and the second on all; groups of fewer than `PROBE`
# updates are taken together. Until the next such pair, updates run on one thread if all took longer. On two quiet
# cores, they take 0.6 to 0.9 times as long as one; beside a busy program 1.05 to 1.6 times, and now and then ten times.
PERIOD = 128
PROBE = 8

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class _PythonThread(threading.local):
    """The state of a Python thread: torch keeps a number of threads for each Python thread."""

    is_checked = False


class _Process:
    """The state of all Python threads together.

    Attributes:
        number: torch's number of threads outside of updates, in the Python thread that updated last.
        was_limited: whether an update has had another number.
        is_crowded: whether the threads of the updates that were timed last waited for cores.
    """

    number: int | None = None
    was_limited = False
    is_crowded = False


_python_thread = _PythonThread()
_process = _Process()


class UpdateThreads:
    """Chooses the number of threads of updates.

    Updates of large products are timed at regular intervals. The choice depends only on the numbers of the updates,
    so a resumed run has the same number of threads in each update if the machine is as busy as before.

    Args:
        variables: all variables of the updates.

    Attributes:
        times: receives the seconds of each update of the current group; None if updates are not timed.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        shapes = [tuple(variable.shape) for variable in variables]
        is_dense = all(
            len(shape) <= 2 and variable.value.device.type == "cpu"
            for shape, variable in zip(shapes, variables, strict=True)
        )
        self._largest = max(map(math.prod, shapes), default=0) if is_dense else math.inf  # weights of a layer
        self._times: tuple[list[float], list[float]] = ([], [])  # seconds of updates with one thread and with all
        self.times: list[float] | None = None

    def number(self, batch_size: int, first: int | None = None, count: int = 1) -> int:
        """Return the number for updates on so many transitions; the user's choice if there is one.

        Called before each group of updates. `times` is set to a list if the group is to be timed.

        Args:
            batch_size: transitions of an update.
            first: the number of the first update of a group, which may be timed; None for the current number.
            count: updates of the group.
        """
        self.times = None
        current = number_of_python_thread()
        if _is_chosen(current) or self._largest == math.inf:
            return current
        # A product of `[B, n]` and `[n, m]` takes 2 B n m operations.
        if 2 * batch_size * self._largest < SMALL_PRODUCT:
            return 1
        turn = PERIOD if first is None else first // max(count, PROBE) % PERIOD
        # The first group of a period runs on one thread, the second on all; both are timed.
        if turn < 2:
            self.times = self._times[turn]
            return (1, current)[turn]
        if all(self._times):
            alone, together = map(_typical, self._times)
            _process.is_crowded = together > alone
            self._times = ([], [])
        return 1 if _process.is_crowded else current


def _typical(times: list[float]) -> float:
    """Return the mean without the largest quarter: compilation, and what stopped the whole process."""
    return statistics.fmean(sorted(times)[: math.ceil(0.75 * len(times))])


def _is_chosen(current: int) -> bool:
    """Return whether the user has chosen this number of threads."""
    return any(name in os.environ for name in _VARIABLES) or current not in _defaults()


def update_threads(variables: Sequence[Any], batch_size: int) -> int:
    """Return the number of threads of an update with this batch size, on the CPU."""
    return UpdateThreads(variables).number(batch_size)


def number_of_python_thread() -> int:
    """Return torch's number of threads in this Python thread, outside of `limited`.

    A Python thread that first calls torch receives the number that was set last in any Python thread. If that number is
    the limit of an update in progress, the number outside of updates is set instead.
    """
    current = torch.get_num_threads()
    if not _python_thread.is_checked:
        _python_thread.is_checked = True
        # Read after torch's number: `limited` changes them in the other order.
        if current == 1 and _process.was_limited and _process.number is not None:
            current = _process.number
            torch.set_num_threads(current)
    return current


@contextmanager
def limited(count: int) -> Iterator[None]:
    """Let torch use this number of threads inside the context."""
    before = _process.number = number_of_python_thread()
    if count == before:
        yield
        return
    _process.was_limited = True
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _defaults() -> set[int | None]:
    """Return the numbers of threads that torch takes if the user sets none."""
    import psutil

    return {available_cores(), psutil.cpu_count(), psutil.cpu_count(logical=False)}

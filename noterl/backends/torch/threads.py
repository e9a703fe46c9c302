"""The number of threads of an update: one for small products.

On a quiet machine, a second thread saves little of their time. If another program uses one of the cores, the threads
wait for each other, and an update takes four times as long. One thread also leaves cores to worker processes.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import psutil
import torch

from noterl.utils.cores import available_cores

# An update whose largest product takes fewer floating-point operations uses one thread. DQN with 256x256 weights and a
# batch of 64 needs 8 million: on two cores, one thread takes 0.9 to 1.2 times as long as two. SAC with a batch of 256
# needs 34 million, and one thread takes 1.2 times as long. See benchmarks/threads.py.
SMALL_PRODUCT = 2**24

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class _PythonThread(threading.local):
    """The state of a Python thread: torch keeps a number of threads for each of them."""

    is_checked = False


class _Process:
    """The state of all Python threads together.

    Attributes:
        number: torch's number of threads outside of updates, in the Python thread that updated last.
        was_limited: whether an update has had another number.
    """

    number: int | None = None
    was_limited = False


_python_thread, _process = _PythonThread(), _Process()


class UpdateThreads:
    """Chooses the number of threads of updates.

    Args:
        variables: all variables of the updates.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        shapes = [tuple(variable.shape) for variable in variables]
        is_dense = all(
            len(shape) <= 2 and each.value.device.type == "cpu" for shape, each in zip(shapes, variables, strict=True)
        )
        self._largest = max(map(math.prod, shapes), default=0) if is_dense else math.inf  # weights of a layer

    def number(self, batch_size: int) -> int:
        """Return the number of threads of an update on so many transitions; the user's choice if there is one."""
        current = number_of_python_thread()
        is_chosen = any(name in os.environ for name in _VARIABLES) or current not in _defaults()
        return current if is_chosen or 2 * batch_size * self._largest >= SMALL_PRODUCT else 1


def update_threads(variables: Sequence[Any], batch_size: int) -> int:
    """Return the number of threads of an update with this batch size, on the CPU."""
    return UpdateThreads(variables).number(batch_size)


def number_of_python_thread() -> int:
    """Return torch's number of threads in this Python thread, outside of `limited`.

    When a Python thread first calls torch, it receives the number that was set last in any Python thread. If that is
    the limit of an update in progress, it is replaced with the number outside of updates.
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
    return {available_cores(), psutil.cpu_count(), psutil.cpu_count(logical=False)}

"""The number of threads of an update: one for small products.

On a quiet machine, a second thread saves little of their time. If another program uses one of the cores, the threads
wait for each other, and an update takes four times as long. One thread also leaves cores to worker processes.
"""

from __future__ import annotations

import math
import os
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
        current = torch.get_num_threads()
        is_chosen = any(name in os.environ for name in _VARIABLES) or current not in _defaults()
        return current if is_chosen or 2 * batch_size * self._largest >= SMALL_PRODUCT else 1


def update_threads(variables: Sequence[Any], batch_size: int) -> int:
    """Return the number of threads of an update with this batch size, on the CPU."""
    return UpdateThreads(variables).number(batch_size)


@contextmanager
def limited(count: int) -> Iterator[None]:
    """Let torch use this number of threads inside the context."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _defaults() -> set[int | None]:
    """Return the numbers of threads that torch takes if the user sets none."""
    return {available_cores(), psutil.cpu_count(), psutil.cpu_count(logical=False)}

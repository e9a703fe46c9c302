"""The processor cores of this process."""

from __future__ import annotations

import functools
import os
from contextlib import AbstractContextManager
from typing import Any


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def one_blas_thread() -> AbstractContextManager[Any]:
    """Return a context in which products of NumPy matrices use one thread.

    The threads of OpenBLAS wait for each other actively, so beside other load a small product takes many times as long.
    The context takes 16 µs, which is too long for a single step of an environment.
    """
    return _blas().limit(limits=1)


@functools.cache
def _blas() -> Any:
    """Return what limits the BLAS libraries of this process; the search takes a millisecond."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")

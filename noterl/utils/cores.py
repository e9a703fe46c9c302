"""The processor cores of this process."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Inside the context, products of NumPy matrices use one thread.

    The threads of OpenBLAS wait for each other actively, so beside other load a small product takes many times as long.
    The context takes 16 µs, which is too long for a single step of an environment.
    """
    with _blas().limit(limits=1):
        yield


@functools.cache
def _blas() -> Any:
    """Return what limits the BLAS libraries of this process; the search takes a millisecond."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")

"""Fixtures of the micro benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def timed(pytestconfig: pytest.Config) -> bool:
    """Return whether times are measured (`make bench`); otherwise each benchmark runs once, with small sizes."""
    return pytestconfig.getoption("benchmark_enable") or not pytestconfig.getoption("benchmark_disable")


@pytest.fixture(scope="session")
def size(timed: bool) -> Callable[[int, int], int]:
    """Return a function of a size to measure with and a small size for one run without timing."""
    return lambda measured, small: measured if timed else small


@pytest.fixture
def record_median(benchmark: Any) -> Callable[..., None]:
    """Return a function that stores the median time, divided by a count, under a name; nothing without timing."""

    def record(name: str, count: int = 1, unit: float = 1e-6) -> None:
        if benchmark.stats is not None:
            benchmark.extra_info[name] = benchmark.stats.stats.median / count / unit

    return record

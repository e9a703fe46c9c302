"""Fixtures of the micro benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture


@pytest.fixture(scope="session")
def timed(pytestconfig: pytest.Config) -> bool:
    """Return whether times are measured (`make bench`); otherwise two rounds run, with small sizes."""
    return pytestconfig.getoption("benchmark_enable") or not pytestconfig.getoption("benchmark_disable")


@pytest.fixture(scope="session")
def size(timed: bool) -> Callable[[int, int], int]:
    """Return a function of a size to measure with and a small size for rounds without timing."""
    return lambda measured, small: measured if timed else small


@pytest.fixture(autouse=True)
def add_round(timed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without timing, run a round before the only one of pytest-benchmark, because some faults need a second round."""
    if timed:
        return
    call, pedantic = BenchmarkFixture.__call__, BenchmarkFixture.pedantic

    def call_twice(benchmark: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        function(*args, **kwargs)
        return call(benchmark, function, *args, **kwargs)

    def pedantic_twice(
        benchmark: Any,
        target: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        setup: Callable[[], Any] | None = None,
        **options: Any,
    ) -> Any:
        own_args, own_kwargs = (setup() if setup else None) or (args, kwargs or {})
        target(*own_args, **own_kwargs)
        return pedantic(benchmark, target, args, kwargs, setup, **options)

    monkeypatch.setattr(BenchmarkFixture, "__call__", call_twice)
    monkeypatch.setattr(BenchmarkFixture, "pedantic", pedantic_twice)


@pytest.fixture
def time_pairs(benchmark: Any) -> Callable[..., list[tuple[float, float]]]:
    """Return a function that times a function and, before each round, one to compare with; no pairs without timing.

    On a machine whose other programs slow down everything, the median of the ratios of such pairs hardly changes.
    Differences, and ratios of the shortest times, change several times over.
    """

    def time_pairs(function: Callable[[], Any], bare: Callable[[], Any], rounds: int) -> list[tuple[float, float]]:
        bare_times: list[float] = []

        def time_bare() -> None:
            start = time.perf_counter()
            bare()
            bare_times.append(time.perf_counter() - start)

        benchmark.pedantic(function, setup=time_bare, rounds=rounds)
        return [] if benchmark.stats is None else list(zip(benchmark.stats.stats.data, bare_times, strict=True))

    return time_pairs


@pytest.fixture
def record_median(benchmark: Any) -> Callable[..., None]:
    """Return a function that stores the median time, divided by a count, under a name; nothing without timing."""

    def record(name: str, count: int = 1, unit: float = 1e-6) -> None:
        if benchmark.stats is not None:
            benchmark.extra_info[name] = benchmark.stats.stats.median / count / unit

    return record

"""`suggest_workers`: how many worker processes pay off, by measurement."""

from __future__ import annotations

import os
from time import perf_counter
from typing import Any, NamedTuple

from noterl.callback import Callback
from noterl.utils.checks import positive
from noterl.utils.memory import available_bytes

# Seconds per transition that workers add to the learner, estimated: waiting, and reading the ring.
TRANSFER = 2e-5
# Bytes that one worker adds, without those of its environment: the interpreter, NumPy and gymnasium.
WORKER_BYTES = 60 * 2**20
# Share of the memory that may be used, and the gain in speed that another worker must bring.
MEMORY_SHARE, LEAST_GAIN = 0.75, 1.05


class Split(NamedTuple):
    """Seconds per transition without workers: in the environment and acting, and in the learner."""

    collecting: float
    learning: float


class _Stop(Callback):
    """Ends training after some seconds, or after the first update if `seconds` is None; at the latest after `limit`."""

    stops_training = True

    def __init__(self, seconds: float | None, limit: float) -> None:
        self._seconds, self._limit = seconds, limit

    def on_train_begin(self, logs: dict[str, Any]) -> None:
        """Start the clock."""
        self._started, self._updates = perf_counter(), self.agent.updates

    def on_step_end(self) -> None:
        """End training if the time is over."""
        passed = perf_counter() - self._started
        has_updated = self._seconds is None and self.agent.updates > self._updates
        if has_updated or passed > (self._limit if self._seconds is None else self._seconds):
            self.agent.stop("measured")


def suggest_workers(agent: Any, env: Any = None, memory: float | None = None, *, seconds: float = 2.0) -> int:
    """Return the number of workers for which another one would not make `fit` noticeably faster; print the reasons.

    The agent is trained for a few seconds, with its settings, and then restored exactly. The time per transition with P
    workers is estimated as `collecting / P + learning + transfer`. The number is limited by the cores and the memory,
    so for an environment that waits, such as a remote simulator, more workers may pay off.

    Args:
        agent: the agent, compiled as for the training.
        env: the environment to train in, if it is not that of the agent.
        memory: bytes that the workers may use; by default what this machine has available.
        seconds: how long to measure.

    Returns:
        The number of workers; 0 if stepping the environments in this process is as fast.

    Raises:
        ValueError: if `memory` or `seconds` is not positive.
    """
    positive("seconds", seconds)
    limit = available_bytes() if memory is None else positive("memory", memory)
    measured = agent.new_environment() if env is None else env
    try:
        split = _measure(agent, measured, seconds)
    finally:
        if env is None:
            measured.close()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    by_memory = int(limit * MEMORY_SHARE // WORKER_BYTES)
    workers = best_number(split, min(cores, by_memory))
    print(
        f"a transition takes {split.collecting * 1e6:,.0f} µs to collect, and {split.learning * 1e6:,.0f} µs to store "
        f"and to learn from; {cores} cores; memory for {by_memory:,} workers of {WORKER_BYTES / 2**20:.0f} MiB.\n"
        f"With {workers} workers: about {speedup(split, workers):.2f} times as fast as without."
    )
    return workers


def _measure(agent: Any, env: Any, seconds: float) -> Split:
    """Train for some seconds after the first update, which includes the compilation, and restore the agent."""
    with agent.preserved():
        agent.fit(env, callbacks=[_Stop(None, 10 * seconds)], verbose=0)
        before = agent.steps
        clock = agent.fit(env, callbacks=[_Stop(seconds, seconds)], verbose=0).time_split
        steps = max(agent.steps - before, 1)
    return Split(
        (clock["environment"] + clock["act"]) / steps, (clock["store"] + clock["sample"] + clock["learn"]) / steps
    )


def speedup(split: Split, workers: int) -> float:
    """Return the estimated speed with workers, relative to that without."""
    if workers == 0:
        return 1.0
    return sum(split) / (split.collecting / workers + split.learning + TRANSFER)


def best_number(split: Split, most: int) -> int:
    """Return the smallest number of workers up to `most` after which a further one does not bring `LEAST_GAIN`."""
    fastest = max(speedup(split, workers) for workers in range(most + 1))
    return next(workers for workers in range(most + 1) if speedup(split, workers) * LEAST_GAIN >= fastest)

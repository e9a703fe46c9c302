"""Gathering batches while the ones before them are learned from.

Owns: the thread that does so, and that nobody notices but the clock. Only what has been drawn is gathered ahead, within
one group of updates: what was drawn does not depend on the updates in between, so nothing changes but the time it
takes, and there is nothing to save.

When it pays: where updates run on another device and gathering is a good part of the time. Eight updates of 5 ms there,
on 32 stacks of four 84x84 frames each, took 48 ms in turn and 43 ms ahead, which is the time of the updates and of the
first batch (two cores, the device a sleep; benchmarks/replay.py, and its README for the intervals). On the cores that
gather it saves as much if one of them is idle, and nothing if all are busy. When not: small observations are gathered
in less time than the thread takes (1 to 6 % of a group's time are lost); and a group that is one compiled call
(`steps_per_execution="auto"`) has nothing to gather ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Part = TypeVar("Part")
Gathered = TypeVar("Gathered")


@contextmanager
def ahead(gather: Callable[[Part], Gathered], parts: Sequence[Part], count: int) -> Iterator[Iterator[Gathered]]:
    """Give an iterator over what `gather` returns for each part, with up to `count` of them gathered ahead.

    The thread has ended when the context ends, whatever ended it.
    """
    if not count or len(parts) < 2:
        yield map(gather, parts)
        return
    with ThreadPoolExecutor(1, "noterl-prefetch") as pool:
        try:
            yield _results(pool, gather, parts, count)
        finally:
            pool.shutdown(cancel_futures=True)


def _results(
    pool: ThreadPoolExecutor, gather: Callable[[Part], Gathered], parts: Sequence[Part], count: int
) -> Iterator[Gathered]:
    waiting: deque[Future[Gathered]] = deque()
    for part in parts:
        waiting.append(pool.submit(gather, part))
        if len(waiting) > count:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()

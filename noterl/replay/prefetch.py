"""Gathering batches while the ones before them are learned from.

Owns: the thread that does so, and that nobody notices but the clock. Only what has been drawn is gathered ahead, within
one group of updates: what was drawn does not depend on the updates in between, so nothing changes but the time it
takes, and there is nothing to save.

When it pays: where updates run on another device and gathering is a good part of the time. Eight updates of 2 ms there,
on 32 stacks of four 84x84 frames each, took 25.4 ms in turn and 17.9 ms ahead (of 5 ms each: 51.4 and 41.8; the least
of 20 rounds, two cores, the device a sleep; benchmarks/micro/test_replay.py). When not: updates on the same cores gain
nothing and lose 6 to 33 % to the thread (medians of a busy machine); small observations are gathered in 1 to 4 % of a
group's time; and a group that is one compiled call (`steps_per_execution="auto"`) has nothing to gather ahead.
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

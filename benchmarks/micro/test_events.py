"""What one event costs the loop: nothing to speak of where nobody listens, and little more than the listener else."""

from __future__ import annotations

import timeit
from types import SimpleNamespace
from typing import Any

from noterl.callback import Callback, CallbackList
from noterl.training.loop import Loop

TIMES = 1_000


class Deaf(Callback):
    """Overrides nothing."""


class Listener(Callback):
    """Hears the end of a gradient update and does nothing about it."""

    def on_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        pass


def loop_of(*callbacks: Callback) -> Loop:
    agent = SimpleNamespace(
        lanes=SimpleNamespace(ledger=SimpleNamespace(over=[])),
        episodes=0,
        steps=0,
        acting=SimpleNamespace(stale=False),
        store=None,
        drawn_from=None,
        on_policy=None,
    )
    events = CallbackList(callbacks).bind()
    return Loop(agent, events, live=False, episodes=None, steps=1, history=SimpleNamespace())


def fire(loop: Loop) -> None:
    heard, logs = loop.events.on_batch_end, {}
    for _ in range(TIMES):
        loop._fire(heard, 0, logs)


def skip(loop: Loop) -> None:
    for _ in range(TIMES):
        if loop.events.on_batch_end:
            loop._fire(loop.events.on_batch_end, 0, {})


def microseconds(benchmark: Any) -> float:
    return benchmark.stats.stats.min / TIMES * 1e6


def test_an_event_nobody_hears(benchmark: Any) -> None:
    benchmark(fire, loop_of(*(Deaf() for _ in range(8))))
    assert microseconds(benchmark) <= 0.1


def test_an_event_nobody_hears_is_an_if(benchmark: Any) -> None:
    benchmark(skip, loop_of(*(Deaf() for _ in range(8))))
    empty = min(timeit.repeat("for _ in times: pass", globals={"times": range(TIMES)}, number=100, repeat=20)) / 100
    assert benchmark.stats.stats.min <= 3 * empty


def test_an_event_one_of_eight_hears(benchmark: Any) -> None:
    listener = Listener()
    benchmark(fire, loop_of(*(Deaf() for _ in range(7)), listener))
    own = min(timeit.repeat(lambda: listener.on_batch_end(0, None), number=TIMES, repeat=100)) / TIMES * 1e6
    assert microseconds(benchmark) - own <= 0.3

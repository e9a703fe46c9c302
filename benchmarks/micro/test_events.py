"""The cost of one event in the training loop.

The bars: without a handler, 2 calls of an empty method, and 4 empty rounds of a loop where the loop asks first whether
there are handlers (a call takes 5); with a handler that does nothing, 8 direct calls of it. The ratios are 1.1
(0.06 µs), 2.4 to 3.0, and 3.5 to 3.8 (0.29 µs) on an Intel Xeon or 6.4 to 7.4 (0.38 µs) on an AMD EPYC. The event reads
the clock twice and makes two calls with `*args`, which Python does not inline; a direct call is inlined, and takes
0.06 µs on the second processor.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

import noterl
from noterl.callback import Handlers
from noterl.training.loop import Loop

TIMES = 1_000


class Silent(noterl.Callback):
    """Overrides no event."""


class Handler(noterl.Callback):
    """Handles the end of a gradient update and does nothing."""

    def on_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        pass


@pytest.fixture
def make_loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that returns the loop which `fit` builds for callbacks, without running it."""

    def make_loop(*callbacks: noterl.Callback) -> Loop:
        loops: list[Loop] = []
        monkeypatch.setattr(Loop, "run", lambda loop: loops.append(loop))
        agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=0)
        agent.fit(steps=1, callbacks=callbacks, verbose=0)
        return loops[0]

    return make_loop


class Bare:
    """Has a method with the arguments of `Loop.fire` that does nothing."""

    def fire(self, handlers: Handlers, *args: Any) -> None:
        pass


def fire(loop: Any, handlers: Handlers) -> None:
    logs: dict[str, Any] = {}
    for _ in range(TIMES):
        loop.fire(handlers, 0, logs)


def skip(loop: Loop) -> None:
    for _ in range(TIMES):
        if loop.events.on_batch_end:
            loop.fire(loop.events.on_batch_end, 0, {})


def repeat_nothing() -> None:
    for _ in range(TIMES):
        pass


def call(handler: Handler) -> None:
    logs: dict[str, Any] = {}
    for _ in range(TIMES):
        handler.on_batch_end(0, logs)


@pytest.fixture
def check_ratio(benchmark: Any, time_pairs: Any) -> Any:
    """Return a function that checks how many times as long as another function one takes."""

    def check_ratio(function: Any, bare: Any, most: float) -> None:
        pairs = time_pairs(function, bare, rounds=1_000)
        if pairs:
            benchmark.extra_info["microseconds of an event"] = benchmark.stats.stats.min / TIMES * 1e6
            benchmark.extra_info["ratio"] = median(seconds / bare_seconds for seconds, bare_seconds in pairs)
            assert benchmark.extra_info["ratio"] <= most

    return check_ratio


def test_event_without_handlers(make_loop: Any, check_ratio: Any) -> None:
    loop = make_loop(*(Silent() for _ in range(8)))
    assert loop.events.on_batch_end == ()
    check_ratio(lambda: fire(loop, ()), lambda: fire(Bare(), ()), most=2)


def test_event_without_handlers_costs_an_if(make_loop: Any, check_ratio: Any) -> None:
    loop = make_loop(*(Silent() for _ in range(8)))
    check_ratio(lambda: skip(loop), repeat_nothing, most=4)


def test_event_with_one_handler(make_loop: Any, check_ratio: Any) -> None:
    handler = Handler()
    loop = make_loop(*(Silent() for _ in range(7)), handler)
    assert loop.events.on_batch_end == (handler.on_batch_end,)
    check_ratio(lambda: fire(loop, loop.events.on_batch_end), lambda: call(handler), most=8)


def test_loop_calls_the_handlers_of_each_event(make_loop: Any) -> None:
    """The measured function is the one that calls handlers."""
    calls: list[tuple[int, dict[str, Any]]] = []
    handler = Handler()
    handler.on_batch_end = lambda batch, logs: calls.append((batch, logs))  # type: ignore[method-assign]
    loop = make_loop(Silent(), handler)
    fire(loop, loop.events.on_batch_end)
    assert calls == [(0, {})] * TIMES

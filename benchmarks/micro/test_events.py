"""The cost of one event in the training loop: at most 0.1 µs without a handler and 0.3 µs with one."""

from __future__ import annotations

import timeit
from typing import Any

import pytest

import noterl
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


def fire(loop: Loop) -> None:
    handlers, logs = loop.events.on_batch_end, {}
    for _ in range(TIMES):
        loop._fire(handlers, 0, logs)


def skip(loop: Loop) -> None:
    for _ in range(TIMES):
        if loop.events.on_batch_end:
            loop._fire(loop.events.on_batch_end, 0, {})


def microseconds(benchmark: Any) -> float:
    """Return the shortest time of one event."""
    return benchmark.stats.stats.min / TIMES * 1e6


def test_event_without_handlers(benchmark: Any, make_loop: Any, timed: bool) -> None:
    loop = make_loop(*(Silent() for _ in range(8)))
    assert loop.events.on_batch_end == ()
    benchmark(fire, loop)
    assert not timed or microseconds(benchmark) <= 0.1


def test_event_without_handlers_costs_an_if(benchmark: Any, make_loop: Any, timed: bool) -> None:
    benchmark(skip, make_loop(*(Silent() for _ in range(8))))
    empty = min(timeit.repeat("for _ in times: pass", globals={"times": range(TIMES)}, number=100, repeat=20)) / 100
    assert not timed or benchmark.stats.stats.min <= 3 * empty


def test_event_with_one_handler(benchmark: Any, make_loop: Any, timed: bool) -> None:
    handler = Handler()
    loop = make_loop(*(Silent() for _ in range(7)), handler)
    assert loop.events.on_batch_end == (handler.on_batch_end,)
    benchmark(fire, loop)
    own = min(timeit.repeat(lambda: handler.on_batch_end(0, None), number=TIMES, repeat=100)) / TIMES * 1e6
    assert not timed or microseconds(benchmark) - own <= 0.3


def test_loop_calls_the_handlers_of_each_event(make_loop: Any) -> None:
    """The measured function is the one that calls handlers."""
    calls: list[tuple[int, dict[str, Any]]] = []
    handler = Handler()
    handler.on_batch_end = lambda batch, logs: calls.append((batch, logs))  # type: ignore[method-assign]
    fire(make_loop(Silent(), handler))
    assert calls == [(0, {})] * TIMES

"""Threads that read or change an agent while another thread trains it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import noterl
from noterl.callbacks import LambdaCallback
from noterl.replay import Prioritized
from noterl.utils import interrupts
from noterl.utils.interrupts import StepGate

pytestmark = pytest.mark.backends("torch")

STARTS = 20


@pytest.fixture(autouse=True)
def fast_switches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let Python change between threads as often as possible, and threads wait for a short time only."""
    monkeypatch.setattr(interrupts, "PATIENCE", 0.01)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def make_agent() -> noterl.DQN:
    """Return an agent that makes an update after each step."""
    agent = noterl.DQN("CartPole-v1", hidden=(4,), normalize_observation=True, seed=1)
    memory = noterl.Replay(300, sampler=Prioritized(), n_step=2)
    agent.compile(replay=memory, batch_size=8, learning_starts=STARTS, update_every=1)
    agent.fit(steps=2 * STARTS, num_envs=2, verbose=0)
    return agent


def check_state(state: dict[str, Any]) -> None:
    """Check that memory, counters, optimizer and lanes agree, as they do between two steps."""
    counters, ledger = state["counters"], state["lanes"]["ledger"]
    assert state["replay"]["count"] == counters["steps"]
    assert state["normalizers"]["observation"]["count"] == counters["steps"]
    assert state["optimizers"]["optimizer"]["scalars"][0] == counters["updates"] == counters["steps"] - STARTS
    assert counters["episodes_begun"] - counters["episodes"] == sum(ledger["running"]) + len(ledger["over"])


def train_beside(agent: noterl.Agent, function: Callable[[int], Any], calls: int, steps: int = 10**6) -> list[Any]:
    """Train in calls of `fit` until another thread has called a function; return the results of the function.

    Args:
        agent: the agent.
        function: called with the number of the call.
        calls: number of calls.
        steps: of each `fit`.
    """
    results: list[Any] = []

    def run() -> None:
        try:
            results.extend(function(number) for number in range(calls))
        except BaseException as error:
            results.append(error)

    def stop() -> None:
        # Not in the other thread: before the first step of a fit, the fit would discard the stop.
        if not thread.is_alive():
            agent.stop("the other thread has ended")

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        agent.fit(steps=steps, num_envs=2, callbacks=[LambdaCallback(on_step_end=stop)], verbose=0)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    assert len(results) == calls
    return results


@pytest.mark.parametrize("steps", [10**6, 3])  # of a fit; short fits end while the other thread waits
def test_files_of_another_thread_hold_one_step(tmp_path: Path, steps: int) -> None:
    agent = make_agent()

    def save(number: int) -> Path:
        path = tmp_path / f"{number}.noterl"
        agent.save(path)
        return path

    paths = train_beside(agent, save, 15, steps)
    for path in paths:
        loaded = noterl.load(path)
        check_state(loaded.get_state())
    assert len({noterl.load(path).steps for path in paths}) > 5
    loaded.fit(steps=2, verbose=0)


@pytest.mark.parametrize("read", ["get_state", "__deepcopy__"])
def test_copies_of_another_thread_hold_one_step(read: str) -> None:
    agent = make_agent()
    arguments = ({},) if read == "__deepcopy__" else ()
    for result in train_beside(agent, lambda _: getattr(agent, read)(*arguments), 15):
        check_state(result if read == "get_state" else result.get_state())


def test_weights_of_another_thread_are_those_after_a_step() -> None:
    agent = make_agent()
    seen = {b"".join(array.tobytes() for array in agent.get_weights().values())}

    begun = threading.Event()

    def note() -> None:
        begun.set()
        seen.add(b"".join(array.tobytes() for array in agent.get_weights().values()))
        if len(read) == 50:
            agent.stop("the other thread has ended")

    read: list[bytes] = []

    def run() -> None:
        begun.wait()  # otherwise all reads may come before the first step
        while len(read) < 50:
            read.append(b"".join(array.tobytes() for array in agent.get_weights().values()))

    thread = threading.Thread(target=run)
    thread.start()
    agent.fit(steps=10**6, num_envs=2, callbacks=[LambdaCallback(on_step_end=note)], verbose=0)
    thread.join()
    assert len(set(read)) > 5
    assert set(read) <= seen


def test_error_of_another_thread_is_raised_there(tmp_path: Path) -> None:
    agent = make_agent()

    def save(number: int) -> None:
        with pytest.raises(ValueError, match="replay must be"):
            agent.save(tmp_path / "agent.noterl", replay=number)  # type: ignore[arg-type]

    train_beside(agent, save, 3)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("event", ["on_train_begin", "on_episode_end", "on_step_end", "on_train_end"])
def test_callback_may_wait_for_a_thread_that_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str) -> None:
    agent = make_agent()
    threads: list[threading.Thread] = []

    def wait(*event: Any) -> None:
        if not threads:
            threads.append(threading.Thread(target=agent.save, args=(tmp_path / "agent.noterl",)))
            threads[0].start()
            threads[0].join()

    agent.fit(steps=60, num_envs=2, callbacks=[LambdaCallback(**{event: wait})], verbose=0)
    check_state(noterl.load(tmp_path / "agent.noterl").get_state())
    assert agent.steps == 2 * STARTS + 60


def queued(gate: StepGate, function: Callable[[], Any]) -> threading.Thread:
    """Return a thread whose function waits in the queue of a gate."""
    waiting = len(gate.queue)
    thread = threading.Thread(target=lambda: gate.run(function))
    thread.start()
    while len(gate.queue) == waiting:
        pass
    return thread


def test_functions_that_are_queued_during_a_step_wait_for_the_next() -> None:
    gate = StepGate()
    calls: list[str] = []
    with gate.owned():
        second: list[threading.Thread] = []

        def call() -> None:
            calls.append("first")
            second.append(queued(gate, lambda: calls.append("second")))

        first = queued(gate, call)
        gate.serve()
        assert calls == ["first"]
        gate.serve()
        assert calls == ["first", "second"]
        first.join()
        second[0].join()


def test_interrupt_in_a_queued_function_is_raised_in_both_threads() -> None:
    gate = StepGate()
    caught: list[BaseException] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    def run() -> None:
        try:
            gate.run(interrupt)
        except BaseException as error:
            caught.append(error)

    with gate.owned():
        thread = threading.Thread(target=run)
        thread.start()
        while not gate.queue:
            pass
        with pytest.raises(KeyboardInterrupt):
            gate.serve()
        thread.join()
    assert [type(error) for error in caught] == [KeyboardInterrupt]

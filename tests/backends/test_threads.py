"""The number of threads of updates on torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

torch = pytest.importorskip("torch")

import noterl  # noqa: E402  (needs torch)
from noterl.backends.torch import threads, updates  # noqa: E402
from noterl.backends.torch.threads import PERIOD, PROBE  # noqa: E402
from tests.support.batches import IMAGE, VECTOR, copied, differences, random_batch, small_dqn  # noqa: E402
from tests.support.parts import learner_of, run_updates  # noqa: E402

pytestmark = pytest.mark.backends("torch")

T = TypeVar("T")


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The user has set no number of threads, and torch takes two."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_defaults", lambda: {2})
    monkeypatch.setattr(threads, "_process", threads._Process())
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Watching(noterl.DQN):
    """Records the threads of each loss."""

    seen: list[int]

    def loss(self, batch):
        self.seen.append(torch.get_num_threads())
        return super().loss(batch)


def watching(width: int, env: object = VECTOR) -> Watching:
    agent = Watching(env, hidden=(width, width), seed=1)
    agent.seen = []
    agent.compile(batch_size=64, jit_compile=False)
    agent.build()
    agent._counters.updates = 2 * PROBE  # nothing is timed
    agent.seen.clear()
    return agent


@pytest.mark.parametrize(("width", "expected"), [(256, 1), (363, 2)])
def test_small_products_use_one_thread(width: int, expected: int) -> None:
    """2 * 64 * 256 * 256 is 8 million operations, and with 363 units it is more than 2**24."""
    agent = watching(width)
    run_updates(agent, random_batch(1, 64), 1)
    assert set(agent.seen) == {expected}
    assert torch.get_num_threads() == 2


def test_convolutions_use_all_threads() -> None:
    agent = watching(8, IMAGE)
    run_updates(agent, random_batch(1, 2, IMAGE), 1)
    assert set(agent.seen) == {2}


class Clock:
    """The time of a machine on which an update takes `one` second with one thread, and `together` with two."""

    one, together = 1.0, 0.7

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += self.one if torch.get_num_threads() == 1 else self.together
        return self._now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(updates, "perf_counter", found)
    return found


def numbers(agent: Watching, first: int, stop: int, size: int = 1) -> list[int]:
    """Return the number of threads of each update from number `first` on, in groups of `size` updates."""
    agent.seen.clear()
    for update in range(first, stop, size):
        agent._counters.updates = update
        run_updates(agent, random_batch(size, 64), size)
    return list(agent.seen)


def test_large_products_use_one_thread_while_the_threads_wait_for_cores(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, period = watching(363), PERIOD * PROBE
    assert numbers(agent, 0, 20) == [1] * 8 + [2] * 12
    clock.together = 1.1
    assert set(numbers(agent, 40, 50)) == {2}, "the next measurement comes at the next period"
    assert numbers(agent, period, period + 20) == [1] * 8 + [2] * 8 + [1] * 4
    agent.summary()
    assert "threads of updates on the CPU: 1" in capsys.readouterr().out
    clock.together = 0.9
    assert numbers(agent, 2 * period - 2, 2 * period + 20) == [1] * 10 + [2] * 12


def test_large_groups_are_timed_by_the_update(clock: Clock) -> None:
    agent = watching(363)
    clock.together = 3.0
    assert numbers(agent, 0, 48, size=12) == [1] * 12 + [2] * 12 + [1] * 24


def test_run_that_resumes_within_a_measurement_keeps_its_threads(clock: Clock) -> None:
    agent = watching(363)
    clock.together = 3.0
    assert numbers(agent, 10, 20) == [2] * 10
    assert numbers(agent, PERIOD * PROBE, PERIOD * PROBE + 20) == [1] * 8 + [2] * 8 + [1] * 4


@pytest.mark.parametrize("chosen", ["2", None])
def test_nothing_is_timed_if_the_user_has_chosen(
    chosen: str | None, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = watching(363)
    clock.together = 3.0
    if chosen is None:
        torch.set_num_threads(3)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    assert numbers(agent, 0, 20) == [int(chosen or 3)] * 20


def test_choice_of_the_user_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = watching(8)
    torch.set_num_threads(3)
    run_updates(agent, random_batch(1, 64), 1)
    torch.set_num_threads(2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    run_updates(agent, random_batch(1, 64), 1)
    assert set(agent.seen) == {2, 3}


def started_in_update(function: Callable[[], T]) -> T:
    """Return the result of a function in a Python thread that starts and calls torch during an update."""
    found, started, ended = [], threading.Event(), threading.Event()

    def run() -> None:
        torch.get_num_threads()
        started.set()
        ended.wait()
        found.append(function())

    thread = threading.Thread(target=run)
    with threads.limited(1):
        thread.start()
        started.wait()
    ended.set()
    thread.join()
    return found[0]


@pytest.mark.parametrize(("width", "expected"), [(256, 1), (363, 2)])
def test_python_thread_that_starts_in_an_update_does_not_keep_its_limit(width: int, expected: int) -> None:
    agent = watching(width)

    def update() -> int:
        run_updates(agent, random_batch(1, 64), 1)
        return int(torch.get_num_threads())

    assert started_in_update(update) == 2
    assert agent.seen == [expected]


def test_acting_in_a_python_thread_that_starts_in_an_update_uses_all_threads() -> None:
    """The forward pass of images is that of torch."""
    seen: list[int] = []

    class Acting(noterl.DQN):
        def forward(self, observation):
            seen.append(torch.get_num_threads())
            return super().forward(observation)

    agent = Acting(IMAGE, hidden=(8,), seed=1)
    agent.build()
    seen.clear()
    started_in_update(lambda: agent.act(agent.observation_space.sample()))
    assert set(seen) == {2}


def test_choice_in_a_python_thread_is_kept() -> None:
    """Also that of one thread, if noterl has seen another number in this Python thread."""
    agent = watching(363)

    def update() -> None:
        for number in (2, 1, 3):
            torch.set_num_threads(number)
            run_updates(agent, random_batch(1, 64), 1)

    started_in_update(update)
    assert agent.seen == [2, 1, 3]


def test_number_of_threads_is_restored_after_an_error() -> None:
    class Failing(noterl.DQN):
        def loss(self, batch):
            raise ArithmeticError("of the loss")

    agent = Failing(VECTOR, hidden=(8,), seed=1)
    with pytest.raises(ArithmeticError):
        run_updates(agent, random_batch(1, 4), 1)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("units", "expected"), [(64, 1), (512, 2)])
def test_number_is_known_before_the_first_rollout(
    units: int, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    noterl.PPO(VECTOR, hidden=(units, units), seed=1).summary()
    assert f"threads of updates on the CPU: {expected}" in capsys.readouterr().out


def test_summary_and_files_hold_the_number(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = small_dqn()
    agent.summary()
    assert "threads of updates on the CPU: 1" in capsys.readouterr().out
    agent.save(tmp_path / "agent.noterl")
    assert noterl.saving.read(tmp_path / "agent.noterl")["threads"] == 1
    assert learner_of(agent).batch_size == 4
    assert differences(copied(agent.get_state()), copied(noterl.load(tmp_path / "agent.noterl").get_state())) == []

"""Calls of the environments of lanes, of vector environments and of worker processes."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from noterl import envs
from noterl.collect import TeamLanes, VectorLanes, WorkerError, Workers
from noterl.collect.env_calls import BadCallError, EnvCall
from noterl.collect.workers import lanes as pool_module
from noterl.collect.workers.rounds import WorkerRounds
from noterl.envs.multi_agent.parallel import own_rewards
from noterl.random import Generators
from tests.support.doubles import ListTeam
from tests.support.pools import Pool, children, pool
from tests.support.worker_envs import CountEnv, LevelEnv, SavedLevelEnv

pytestmark = [
    pytest.mark.backend_free,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:workers. NumPy"),
]


def wrapped() -> gymnasium.Env:
    return TimeLimit(LevelEnv(), 20)


def set_level(level: int, **more: int) -> EnvCall:
    return EnvCall("set_level", (level,), more)


LEVEL = EnvCall("level", None, {})


def interrupt_after(seconds: float) -> Callable[[], None]:
    """Return a function that raises KeyboardInterrupt once so many seconds have passed."""
    end = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() >= end:
            raise KeyboardInterrupt

    return check


class TestAllLanes:
    @pytest.mark.parametrize(("workers", "in_numpy"), [(0, True), (2, True), (2, False), (3, True)])
    def test_results_are_in_the_order_of_lanes(self, workers: int, in_numpy: bool) -> None:
        with pool(wrapped, 5, workers, in_numpy=in_numpy) as made:
            made.rounds(2)
            results = made.lanes.call(set_level(3, more=1))
            assert [level for level, _ in results] == [4] * 5 and made.lanes.call(LEVEL) == [4] * 5
            pids = made.processes() if workers else [os.getpid()]
            expected = [pids[made.lanes._worker_of[lane]] if workers else pids[0] for lane in range(5)]
            assert [pid for _, pid in results] == expected
            assert {each.reward for each in made.rounds(1)} == {4.0}

    def test_call_in_the_middle_of_a_round_waits_for_its_step(self) -> None:
        for in_numpy in (True, False):
            with pool(LevelEnv, 2, Workers(1), in_numpy=in_numpy) as made:
                lanes = made.lanes
                for lane in lanes.idle():
                    lanes.reset(lane, lane, 0)
                if isinstance(lanes.rounds, WorkerRounds):
                    lanes.rounds.collect(0, None, 0)
                else:
                    lanes.begin_round(np.zeros(2, np.int64))
                first = lanes.tick(0)[0].reward
                lanes.call(set_level(2))
                assert (first, lanes.tick(0)[0].reward) == (0.0, 0.0)
                assert {each.reward for each in made.rounds(1)} == {2.0}

    def test_call_after_a_failed_worker_raises(self) -> None:
        with pool(LevelEnv, 2, Workers(2, on_failure="raise")) as made:
            made.rounds(1)
            os.kill(made.processes()[0], signal.SIGKILL)
            for _ in range(2):  # a callback may call it again in on_train_end
                with pytest.raises(WorkerError, match="worker 0"):
                    made.lanes.call(set_level(2))

    def test_call_follows_the_phase_of_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pool_module, "RING_ROUNDS", 3)  # smaller than the phase, so the call empties the ring
        runs = []
        for _ in range(2):
            with pool(LevelEnv, 2, Workers(2, collect=10)) as made:
                made.rounds(4)
                made.lanes.call(set_level(7))
                runs.append([each.reward for each in made.rounds(16)])
        assert runs[0] == runs[1] == [0.0] * 12 + [7.0] * 20

    def test_large_arguments_wait_for_a_phase_that_fills_the_ring(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pool_module, "RING_ROUNDS", 3)
        with pool(CountEnv, 2, Workers(1, collect=40)) as made:
            made.rounds(2)
            made.lanes.supervisor.check = interrupt_after(10.0)
            assert made.lanes.call(EnvCall("take", (bytes(1_000_000),), {})) == [1_000_000] * 2
            assert [each.observation.item() for each in made.rounds(40)[::2]] == list(range(2, 42))

    def test_interrupted_call_leaves_workers_that_go_on(self) -> None:
        with pool(CountEnv, 2, Workers(2, collect=4)) as made:
            made.rounds(2)
            made.lanes.supervisor.check = interrupt_after(0.0)
            with pytest.raises(KeyboardInterrupt):
                made.lanes.call(EnvCall("take", (b"",), {}))
            made.lanes.supervisor.check = interrupt_after(10.0)
            assert made.lanes.call(EnvCall("take", (b"four",), {})) == [4, 4]
            assert [each.observation.item() for each in made.rounds(5)[::2]] == list(range(2, 7))

    def test_teams_are_looked_through(self) -> None:
        source = envs.resolve(ListTeam)
        lanes = TeamLanes(source, 2, Generators(1), own_rewards)
        inner = lanes.environments[0].env
        inner.answer = lambda value: 2 * value
        lanes.environments[1].env.answer = lambda value: 3 * value
        assert lanes.call(EnvCall("answer", (2,), {})) == [4, 6]

    def test_vector_environment_is_called(self) -> None:
        vector = AsyncVectorEnv([LevelEnv] * 2)
        try:
            lanes = VectorLanes(envs.resolve(vector), Generators(1))
            lanes.reset(0, 0, 0)
            assert [level for level, _ in lanes.call(set_level(5))] == [5, 5] and lanes.call(LEVEL) == [5, 5]
            state = lanes.get_state()
            assert state is not None and state["vector"]["actions"] is None
        finally:
            vector.close()

    def test_unknown_name_in_a_vector_environment_of_this_process_calls_nothing(self) -> None:
        vector = SyncVectorEnv([wrapped] * 2)
        lanes = VectorLanes(envs.resolve(vector), Generators(1))
        lanes.reset(0, 0, 0)
        with pytest.raises(BadCallError, match=r"'set_level'.*env_call"):
            lanes.call(EnvCall("set_level", None, {}))
        with pytest.raises(BadCallError, match=r"set_levle.*did you mean 'set_level'"):
            lanes.call(EnvCall("set_levle", (1,), {}))
        assert lanes.call(EnvCall("changes", None, {})) == [0, 0]
        vector.close()

    def test_vector_environment_of_another_kind_answers_itself(self) -> None:
        class Wrapped(gymnasium.vector.VectorEnv):
            """Its `envs` are no environments."""

            envs = (object(), object())

            def __init__(self) -> None:
                inner = SyncVectorEnv([LevelEnv] * 2)
                for name in ("num_envs", "metadata", "single_observation_space", "single_action_space"):
                    setattr(self, name, getattr(inner, name))
                self.observation_space, self.action_space = inner.observation_space, inner.action_space

            def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
                return (name, name)

        assert VectorLanes(envs.resolve(Wrapped()), Generators(1)).call(LEVEL) == ["level", "level"]

    def test_vector_environment_without_call_raises(self) -> None:
        vector = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
        lanes = VectorLanes(envs.resolve(vector), Generators(1))
        with pytest.raises(ValueError, match=r"env_get\('level'\).*call"):
            lanes.call(LEVEL)
        vector.close()


class TestErrors:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_unknown_name_raises_and_calls_nothing(self, workers: int) -> None:
        with pool(wrapped, 3, workers) as made:
            made.rounds(1)
            with pytest.raises(BadCallError, match=r"set_levle.*did you mean 'set_level'"):
                made.lanes.call(EnvCall("set_levle", (1,), {}))
            with pytest.raises(BadCallError, match=r"'level'.*env_get"):
                made.lanes.call(EnvCall("level", (), {}))
            with pytest.raises(BadCallError, match=r"'set_level'.*env_call"):
                made.lanes.call(EnvCall("set_level", None, {}))
            assert made.lanes.call(EnvCall("changes", None, {})) == [0, 0, 0]
            assert len(made.rounds(2)) == 6

    @pytest.mark.parametrize("name", ["reset", "step", "close", "", 3])
    def test_bad_name_raises(self, name: Any) -> None:
        with pytest.raises(ValueError, match="name"):
            EnvCall(name, (), {}).check()

    def test_exception_names_lane_and_worker(self) -> None:
        with pool(LevelEnv, 4, 2) as made:
            made.rounds(1)
            with pytest.raises(WorkerError, match=r"ZeroDivisionError.*'divide'.*environment 0") as raised:
                made.lanes.call(EnvCall("divide", (0,), {}))
            assert raised.value.worker == 0 and "worker_envs.py" in str(raised.value)
            assert made.lanes.call(EnvCall("divide", (2,), {})) == [0.5] * 4 and len(made.rounds(2)) == 8
        local = Pool(LevelEnv, 2)
        with pytest.raises(ZeroDivisionError) as own:
            local.lanes.call(EnvCall("divide", (0,), {}))
        assert own.value.__notes__ == ["raised in env_call('divide') of environment 0"]

    def test_values_that_cannot_be_sent_raise(self) -> None:
        with pool(LevelEnv, 2, 1) as made:
            with pytest.raises(ValueError, match=r"'set_level'.*arguments"):
                made.lanes.call(set_level(threading.Lock()))  # type: ignore[arg-type]
            with pytest.raises(WorkerError, match=r"'get_lambda'.*results"):
                made.lanes.call(EnvCall("get_lambda", (), {}))
            assert len(made.rounds(2)) == 4
        assert not children()

    def test_worker_that_dies_or_hangs_in_a_call_ends_the_training(self) -> None:
        # A worker that is late because the machine is busy raises the same error.
        for name, settings in (("die", Workers(2, restarts=1)), ("hang", Workers(2, restarts=0, step_timeout=1.0))):
            with (
                pytest.warns(RuntimeWarning) if settings.restarts else contextlib.nullcontext(),
                pytest.raises(WorkerError, match=r"SIGKILL|step_timeout"),
                pool(LevelEnv, 2, settings) as made,
            ):
                made.rounds(1)
                made.lanes.call(EnvCall(name, (), {}))
            assert not children()

    @pytest.mark.parametrize("in_numpy", [True, False])
    def test_replaced_worker_repeats_the_calls(self, in_numpy: bool) -> None:
        with pool(LevelEnv, 4, 2, in_numpy=in_numpy) as made:
            made.rounds(3)
            made.lanes.call(set_level(2))
            os.kill(made.processes()[1], signal.SIGKILL)
            with pytest.warns(RuntimeWarning, match="SIGKILL"):
                made.rounds(4)
                assert made.lanes.call(LEVEL) == [2] * 4

    def test_too_many_calls_cannot_be_repeated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pool_module, "MAX_CALLS", 2)
        with pool(LevelEnv, 2, 2) as made, pytest.warns(RuntimeWarning, match="SIGKILL"):
            for level in range(4):
                made.lanes.call(set_level(level))
            os.kill(made.processes()[1], signal.SIGKILL)
            with pytest.raises(WorkerError, match="env_call"):
                made.rounds(4)


class TestResume:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_environment_with_own_state_resumes_exactly(self, workers: int) -> None:
        def run(made: Pool) -> list[Any]:
            return [(each.lane, each.reward, each.observation.tolist()) for each in made.rounds(15)]

        with pool(SavedLevelEnv, 2, workers) as made:
            made.rounds(4)
            made.lanes.call(set_level(3))
            made.rounds(2)
            state, generators = copy.deepcopy(made.lanes.get_state()), made.generators.get_state()
            expected = run(made)
        other = Pool(SavedLevelEnv, 2, workers)
        other.generators.set_state(generators)
        other.lanes.set_state(state)
        try:
            assert run(other.start()) == expected and expected[0][1] == 3.0
        finally:
            if workers:
                other.lanes.close()

    @pytest.mark.parametrize("workers", [0, 1])
    def test_other_environments_restart_with_a_warning(self, workers: int) -> None:
        with pool(partial(LevelEnv, 5), 1, workers) as made:
            made.rounds(2)
            made.lanes.call(LEVEL)
            assert made.lanes.get_state()["lanes"][0]["actions"] is not None  # reading changes nothing
            made.lanes.call(set_level(0))
            made.rounds(7)  # also in later episodes
            state = copy.deepcopy(made.lanes.get_state())
        assert state["lanes"][0]["actions"] is None
        other = Pool(partial(LevelEnv, 5), 1, workers)
        with pytest.warns(RuntimeWarning, match="env_call"):
            other.lanes.set_state(state)
            other.start()
        assert not other.lanes.ledger.running[0]
        if workers:
            other.lanes.close()

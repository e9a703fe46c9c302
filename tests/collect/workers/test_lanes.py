"""Worker processes without a learner: what they return, and how they fail, end and leave nothing."""

from __future__ import annotations

import copy
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import WrapperSpec
from gymnasium.vector import SyncVectorEnv

from noterl.collect import WorkerError, Workers
from noterl.collect.checks import check_state
from noterl.collect.env_calls import EnvCall
from noterl.collect.workers import lanes as pool_module
from noterl.collect.workers import supervisor
from noterl.collect.workers.rounds import LearnerRounds
from noterl.collect.workers.worker import ENTERED
from tests.support.doubles import StatefulEnv
from tests.support.pools import Pool, children, descriptors, pool, running, segments, time_hung_worker, wait_until_gone
from tests.support.space_envs import make
from tests.support.states import differences
from tests.support.worker_envs import (
    BrokenEnv,
    CountEnv,
    DiscreteWalkEnv,
    FaultyEnv,
    ForkingEnv,
    IdEnv,
    ParentEnv,
    ResettingEnv,
    SlowEnv,
    UnequalEnv,
    make_clipped,
)

pytestmark = [pytest.mark.backend_free, pytest.mark.slow]

ROOT = Path(__file__).parents[3]


def same(first: list[Any], second: list[Any]) -> bool:
    return not differences([list(each) for each in first], [list(each) for each in second])


def inboxes_of(made: Pool) -> Any:
    return made.lanes.inboxes


@pytest.mark.parametrize("kind", ["vector", "device"])
def test_state_of_environments_stepped_together_restarts_their_episodes(kind: str) -> None:
    made = Pool(CountEnv, 2, 2)
    try:
        with pytest.warns(RuntimeWarning, match=r"state is of (a vector|environments on)"):
            made.lanes.set_state({kind: {}, "lanes": [{}, {}], "ledger": {}})
        made.start()
        assert made.lanes.idle() == [0, 1]
    finally:
        made.lanes.close()


class TestCollecting:
    @pytest.mark.parametrize("workers", [1, 2, 3])
    def test_lanes_have_the_same_seeds_for_any_number_of_workers(self, workers: int) -> None:
        def seeds(transitions: list[Any]) -> list[tuple[int, float]]:
            return [(each.lane, each.observation[1]) for each in transitions]

        expected = seeds(Pool(IdEnv, 5).rounds(7))
        with pool(IdEnv, 5, workers) as made:
            transitions = made.rounds(7)
            pids = made.processes()
        assert seeds(transitions) == expected and len(set(expected)) == 15
        of_lane = {each.lane: int(each.observation[0]) for each in transitions}
        assert [of_lane[lane] for lane in range(5)] == [pids[made.lanes._worker_of[lane]] for lane in range(5)]
        assert len(set(pids)) == workers and os.getpid() not in pids

    def test_transitions_follow_each_other_within_an_episode(self) -> None:
        with pool(DiscreteWalkEnv, 4, Workers(2, collect=10)) as made:
            transitions = made.rounds(60)
        for lane in range(4):
            own = [each for each in transitions if each.lane == lane]
            assert len(own) == 60
            for before, after in itertools.pairwise(own):
                ended = before.terminated or before.truncated
                assert ended != np.array_equal(before.next_observation, after.observation)

    def test_runs_with_the_same_seed_are_equal(self) -> None:
        runs = []
        for pause in (0.0, 0.002):
            with pool(DiscreteWalkEnv, 3, Workers(2, collect=4)) as made:
                runs.append([])
                for _ in range(20):
                    runs[-1] += made.round()
                    time.sleep(pause)
        assert same(*runs)

    def test_phase_uses_the_weights_of_its_beginning(self) -> None:
        with pool(DiscreteWalkEnv, 2, Workers(1, collect=5)) as made:
            made.actor.explorer.eps = 0.0
            made.actor.forward.set(0.0)  # equal values: action 0
            first = made.rounds(1)
            made.actor.forward._weights = [np.zeros((2, 2), np.float32), np.array([0.0, 1.0], np.float32)]
            rest = made.rounds(5)
        assert [each.action for each in first + rest[:8]] == [0] * 10
        assert [each.action for each in rest[8:]] == [1, 1]

    def test_changed_exploration_reaches_workers(self) -> None:
        with pool(DiscreteWalkEnv, 2, 2) as made:
            made.actor.forward.set(0.0)
            made.actor.explorer.eps = 0.0
            assert {each.action for each in made.rounds(30)} == {0}
            made.actor.explorer.eps = 1.0
            assert {each.action for each in made.rounds(30)} == {0, 1}

    def test_phase_of_episodes_ends_when_each_lane_has_ended_one(self) -> None:
        runs = []
        for pause in (0.0, 0.01):
            with pool(DiscreteWalkEnv, 4, Workers(2, collect="episode")) as made:
                made.actor.explorer.eps = 0.0
                run, weights = [], []
                for number in range(60):
                    made.actor.forward.set(0.0)
                    made.actor.forward._weights[1][:] = [0.0, number % 2]
                    publish = made.lanes.rounds.publisher.publish
                    made.lanes.rounds.publisher.publish = lambda _, publish=publish, number=number: publish(number)
                    fronts = made.round()
                    run += fronts
                    weights.append([int(inbox.front()[0]["updates"][inbox.front()[1]]) for inbox in inboxes_of(made)])
                    made.lanes.rounds.publisher.publish = publish
                    time.sleep(pause)
                runs.append((run, weights))
        assert not differences(*([list(each) for each in run] for run, _ in runs)) and runs[0][1] == runs[1][1]
        run, weights = runs[0]
        for worker in range(2):
            pending, version = {2 * worker, 2 * worker + 1}, weights[0][worker]
            for number in range(60):
                own = run[4 * number + 2 * worker : 4 * number + 2 * worker + 2]
                assert weights[number][worker] == version
                assert [each.action for each in own] == [version % 2] * 2
                pending -= {each.lane for each in own if each.terminated or each.truncated}
                if not pending:
                    pending, version = {2 * worker, 2 * worker + 1}, number + 1

    def test_killed_worker_in_a_phase_of_episodes_is_replaced(self) -> None:
        with pool(DiscreteWalkEnv, 4, Workers(2, collect="episode")) as made:
            made.rounds(7)
            os.kill(made.processes()[0], signal.SIGKILL)
            with pytest.warns(RuntimeWarning, match="worker 0 .*SIGKILL"):
                transitions = made.rounds(200)
        assert set(made.cut) <= {0, 1} and {each.lane for each in transitions} == {0, 1, 2, 3}

    def test_full_ring_makes_workers_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        runs = []
        for size in (pool_module.RING_ROUNDS, 3):
            monkeypatch.setattr(pool_module, "RING_ROUNDS", size)
            with pool(DiscreteWalkEnv, 3, Workers(2, collect=40)) as made:
                runs.append(made.rounds(60))
        assert same(*runs)

    def test_transitions_stay_valid_until_the_next_round(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pool_module, "RING_ROUNDS", 2)
        with pool(DiscreteWalkEnv, 2, Workers(1, collect=40)) as made:
            made.rounds(3)
            made.lanes.idle()
            made.lanes.rounds.collect(made.steps, None)
            views = [made.lanes.tick(0)[0] for _ in range(2)]
            before = copy.deepcopy(views)
            time.sleep(0.1)  # the worker writes as many rounds as it can
            assert same(views, before) and made.lanes.inboxes[0].ring.space == 0

    @pytest.mark.parametrize("look", ["get_state", "env_get"])
    def test_look_in_the_middle_of_a_round_leaves_its_rows(self, monkeypatch: pytest.MonkeyPatch, look: str) -> None:
        monkeypatch.setattr(pool_module, "RING_ROUNDS", 3)
        with pool(CountEnv, 3, Workers(1, collect=40)) as made:
            made.rounds(2)
            lanes, found = made.lanes, []
            lanes.idle()
            lanes.rounds.collect(made.steps, None)
            for _ in range(3):
                (transition,) = lanes.tick(0)
                found.append((transition.observation.item(), transition.next_observation.item()))
                if look == "get_state":
                    lanes.get_state()
                else:
                    lanes.call(EnvCall("steps", None, {}))
            made.steps += 3
            assert found == [(2, 3)] * 3
            assert [transition.observation.item() for transition in made.round()] == [3] * 3

    @pytest.mark.filterwarnings("ignore:workers. NumPy")
    def test_observations_stay_valid_during_the_round(self) -> None:
        with pool(DiscreteWalkEnv, 2, 1, in_numpy=False) as made:
            made.rounds(2)
            lanes, before = made.lanes, made.lanes.observations().copy()
            assert not lanes.idle()
            lanes.begin_round(np.ones(2, np.int64))
            lanes.tick(0)
            assert np.array_equal(lanes.observations(), before)
            lanes.tick(0)
            assert not np.array_equal(lanes.observations(), before)

    @pytest.mark.filterwarnings("ignore:workers. NumPy")
    @pytest.mark.parametrize("in_numpy", [True, False])
    def test_logs_hold_rewards_that_are_not_clipped(self, in_numpy: bool) -> None:
        with pool(make_clipped, 2, 2, in_numpy=in_numpy) as made:
            assert {each.reward for each in made.rounds(3)} == {1.0}
            assert made.lanes.ledger.returns == [15.0, 15.0]

    @pytest.mark.parametrize("env", [DiscreteWalkEnv, partial(make, "Dict")])
    def test_learner_that_acts_gives_the_run_without_workers(self, env: Any) -> None:
        expected = Pool(env, 4, in_numpy=False).rounds(40)
        with pytest.warns(RuntimeWarning, match="NumPy"):
            made = Pool(env, 4, 2, in_numpy=False).start()
        try:
            assert isinstance(made.lanes.rounds, LearnerRounds) and same(made.rounds(40), expected)
        finally:
            made.lanes.close()

    def test_worker_imports_no_framework(self) -> None:
        code = "import sys; from noterl.collect.workers import worker; print([m for m in sys.modules if m in " + repr(
            ["keras", "tensorflow", "jax", "torch", "matplotlib", "noterl.backends"]
        )
        result = subprocess.run([sys.executable, "-c", code + "])"], cwd=ROOT, capture_output=True, text=True)
        assert result.stdout.strip() == "[]", result


class TestState:
    @pytest.mark.parametrize("env", [DiscreteWalkEnv, partial(gymnasium.make, "CartPole-v1"), partial(make, "Dict")])
    @pytest.mark.parametrize("consumed", [3, 5, 10])
    def test_restored_pool_continues_exactly(self, env: Any, consumed: int) -> None:
        settings = Workers(2, collect=5)
        with pool(env, 3, settings) as made:
            made.rounds(consumed)
            state, generators = made.lanes.get_state(), made.generators.get_state()
            counts = made.steps, made.episodes
            expected = made.rounds(30)  # asking for the state does not change the run
            final = made.lanes.get_state()
        restored = Pool(env, 3, settings, seed=9)
        restored.generators.set_state(generators)
        restored.lanes.set_state(state)
        restored.steps, restored.episodes = counts
        restored.start()
        try:
            assert same(restored.rounds(30), expected)
            assert not differences(restored.lanes.get_state(), final)
        finally:
            restored.lanes.close()

    def test_state_of_consumed_rounds_fits_another_number_of_workers(self) -> None:
        with pool(partial(IdEnv, False), 4, 2) as made:
            made.rounds(7)
            state, generators = made.lanes.get_state(), made.generators.get_state()
        following = []
        for workers in (0, 3):
            other = Pool(partial(IdEnv, False), 4, workers)
            other.generators.set_state(generators)
            other.lanes.set_state(state)
            other.start()
            following.append([each.observation[1] for each in other.rounds(6)])
            if workers:
                other.lanes.close()
        assert following[0] == following[1]

    @pytest.mark.parametrize("workers", [0, 1])
    def test_rounds_ahead_do_not_fit_another_number_of_workers(self, workers: int) -> None:
        with pool(DiscreteWalkEnv, 2, Workers(2, collect=5)) as made:
            made.rounds(2)
            state = made.lanes.get_state()
        with pytest.warns(RuntimeWarning, match="collected further"):
            Pool(DiscreteWalkEnv, 2, workers).lanes.set_state(state)

    def test_environment_with_own_state_is_restored_by_it(self) -> None:
        with pool(partial(_Stateful), 2, 1) as made:
            made.rounds(4)
            state, generators = made.lanes.get_state(), made.generators.get_state()
            expected = made.rounds(4)
        assert all(lane["environment"] is not None for lane in state["lanes"])
        other = Pool(partial(_Stateful), 2, 1)
        other.generators.set_state(generators)
        other.lanes.set_state(state)
        other.start()
        try:
            assert same(other.rounds(4), expected)
        finally:
            other.lanes.close()

    def test_change_for_the_next_phase_of_episodes_is_kept(self) -> None:
        def exploration(made: Pool) -> list[float]:
            return [each["eps"] for each in made.lanes.get_state()["pool"]["explorers"]]

        with pool(UnequalEnv, 2, Workers(2, collect="episode"), seed=5) as made:
            made.rounds(2)
            made.actor.explorer.eps = 0.0
            made.rounds(4)  # the episodes of worker 0 are short
            assert [bool(changes) for changes in made.lanes.rounds.phases._changes] == [False, True]
            state, generators, counts = made.lanes.get_state(), made.generators.get_state(), (made.steps, made.episodes)
        other = Pool(UnequalEnv, 2, Workers(2, collect="episode"))
        other.generators.set_state(generators)
        other.actor.explorer.eps = 0.0
        other.lanes.set_state(state)
        other.steps, other.episodes = counts
        other.start()
        try:
            other.rounds(40)
            assert exploration(other) == [0.0, 0.0]
        finally:
            other.lanes.close()

    def test_state_passes_its_check(self) -> None:
        with pool(DiscreteWalkEnv, 3, Workers(2, collect=4)) as made:
            made.rounds(2)
            state, source = made.lanes.get_state(), made.source
        check_state(state, source)
        for change in MALFORMED:
            broken = copy.deepcopy(state)
            change(broken["pool"])
            with pytest.raises((ValueError, KeyError, TypeError)):
                check_state(broken, source)


MALFORMED: list[Callable[[dict[str, Any]], Any]] = [
    lambda pool: pool.pop("rows"),
    lambda pool: pool.update(more=1),
    lambda pool: pool["rows"].pop(),
    lambda pool: pool["rows"][0].pop("begun"),
    lambda pool: pool["rows"][0].update(reward=np.zeros(1)),
    lambda pool: pool["rows"][1].update({name: field[:3] for name, field in pool["rows"][1].items()}),
    lambda pool: pool["rows"][0]["action"].fill(2),
    lambda pool: pool["rows"][0].update(observation=np.zeros((2, 3), np.float32)),
    lambda pool: pool["ledgers"][0]["running"].append(True),
    lambda pool: pool["ledgers"][0].update(numbers=[-1]),
    lambda pool: pool.update(ledgers=[]),
    lambda pool: pool.update(explorers=[1, None]),
    lambda pool: pool.update(fresh=[3]),
]


class _Stateful(StatefulEnv):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Discrete(2)

    def step(self, action):
        return super().step([2.0 * action - 1.0])


class TestEnvironments:
    def test_id_factory_and_copy_of_an_environment(self) -> None:
        for env in (
            "CartPole-v1",
            gymnasium.make("CartPole-v1", max_episode_steps=7),
            lambda: gymnasium.make("CartPole-v1"),
        ):
            with pool(env, 2, 2) as made:
                assert made.rounds(3)[0].observation.shape == (4,)

    def test_registered_class_of_this_process_works(self) -> None:
        gymnasium.register(
            "noterl/OnlyHere-v0", entry_point=lambda length: DiscreteWalkEnv(length=length), kwargs={"length": 4}
        )
        try:
            with pool("noterl/OnlyHere-v0", 1, 1) as made:
                assert any(each.truncated or each.terminated for each in made.rounds(4))
        finally:
            del gymnasium.registry["noterl/OnlyHere-v0"]

    def test_modules_of_the_working_folder_are_not_imported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "json.py").write_text("open('imported', 'w').close()\nfrom os import *\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
        with pool("CartPole-v1", 1, 1) as made:
            made.rounds(1)
        assert not (tmp_path / "imported").exists()

    def test_wrapper_of_the_script_raises(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules["__main__"], "Mine", gymnasium.Wrapper, raising=False)
        environment = gymnasium.make("CartPole-v1")
        spec = copy.deepcopy(environment.spec)
        assert spec is not None
        spec.additional_wrappers = (WrapperSpec("Mine", "__main__:Mine", {}),)
        environment.unwrapped.spec = spec
        with pytest.raises(ValueError, match=r"wrapper Mine .*script"):
            Pool(environment.unwrapped, 1, 1)

    def test_path_that_is_no_text_is_ignored(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
        with pool(DiscreteWalkEnv, 1, 1) as made:
            assert len(made.rounds(2)) == 2

    def test_object_that_cannot_be_sent_raises(self) -> None:
        lock = threading.Lock()
        with pytest.raises(ValueError, match="workers"):
            Pool(lambda: (lock, DiscreteWalkEnv())[1], 1, 1).start()
        assert not children()

    def test_environment_that_cannot_be_made_again_raises(self) -> None:
        with pytest.raises(ValueError, match="workers"):
            Pool(DiscreteWalkEnv(), 2, 2)

    def test_vector_environment_raises(self) -> None:
        with pytest.raises(ValueError, match="workers"):
            Pool(SyncVectorEnv([DiscreteWalkEnv] * 2), 2, 2)

    def test_fewer_lanes_than_workers_raise(self) -> None:
        with pytest.raises(ValueError, match="num_envs"):
            Pool(DiscreteWalkEnv, 2, 3)

    def test_script_from_standard_input_needs_no_guard(self) -> None:
        code = """
import gymnasium
from tests.support.pools import pool
from tests.support.doubles import RandomWalkEnv

class Mine(RandomWalkEnv):
    def __init__(self, length):
        super().__init__(length=length)
        self.action_space = gymnasium.spaces.Discrete(2)
    def step(self, action):
        return super().step([2.0 * action - 1.0])

print("script")
with pool(lambda: Mine(4), 2, 2) as made:
    print(len(made.rounds(9)), type(made.lanes.rounds).__name__)
"""
        result = subprocess.run([sys.executable, "-"], input=code, cwd=ROOT, capture_output=True, text=True)
        assert result.stdout.split() == ["script", "18", "WorkerRounds"], result


class TestFailures:
    @pytest.mark.parametrize("in_numpy", [True, False])
    @pytest.mark.filterwarnings("ignore:workers. NumPy")
    def test_exception_of_an_environment_arrives_with_its_traceback(self, in_numpy: bool) -> None:
        env = partial(FaultyEnv, "raise")
        with (
            pytest.raises(WorkerError, match=r"worker \d .*ZeroDivisionError") as raised,
            pool(env, 4, 2, in_numpy=in_numpy) as made,
        ):
            made.rounds(10)
        assert raised.value.worker in (0, 1) and "the pole is gone" in str(raised.value)
        assert "worker_envs.py" in str(raised.value) and made.steps >= 16
        assert not children()

    def test_error_of_a_connection_of_the_environment_arrives_too(self) -> None:
        with (
            pytest.raises(WorkerError, match="raised ConnectionResetError"),
            pool(partial(FaultyEnv, "disconnect"), 1, 1) as made,
        ):
            made.rounds(10)

    def test_environment_that_a_worker_cannot_make_raises(self) -> None:
        with pytest.raises(WorkerError, match="no display"):
            Pool(partial(BrokenEnv, os.getpid()), 1, 1).start()
        assert not children()

    @pytest.mark.parametrize("in_numpy", [True, False])
    @pytest.mark.filterwarnings("ignore:workers. NumPy")
    def test_killed_worker_is_noticed_and_replaced(self, in_numpy: bool) -> None:
        with pool(DiscreteWalkEnv, 4, 2, in_numpy=in_numpy) as made:
            made.rounds(7)
            victim, other = made.processes()
            os.kill(victim, signal.SIGKILL)
            with pytest.warns(RuntimeWarning, match="worker 0 .*SIGKILL"):
                transitions = made.rounds(3)
            transitions += made.rounds(20)
            assert made.processes()[0] != victim and made.processes()[1] == other
            assert sorted(made.cut) == [0, 1]
            assert {each.lane for each in transitions} == {0, 1, 2, 3}

    @pytest.mark.filterwarnings("ignore:workers. NumPy")
    def test_worker_that_dies_in_a_reset_leaves_the_resets_of_others(self, tmp_path: Path) -> None:
        with (
            pool(partial(ResettingEnv, str(tmp_path / "flag")), 2, 2, in_numpy=False) as made,
            pytest.warns(RuntimeWarning, match="SIGKILL"),
        ):
            transitions = made.rounds(12)
        of_lanes = [[each.observation for each in transitions if each.lane == lane] for lane in (0, 1)]
        (survivor,) = (each for each in of_lanes if len({process for process, _ in each}) == 1)
        resets = [int(resets) for _, resets in survivor]
        assert resets == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]

    @pytest.mark.filterwarnings("ignore:workers. NumPy")
    @pytest.mark.parametrize(("length", "seconds"), [(0, 0.0), (3, 0.1)])
    @pytest.mark.parametrize("look", ["get_state", "env_get"])
    def test_failure_that_a_look_between_rounds_finds(self, length: int, seconds: float, look: str) -> None:
        with pool(partial(CountEnv, length, seconds), 2, 2, in_numpy=False) as made:
            made.rounds(3)
            os.kill(made.processes()[0], signal.SIGKILL)
            time.sleep(0.1)
            with pytest.warns(RuntimeWarning, match="SIGKILL"):
                if look == "get_state":
                    made.lanes.get_state()
                else:
                    made.lanes.call(EnvCall("steps", None, {}))
                found = [each.observation.item() for each in made.rounds(6) if each.lane == 0]
        assert found == [0, 1, 2, 0, 1, 2] if length else [0, 1, 2, 3, 4, 5]
        assert made.cut == ([] if length else [0])

    def test_replaced_worker_uses_new_seeds(self) -> None:
        with pool(IdEnv, 2, 2) as made:
            seeds = [each.observation[1] for each in made.rounds(7)]
            os.kill(made.processes()[0], signal.SIGKILL)
            with pytest.warns(RuntimeWarning, match="worker 0"):
                later = made.rounds(9)
        new = [each.observation[1] for each in later if each.lane == 0]
        assert not set(seeds) & set(new) and len(set(new)) == 3
        expected = Pool(IdEnv, 2).rounds(16)
        assert [each.observation[1] for each in later if each.lane == 1] == [
            each.observation[1] for each in expected[14:] if each.lane == 1
        ]

    def test_rounds_before_a_failure_are_kept(self) -> None:
        with pool(IdEnv, 1, Workers(1, collect=8)) as made:
            made.round()
            while made.lanes.rounds.phases.outstanding() != [0]:
                time.sleep(0.01)
            os.kill(made.processes()[0], signal.SIGKILL)
            rest = made.rounds(7)
            assert len({each.observation[1] for each in rest}) == 3 and not made.cut
            with pytest.warns(RuntimeWarning, match="worker 0"):
                made.round()
            assert made.cut == [0]

    def test_failure_raises_if_it_should(self) -> None:
        with pool(DiscreteWalkEnv, 2, Workers(2, on_failure="raise")) as made:
            made.rounds(3)
            os.kill(made.processes()[1], signal.SIGKILL)
            with pytest.raises(WorkerError, match=r"worker 1 .*killed by SIGKILL") as raised:
                made.rounds(3)
            assert raised.value.worker == 1

    def test_death_is_noticed_while_a_forked_process_holds_the_pipe(self) -> None:
        with pool(partial(ForkingEnv, dies_at=5), 1, Workers(1, on_failure="raise")) as made:
            pids = [int(each.next_observation.item()) for each in made.rounds(2)]
            with pytest.raises(WorkerError, match=r"worker 0 .* was killed by SIGKILL"):
                made.rounds(10)
        wait_until_gone(pids)

    def test_message_that_is_not_sent_leaves_no_buffer(self) -> None:
        """Python 3.13 reports a `BytesIO` that it collects together with a view of the `BytesIO`."""
        with pool(CountEnv, 1, Workers(1)) as made:
            (process,) = made.lanes.supervisor.processes
            os.kill(process.pid, signal.SIGKILL)
            assert "SIGKILL" in process.exit_status()
            with pytest.raises(OSError) as failed:
                process.send(("step", 1))
        values = [value for frame, _ in traceback.walk_tb(failed.tb) for value in frame.f_locals.values()]
        assert all(isinstance(value.obj, bytes) for value in values if isinstance(value, memoryview))

    def test_restarts_are_limited(self) -> None:
        with (
            pool(partial(FaultyEnv, "exit"), 1, Workers(1, restarts=2)) as made,
            pytest.warns(RuntimeWarning, match="exit status 3"),
            pytest.raises(WorkerError, match="after 2 restarts"),
        ):
            made.rounds(50)
        assert made.cut == [0, 0]

    def test_hung_environment_ends(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        time_hung_worker(monkeypatch, tmp_path / "flag")
        env = partial(FaultyEnv, "sleep", 5, str(tmp_path / "flag"))
        with pool(env, 2, Workers(2, step_timeout=1.0)) as made:
            made.rounds(3)
            with pytest.warns(RuntimeWarning, match="step_timeout=1"):
                made.rounds(20)
            assert len(made.cut) == 1

    def test_worker_that_cannot_be_replaced_leaves_the_state_of_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pool_module, "MAX_CALLS", 0)
        with pool(CountEnv, 2, 2) as made, pytest.warns(RuntimeWarning, match="SIGKILL"):
            made.rounds(2)
            made.lanes.call(EnvCall("take", (b"",), {}))
            os.kill(made.processes()[0], signal.SIGKILL)
            with pytest.raises(WorkerError, match="worker 0 cannot be replaced"):
                made.rounds(2)
            state = made.lanes.get_state(hurry=True)
        assert [ledger["running"] for ledger in state["pool"]["ledgers"]] == [[False], [True]]

    def test_time_counts_from_each_step_of_a_phase(self) -> None:
        with pool(partial(SlowEnv, 0.03), 4, Workers(2, collect=100)) as made:
            learner, entered = made.lanes.supervisor, set()
            learner.check = lambda: entered.add(int(learner._control[0][ENTERED]))
            while len(entered) < 4 and made.steps < 400:
                made.round()
        assert len(entered - {0}) > 2

    def test_waiting_can_be_interrupted(self) -> None:
        def check() -> None:
            if time.monotonic() > deadline:
                raise KeyboardInterrupt

        with pool(partial(FaultyEnv, "sleep", 2), 1, 1) as made:
            deadline = time.monotonic() + 0.2
            made.lanes.supervisor.check = check
            with pytest.raises(KeyboardInterrupt):
                made.rounds(5)
            pids = made.processes()
            state = made.lanes.get_state(hurry=True)  # without what the environment would return in two seconds
            made.lanes.close()
            assert not running(pids)
        assert state["pool"]["ledgers"][0]["running"] == [False] and state["lanes"][0]["actions"] is None

    def test_hurried_state_keeps_the_rounds_of_all_workers(self) -> None:
        with pool(partial(SlowEnv, 0.01), 2, Workers(2, collect=500)) as made:
            made.rounds(2)
            state, generators = made.lanes.get_state(hurry=True), made.generators.get_state()
            made.lanes.close()
        assert all(len(rows["reward"]) < 490 for rows in state["pool"]["rows"])  # the phase of 500 rounds ended early
        other = Pool(partial(SlowEnv, 0.01), 2, Workers(2, collect=4))
        other.generators.set_state(generators)
        other.lanes.set_state(state)
        other.start()
        try:
            assert len(other.rounds(12)) == 24 and not other.cut
        finally:
            other.lanes.close()


class TestEnding:
    def test_nothing_is_left(self) -> None:
        with pool(DiscreteWalkEnv, 2, 2) as made:
            made.rounds(2)
        del made
        before, threads, shared = descriptors(), threading.active_count(), segments()
        for _ in range(2):
            made = Pool(DiscreteWalkEnv, 2, 2).start()
            made.rounds(3)
            pids = made.processes()
            made.lanes.close()
            assert not running(pids)
            del made
        assert (descriptors(), threading.active_count()) == (before, threads)
        assert segments() == shared

    @pytest.mark.parametrize("kill", [False, True])
    def test_processes_of_environments_end_with_their_worker(self, kill: bool) -> None:
        made = Pool(ParentEnv, 2, 2).start()
        pids = [int(each.next_observation.item()) for each in made.rounds(1)]
        made.lanes.close(kill=kill)
        assert len(set(pids)) == 2
        wait_until_gone(pids)

    def test_close_closes_environments(self, tmp_path: Path) -> None:
        with pool(partial(_Closing, str(tmp_path / "closed")), 1, 1) as made:
            made.rounds(2)
            made.lanes.close()
        assert (tmp_path / "closed").exists()

    def test_error_of_close_is_a_warning(self) -> None:
        made = Pool(_FailingClose, 1, 1).start()
        made.rounds(2)
        with pytest.warns(RuntimeWarning, match=r"worker 0 .*close\(\) .*no room"):
            made.lanes.close()
        assert not children()

    def test_close_waits_for_environments_that_take_long_to_close(self, tmp_path: Path) -> None:
        made = Pool(partial(_Closing, str(tmp_path / "closed"), 1.5), 1, 1).start()
        made.rounds(2)
        made.lanes.get_state()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made.lanes.close()
        assert (tmp_path / "closed").exists() and not children()

    def test_environment_that_does_not_close_is_killed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(supervisor, "_END_SECONDS", 0.3)
        made = Pool(partial(_Closing, "", 60.0), 1, 1).start()
        made.rounds(2)
        with pytest.warns(RuntimeWarning, match=r"worker 0 .*not close .*0\.3"):
            made.lanes.close()
        assert not children()

    def test_waiting_for_the_end_can_be_interrupted(self) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        made = Pool(partial(_Closing, "", 60.0), 1, 1).start()
        made.rounds(2)
        made.lanes.supervisor.check = interrupt
        with pytest.raises(KeyboardInterrupt):
            made.lanes.close()
        assert not children()

    @pytest.mark.parametrize("kind", ["step", "sleep", "freeze"])
    def test_killed_learner_leaves_no_process(self, kind: str) -> None:
        code = f"""
from functools import partial
from tests.support.pools import Pool
from tests.support.worker_envs import FaultyEnv
made = Pool(partial(FaultyEnv, "{kind}", {10**9 if kind == "step" else 3}), 2, 2).start()
made.rounds(2)
print(*made.processes(), flush=True)
while True:
    made.round()
"""
        learner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert learner.stdout is not None
        pids = [int(pid) for pid in learner.stdout.readline().split()]
        time.sleep(0.2)
        learner.kill()
        learner.wait()
        learner.stdout.close()
        assert len(pids) == 2
        wait_until_gone(pids)

    def test_killed_learner_leaves_no_process_of_an_environment(self) -> None:
        code = """
import multiprocessing, time
from tests.support.pools import Pool
from tests.support.worker_envs import ForkingEnv
made = Pool(ForkingEnv, 1, 1).start()
forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))  # holds the pipe
forked.start()
print(*made.processes(), int(made.round()[0].next_observation.item()), forked.pid, flush=True)
while True:
    made.round()
"""
        learner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert learner.stdout is not None
        *pids, forked = [int(pid) for pid in learner.stdout.readline().split()]
        learner.kill()
        learner.wait()
        learner.stdout.close()
        try:
            assert len(pids) == 2
            wait_until_gone(pids)
        finally:
            os.kill(forked, signal.SIGKILL)


class _FailingClose(CountEnv):
    def close(self) -> None:
        raise RuntimeError("no room")


class _Closing(DiscreteWalkEnv):
    def __init__(self, path: str, seconds: float = 0.0) -> None:
        super().__init__()
        self.path, self.seconds = path, seconds

    def close(self) -> None:
        time.sleep(self.seconds)
        open(self.path, "w").close()


class TestSettings:
    @pytest.mark.parametrize(
        ("argument", "value"),
        [
            ("processes", 0),
            ("processes", 1.5),
            ("collect", 0),
            ("collect", "phase"),
            ("overlap", 1),
            ("max_staleness", 3),
            ("on_failure", "ignore"),
            ("restarts", -1),
            ("step_timeout", 0),
        ],
    )
    def test_bad_value_raises(self, argument: str, value: Any) -> None:
        with pytest.raises(ValueError, match=argument):
            Workers(**{"processes": 2, argument: value})

    def test_overlap_refuses_what_it_cannot_use(self) -> None:
        with pytest.raises(ValueError, match="max_staleness"):
            Workers(2, overlap=True, max_staleness=-1)
        for collect in (2, "episode"):
            with pytest.raises(ValueError, match="collect"):
                Workers(2, overlap=True, collect=collect)
        assert Workers(2, overlap=True, max_staleness=0).max_staleness == 0

"""Worker processes that collect all the time, without a learner."""

from __future__ import annotations

import itertools
import os
import signal
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

from noterl.collect import WorkerError, Workers
from noterl.collect.checks import check_state
from noterl.collect.workers import lanes as pool_module
from noterl.learning.schedule import UpdateSchedule
from tests.support.pools import Pool, children, pool, running
from tests.support.states import differences
from tests.support.worker_envs import DiscreteWalkEnv, FaultyEnv, IdEnv, SlowEnv

pytestmark = [pytest.mark.backend_free, pytest.mark.slow]


def overlapping(processes: int = 2, **settings: Any) -> Workers:
    return Workers(processes, overlap=True, **settings)


def wait_until_ahead(made: Pool, rounds: int) -> None:
    while any(inbox.rows < rounds * inbox.count for inbox in made.lanes.inboxes):
        time.sleep(0.005)


class TestCollecting:
    def test_transitions_follow_each_other_within_an_episode(self) -> None:
        with pool(DiscreteWalkEnv, 4, overlapping()) as made:
            transitions = made.rounds(100)
        assert [each.lane for each in transitions] == [0, 1, 2, 3] * 100
        for lane in range(4):
            own = [each for each in transitions if each.lane == lane]
            for before, after in itertools.pairwise(own):
                ended = before.terminated or before.truncated
                assert ended != np.array_equal(before.next_observation, after.observation)

    def test_workers_go_on_while_the_learner_is_busy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pool_module, "RING_ROUNDS", 20)
        with pool(DiscreteWalkEnv, 3, overlapping()) as made:
            made.round()
            wait_until_ahead(made, 20)  # as far as the rings hold
            time.sleep(0.05)
            assert [inbox.rows for inbox in made.lanes.inboxes] == [20, 40]
            made.rounds(3)

    def test_workers_wait_at_the_limit(self) -> None:
        with pool(DiscreteWalkEnv, 2, overlapping()) as made:
            made.ahead = 5
            made.round()
            wait_until_ahead(made, 5)
            time.sleep(0.05)
            assert [inbox.rows for inbox in made.lanes.inboxes] == [5, 5]
            made.ahead = 1
            made.rounds(8)
            time.sleep(0.05)
            assert [inbox.rows for inbox in made.lanes.inboxes] == [1, 1]  # that of the last round

    def test_without_lead_the_run_is_that_of_workers_that_wait(self) -> None:
        runs = []
        for settings in (Workers(2), overlapping()):
            with pool(DiscreteWalkEnv, 3, settings) as made:
                made.ahead = 1 if settings.overlap else None
                runs.append(made.rounds(40))
        assert not differences(*([list(each) for each in run] for run in runs))

    def test_newest_weights_choose_the_actions(self) -> None:
        with pool(DiscreteWalkEnv, 2, overlapping(1)) as made:
            made.ahead, made.actor.explorer.eps = 4, 0.0
            made.actor.forward.set(0.0)  # equal values: action 0
            first = made.rounds(1)
            wait_until_ahead(made, 4)
            made.actor.forward._weights = [np.zeros((2, 2), np.float32), np.array([0.0, 1.0], np.float32)]
            made.lanes.learned(7)
            rest = made.rounds(5)
        assert [each.action for each in first + rest] == [0] * 8 + [1] * 4

    def test_changed_exploration_reaches_workers(self) -> None:
        with pool(DiscreteWalkEnv, 2, overlapping()) as made:
            made.ahead = 2
            made.actor.forward.set(0.0)
            made.actor.explorer.eps = 0.0
            assert {each.action for each in made.rounds(30)} == {0}
            made.actor.explorer.eps = 1.0
            assert {each.action for each in made.rounds(30)} == {0, 1}

    def test_first_round_has_the_changed_exploration(self) -> None:
        """Also if a worker begins before the learner sends its next command."""
        with pool(DiscreteWalkEnv, 2, overlapping()) as made:
            supervisor: Any = made.lanes.supervisor
            send = supervisor.send

            def send_slowly(index: int, name: str, *arguments: Any) -> None:
                send(index, name, *arguments)
                if name == "run":
                    time.sleep(0.1)

            supervisor.send = send_slowly
            made.ahead = 12
            made.actor.forward.set(0.0)
            made.actor.explorer.eps = 0.0
            assert {each.action for each in made.rounds(12)} == {0}

    def test_staleness_and_ratio_are_logged(self) -> None:
        with pool(DiscreteWalkEnv, 2, overlapping()) as made:
            made.ahead = 6
            assert made.lanes.logs(0) == {"worker": 0}
            made.round()
            wait_until_ahead(made, 6)
            made.lanes.learned(3)
            made.lanes.idle()
            made.lanes.rounds.collect(made.steps, 1, 3)
            logs = made.lanes.logs(1)
        assert logs["staleness"] == 3 and logs["worker"] == 1
        assert logs["update_ratio"] == pytest.approx(3 / 12)  # 12 steps were collected


class TestState:
    def test_state_in_the_middle_is_consistent(self) -> None:
        with pool(DiscreteWalkEnv, 3, overlapping()) as made:
            made.rounds(7)
            wait_until_ahead(made, 30)
            state, generators = made.lanes.get_state(), made.generators.get_state()
            counts = made.steps, made.episodes
            check_state(state, made.source)
            expected = made.rounds(30)
            assert not made.cut
        restored = Pool(DiscreteWalkEnv, 3, overlapping(), seed=9)
        restored.generators.set_state(generators)
        restored.lanes.set_state(state)
        restored.steps, restored.episodes = counts
        restored.start()
        try:
            transitions = restored.rounds(30)
            assert not differences([list(each) for each in transitions], [list(each) for each in expected])
            following = restored.rounds(300)  # collected after the state was restored
            assert len(following) == 900 and not restored.cut
        finally:
            restored.lanes.close()

    def test_hurried_state_keeps_the_rounds_of_all_workers(self) -> None:
        with pool(partial(SlowEnv, 0.01), 2, overlapping()) as made:
            made.rounds(2)
            state = made.lanes.get_state(hurry=True)
            pids = made.processes()
            made.lanes.close()
            assert not running(pids)
        check_state(state, made.source)
        assert all(ledger["running"] == [True] for ledger in state["pool"]["ledgers"])


class TestFailures:
    def test_killed_worker_is_noticed_and_replaced(self) -> None:
        with pool(DiscreteWalkEnv, 4, overlapping()) as made:
            made.rounds(7)
            victim, other = made.processes()
            os.kill(victim, signal.SIGKILL)
            with pytest.warns(RuntimeWarning, match="worker 0 .*SIGKILL"):
                while made.processes()[0] == victim:
                    made.round()
            transitions = made.rounds(600)
            assert made.processes()[1] == other and set(made.cut) <= {0, 1}  # a lane between two episodes is not cut
            assert {each.lane for each in transitions} == {0, 1, 2, 3}

    def test_dead_worker_is_noticed_before_its_rounds_are_consumed(self) -> None:
        with pool(DiscreteWalkEnv, 2, overlapping(on_failure="raise")) as made:
            made.rounds(2)
            wait_until_ahead(made, 100)
            os.kill(made.processes()[1], signal.SIGKILL)
            consumed = 0
            with pytest.raises(WorkerError, match="worker 1"):
                while consumed < 90:
                    made.round()
                    consumed += 1
                    time.sleep(0.02)  # the learner is busy
            assert consumed < 90  # the rounds that the worker had collected were not all consumed
        assert not children()

    def test_replaced_worker_uses_new_seeds(self) -> None:
        with pool(IdEnv, 2, overlapping()) as made:
            made.ahead = 3
            seeds = [each.observation[1] for each in made.rounds(7)]
            os.kill(made.processes()[0], signal.SIGKILL)
            with pytest.warns(RuntimeWarning, match="worker 0"):
                later = made.rounds(30)
            newest = made.processes()[0]
        new = [each.observation[1] for each in later if each.lane == 0 and each.observation[0] == newest]
        assert len(set(new)) > 5 and not set(seeds) & set(new)

    def test_exception_of_an_environment_arrives_with_its_traceback(self) -> None:
        with (
            pytest.raises(WorkerError, match="ZeroDivisionError"),
            pool(partial(FaultyEnv, "raise"), 4, overlapping()) as made,
        ):
            made.rounds(100)
        assert not children()

    def test_hung_environment_ends(self) -> None:
        # A worker that is late because the machine is busy raises the same error.
        env = partial(FaultyEnv, "sleep", 5)
        with (
            pool(env, 2, overlapping(step_timeout=1.0, on_failure="raise")) as made,
            pytest.raises(WorkerError, match="step_timeout=1"),
        ):
            made.rounds(20)
        assert not children()


class TestStepsWithin:
    @pytest.mark.parametrize(("update_every", "updates"), [(1, 1), (4, 2), (50, 50), (3, 7), ("episode", 2)])
    @pytest.mark.parametrize("learning_starts", [0, 10, 23])
    def test_agrees_with_what_is_due(self, update_every: Any, updates: int, learning_starts: int) -> None:
        schedule = UpdateSchedule(
            batch_size=1,
            learning_starts=learning_starts,
            update_every=update_every,
            updates=updates,
            target_update=None,
        )

        def due(first: int, last: int) -> int:
            """Count the updates that are due if each step ends an episode."""
            return sum(schedule.due(step, step + 1, 1, lambda: 1).updates for step in range(first, last))

        for step, most in itertools.product(range(0, 60, 7), (0, 1, 2, 5, 49, 50, 120)):
            found = schedule.steps_within(most, step, 1)
            assert due(step, step + found) <= most < due(step, step + found + 1)

    def test_pass_counts_the_most_updates(self) -> None:
        schedule = UpdateSchedule(batch_size=4, learning_starts=0, update_every=10, updates="pass", target_update=None)
        assert schedule.steps_within(24, 0, 25) == 9 and schedule.steps_within(25, 0, 25) == 19

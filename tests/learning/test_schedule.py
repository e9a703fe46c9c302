"""When updates and hard copies fall due, in how many calls they run, and which actions are random."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import noterl
from noterl.callbacks import LambdaCallback
from noterl.learning.schedule import Due, UpdateSchedule
from noterl.policies import GreedyQPolicy
from noterl.training.loop import LARGEST_CALL, call_size
from tests.support.doubles import CountingEnv, TogetherVectorEnv
from tests.support.tape import Tape, TapeAgent, TapeEnv, taped, updates_of


@pytest.fixture
def tape() -> Tape:
    return Tape()


class TestSchedule:
    @given(
        learning_starts=st.integers(0, 20),
        update_every=st.integers(1, 7),
        updates=st.integers(1, 5),
        hard=st.integers(1, 9),
        ticks=st.lists(st.integers(0, 4), max_size=25),
    )
    def test_what_is_due_by_counting(
        self, learning_starts: int, update_every: int, updates: int, hard: int, ticks: list[int]
    ) -> None:
        schedule = UpdateSchedule(
            batch_size=1,
            learning_starts=learning_starts,
            update_every=update_every,
            updates=updates,
            target_update=hard,
        )
        steps = 0
        for tick in ticks:
            fallen = range(steps + 1, steps + tick + 1)
            groups = sum(step % update_every == 0 and step > learning_starts for step in fallen)
            target = any(step % hard == 0 for step in fallen)
            assert schedule.due(steps, steps + tick, 0, lambda: 100) == Due(groups * updates, target)
            steps += tick

    @pytest.mark.parametrize("num_envs", [1, 3])
    @pytest.mark.parametrize(("learning_starts", "steps"), [(1, 12), (5, 12), (12, 12), (30, 12)])
    def test_with_an_update_at_every_step(self, tape: Tape, num_envs: int, learning_starts: int, steps: int) -> None:
        agent = taped(tape, update_every=1, updates=1, learning_starts=learning_starts)
        agent.fit(steps=steps, num_envs=num_envs, verbose=0)
        assert agent.updates == updates_of(tape) == max(steps - learning_starts, 0)

    def test_updates_begin_at_the_first_multiple_after_learning_starts(self, tape: Tape) -> None:
        agent = taped(tape, update_every=4, updates=3, learning_starts=8, length=100)
        at = []
        agent.fit(steps=20, callbacks=[LambdaCallback(on_batch_begin=lambda *_: at.append(agent.steps))], verbose=0)
        assert at == [12] * 3 + [16] * 3 + [20] * 3

    def test_a_batch_that_is_not_there_yet_is_not_waited_for(self, tape: Tape) -> None:
        agent = taped(tape, update_every=1, updates=1, learning_starts=0, batch_size=5)
        agent.fit(steps=12, verbose=0)
        assert agent.updates == 12 - 4

    def test_per_episode(self, tape: Tape) -> None:
        agent = taped(tape, update_every="episode", updates=3, learning_starts=3, length=2)
        agent.fit(episodes=4, verbose=0)
        # The first episode ends at step 2, before learning starts.
        assert [entry for entry in tape if entry.startswith("update")] == ["update 3"] * 3
        assert agent.updates == 9

    def test_an_episode_that_ends_as_learning_starts(self, tape: Tape) -> None:
        agent = taped(tape, update_every="episode", updates=1, learning_starts=4, length=2)
        agent.fit(episodes=4, verbose=0)
        assert agent.updates == 2

    def test_a_pass_over_the_memory(self, tape: Tape) -> None:
        agent = taped(tape, update_every="episode", updates="pass", batch_size=4, length=5, target_update=None)
        agent.fit(episodes=3, verbose=0)
        assert [int(entry.split()[1]) for entry in tape if entry.startswith("update")] == [2, 3, 4]

    def test_the_hard_copy_comes_before_the_group_due_at_its_step(self, tape: Tape) -> None:
        agent = taped(tape, update_every=3, target_update=3, updates=1, learning_starts=1, length=100)
        agent.fit(steps=6, verbose=0)
        assert tape[1:] == [*["step 0"] * 3, "target", "update 1"] * 2

    def test_crossing_several_multiples_at_once_is_one_hard_copy(self, tape: Tape) -> None:
        vector = TogetherVectorEnv([lambda: CountingEnv(3)] * 5)
        agent = TapeAgent(vector, tape=tape)
        agent.compile(
            policy=GreedyQPolicy(), replay=noterl.Replay(100), batch_size=1, learning_starts=1, target_update=2
        )
        agent.fit(steps=10, verbose=0)
        assert tape.count("target") == 2

    def test_a_coefficient_is_no_hard_copy(self, tape: Tape) -> None:
        agent = taped(tape, target_update=0.25)
        agent.fit(steps=6, verbose=0)
        assert "target" not in tape
        assert agent.schedule.polyak
        assert float(agent.tau) == 0.25

    @pytest.mark.parametrize(
        ("name", "value", "may_be"),
        [
            ("batch_size", 0, "an int of at least 1"),
            ("batch_size", 2.0, "an int of at least 1"),
            ("learning_starts", -1, "an int of at least 0"),
            ("update_every", 0, "an int of at least 1 or 'episode'"),
            ("update_every", "pass", "an int of at least 1 or 'episode'"),
            ("updates", "episode", "an int of at least 1 or 'pass'"),
            ("updates", True, "an int of at least 1 or 'pass'"),
            ("target_update", 0, "an int .* or a float between 0 and 1"),
            ("target_update", -0.5, "an int .* or a float between 0 and 1"),
            ("target_update", 1.5, "an int .* or a float between 0 and 1"),
            ("target_update", math.nan, "an int .* or a float between 0 and 1"),
            ("target_update", math.inf, "an int .* or a float between 0 and 1"),
            ("target_update", "soft", "an int .* or a float between 0 and 1"),
            ("target_update", 1.0, "an int .* or a float between 0 and 1"),
            ("steps_per_execution", 0, "an int of at least 1 or 'auto'"),
            ("steps_per_execution", "all", "an int of at least 1 or 'auto'"),
        ],
    )
    def test_bad_values_are_named(self, tape: Tape, name: str, value: Any, may_be: str) -> None:
        agent = taped(tape)
        before = agent.schedule
        with pytest.raises(ValueError, match=rf"^{name} must be {may_be}.*, got {value!r}$"):
            agent.compile(policy=GreedyQPolicy(), **{name: value})
        assert agent.schedule is before


class TestCalls:
    """How a group is split into compiled calls changes no count."""

    @pytest.mark.parametrize("steps_per_execution", [1, 3, 8, "auto"])
    @pytest.mark.parametrize(("update_every", "updates"), [(1, 1), (4, 7), ("episode", "pass")])
    def test_counts(self, tape: Tape, steps_per_execution: Any, update_every: Any, updates: Any) -> None:
        agent = taped(
            tape, update_every=update_every, updates=updates, steps_per_execution=steps_per_execution, length=5
        )
        losses = []
        hook = LambdaCallback(on_batch_end=lambda batch, logs: losses.append((batch, logs["loss"])))
        agent.fit(steps=20, callbacks=[hook], verbose=0)
        expected = {1: 19, 4: 35, "episode": 5 + 10 + 15 + 20}[update_every]
        assert agent.updates == updates_of(tape) == expected
        assert losses == [(number, number) for number in range(expected)]
        calls = [int(entry.split()[1]) for entry in tape if entry.startswith("update")]
        assert max(calls) <= (LARGEST_CALL if steps_per_execution == "auto" else steps_per_execution)

    @pytest.mark.parametrize("steps_per_execution", [1, 3, "auto"])
    def test_what_is_said_of_a_group_is_handed_back_as_one(self, tape: Tape, steps_per_execution: Any) -> None:
        agent = TapeAgent(lambda: TapeEnv(tape, 0, 9), tape=tape)
        memory = ListeningReplay(100)
        agent.compile(
            policy=GreedyQPolicy(),
            replay=memory,
            batch_size=2,
            learning_starts=2,
            update_every=4,
            updates=7,
            steps_per_execution=steps_per_execution,
        )
        agent.feedback = lambda batch: {"td_error": batch.index * 10.0, "ratio": batch.index}
        agent.fit(steps=8, verbose=0)
        for sample, feedback in memory.heard:
            assert sample.indices.shape == (7, 2)
            assert list(feedback) == ["td_error"]
            np.testing.assert_array_equal(feedback["td_error"], sample.indices * 10.0)
        assert len(memory.heard) == 2

    def test_a_group_is_one_call(self) -> None:
        assert call_size(128, "auto", 128) == 128
        assert call_size(7, "auto", 7) == 7

    def test_groups_of_many_sizes_run_in_few(self) -> None:
        sizes = {call_size(updates, "auto", "pass") for updates in range(1, 10_000)}
        assert sizes == {1, 2, 4, 8, 16, 32, 64, 128, 256}
        assert all(call_size(updates, "auto", "pass") >= updates for updates in range(1, 257))

    def test_a_group_larger_than_the_largest_call(self, tape: Tape) -> None:
        agent = taped(tape, updates=600, update_every=2)
        agent.fit(steps=2, verbose=0)
        assert [entry for entry in tape if entry.startswith("update")] == ["update 256", "update 256", "update 88"]


class TestRandomActions:
    """Actions before `learning_starts` are uniform, all later ones the policy's."""

    @staticmethod
    def actions(
        tape: Tape, source: Any, learning_starts: int, steps: int, num_envs: int | None = None, marked: bool = True
    ) -> np.ndarray:
        """Return the actions in the memory: 7 where the policy chose, 0 where they are random, if that is `marked`."""
        agent = TapeAgent(source, tape=tape, seed=3)
        agent.select = lambda observations, *_: np.full(len(observations), 7)
        if marked:
            agent._random_actions = lambda count: np.zeros(count, np.int64)
        agent.compile(
            policy=GreedyQPolicy(),
            replay=noterl.Replay(steps),
            batch_size=1,
            learning_starts=learning_starts,
            update_every=10**9,
        )
        agent.fit(steps=steps, num_envs=num_envs, verbose=0)
        return agent.replay._storage.action.copy()

    @staticmethod
    def wide(tape: Tape) -> TapeEnv:
        environment = TapeEnv(tape, 0, 3)
        environment.action_space = gymnasium.spaces.Discrete(8)
        return environment

    @pytest.mark.parametrize("num_envs", [1, 3, 4])
    @pytest.mark.parametrize("learning_starts", [0, 1, 10, 12])
    def test_where_they_end(self, tape: Tape, num_envs: int, learning_starts: int) -> None:
        actions = self.actions(tape, lambda: self.wide(tape), learning_starts, 40, num_envs)
        assert actions.tolist() == [0] * learning_starts + [7] * (40 - learning_starts)

    @pytest.mark.filterwarnings("ignore:the budget ended within a step")
    def test_where_they_end_when_lanes_wait_for_their_reset(self, tape: Tape) -> None:
        """Uneven episodes leave waiting lanes between live ones, whose actions count for nothing."""
        for learning_starts in range(30):
            lengths = iter([2, 5, 3, 4])
            vector = TogetherVectorEnv([lambda lengths=lengths: EightEnv(next(lengths))] * 4)
            actions = self.actions(tape, vector, learning_starts, 40)
            assert actions.tolist() == [0] * learning_starts + [7] * (40 - learning_starts)

    @pytest.mark.parametrize("num_envs", [1, 4])
    def test_they_are_uniform(self, tape: Tape, num_envs: int) -> None:
        actions = self.actions(tape, lambda: self.wide(tape), 4000, 4000, num_envs, marked=False)
        for lane in range(num_envs):
            drawn = np.bincount(actions[lane::num_envs], minlength=8)
            expected = len(actions) / num_envs / 8
            assert ((drawn - expected) ** 2 / expected).sum() < 24.3  # chi-square of 7 degrees: p = 0.001
        pairs = np.bincount(actions[:-1] * 8 + actions[1:], minlength=64)
        expected = (len(actions) - 1) / 64
        assert ((pairs - expected) ** 2 / expected).sum() < 103.5  # 63 degrees: p = 0.001


class ListeningReplay(noterl.Replay):
    """Wants the errors, and keeps what it is told."""

    feedback_fields = ("td_error",)

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.heard: list[tuple[np.ndarray, dict[str, np.ndarray]]] = []

    def feedback(self, index, feedback):
        self.heard.append((index, feedback))


class EightEnv(CountingEnv):
    """A `CountingEnv` with eight actions."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.action_space = gymnasium.spaces.Discrete(8)

    def step(self, action):
        assert action in self.action_space
        return super().step(0)

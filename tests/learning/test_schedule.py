"""When updates and hard copies are due, in how many calls updates run, and which actions are random."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import noterl
from noterl.agent import Defaults
from noterl.callbacks import LambdaCallback
from noterl.learning.learner import LARGEST_CALL
from noterl.learning.schedule import Due, UpdateSchedule
from noterl.policies import GreedyQPolicy
from tests.support.doubles import CountingEnv, TogetherVectorEnv
from tests.support.parts import actor_of, learner_of
from tests.support.tape import Tape, TapeAgent, TapeEnv, taped, updates_of

pytestmark = pytest.mark.backends("torch")


@pytest.fixture
def tape() -> Tape:
    return Tape()


class DefaultsAgent(TapeAgent):
    """An agent with these defaults of `update_every` and `updates`."""

    def __init__(self, update_every: int | str, updates: int) -> None:
        super().__init__(CountingEnv, tape=Tape())
        self.my_defaults = Defaults(update_every=update_every, updates=updates, policy=GreedyQPolicy())

    def defaults(self) -> Defaults:
        return self.my_defaults


class TestSchedule:
    @given(
        learning_starts=st.integers(0, 20),
        update_every=st.integers(1, 7),
        updates=st.integers(1, 5),
        hard=st.integers(1, 9),
        ticks=st.lists(st.integers(0, 4), max_size=25),
    )
    def test_due_equals_counting_step_by_step(
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
            passed = range(steps + 1, steps + tick + 1)
            groups = sum(step % update_every == 0 and step > learning_starts for step in passed)
            target = any(step % hard == 0 for step in passed)
            assert schedule.due(steps, steps + tick, 0, lambda: 100) == Due(groups * updates, target)
            steps += tick

    @pytest.mark.parametrize("num_envs", [1, 3])
    @pytest.mark.parametrize(("learning_starts", "steps"), [(1, 12), (5, 12), (12, 12), (30, 12)])
    def test_update_at_every_step_after_learning_starts(
        self, tape: Tape, num_envs: int, learning_starts: int, steps: int
    ) -> None:
        agent = taped(tape, update_every=1, updates=1, learning_starts=learning_starts)
        agent.fit(steps=steps, num_envs=num_envs, verbose=0)
        assert agent.updates == updates_of(tape) == max(steps - learning_starts, 0)

    def test_updates_begin_at_the_first_multiple_after_learning_starts(self, tape: Tape) -> None:
        agent = taped(tape, update_every=4, updates=3, learning_starts=8, length=100)
        at = []
        agent.fit(steps=20, callbacks=[LambdaCallback(on_batch_begin=lambda *_: at.append(agent.steps))], verbose=0)
        assert at == [12] * 3 + [16] * 3 + [20] * 3

    def test_updates_that_are_due_before_a_full_batch_are_skipped(self, tape: Tape) -> None:
        agent = taped(tape, update_every=1, updates=1, learning_starts=0, batch_size=5)
        agent.fit(steps=12, verbose=0)
        assert agent.updates == 12 - 4

    def test_update_every_episode(self, tape: Tape) -> None:
        agent = taped(tape, update_every="episode", updates=3, learning_starts=3, length=2)
        agent.fit(episodes=4, verbose=0)
        # The first episode ends at step 2, before learning starts.
        assert [entry for entry in tape if entry.startswith("update")] == ["update 3"] * 3
        assert agent.updates == 9

    def test_no_update_for_episode_that_ends_at_learning_starts(self, tape: Tape) -> None:
        agent = taped(tape, update_every="episode", updates=1, learning_starts=4, length=2)
        agent.fit(episodes=4, verbose=0)
        assert agent.updates == 2

    def test_pass_makes_one_update_per_batch_of_the_memory(self, tape: Tape) -> None:
        agent = taped(tape, update_every="episode", updates="pass", batch_size=4, length=5, target_update=None)
        agent.fit(episodes=3, verbose=0)
        assert [int(entry.split()[1]) for entry in tape if entry.startswith("update")] == [2, 3, 4]

    def test_pass_of_another_process_may_be_shorter(self, tape: Tape) -> None:
        """Processes agree on the updates that the smallest memory gives."""
        agent = taped(tape, update_every="episode", updates="pass", batch_size=4, length=40)
        agent.fit(steps=20, verbose=0)
        assert [len(learner_of(agent).sample(updates)) for updates in (2, 5, 7)] == [2, 5, 7]

    def test_the_hard_copy_comes_before_the_group_due_at_its_step(self, tape: Tape) -> None:
        agent = taped(tape, update_every=3, target_update=3, updates=1, learning_starts=1, length=100)
        agent.fit(steps=6, verbose=0)
        assert tape[1:] == [*["step 0"] * 3, "target", "update 1"] * 2

    def test_crossing_several_multiples_at_once_makes_one_hard_copy(self, tape: Tape) -> None:
        vector = TogetherVectorEnv([lambda: CountingEnv(3)] * 5)
        agent = TapeAgent(vector, tape=tape)
        agent.compile(
            policy=GreedyQPolicy(), replay=noterl.Replay(100), batch_size=1, learning_starts=1, target_update=2
        )
        agent.fit(steps=10, verbose=0)
        assert tape.count("target") == 2

    @pytest.mark.parametrize(
        ("steps_per_execution", "groups"),
        [
            ("auto", [["3", "target", "1"], ["2", "target", "2"], ["1", "target", "3", "target"]]),
            (2, [["2", "1", "target", "1"], ["2", "target", "2"], ["1", "target", "2", "1", "target"]]),
        ],
    )
    def test_hard_copies_follow_every_third_update(
        self, tape: Tape, steps_per_execution: int | str, groups: list[list[str]]
    ) -> None:
        """Groups of four updates, also with a copy in the middle of a group."""
        settings: dict[str, Any] = {"update_every": 4, "updates": 4, "learning_starts": 0, "length": 100}
        settings |= {"target_update": 3, "target_unit": "updates", "steps_per_execution": steps_per_execution}
        taped(tape, **settings).fit(steps=12, verbose=0)
        steps = ["step 0"] * 4
        expected = [
            entry
            for group in groups
            for entry in (*steps, *(name if name == "target" else f"update {name}" for name in group))
        ]
        assert tape[1:] == expected

    def test_hard_copy_is_made_although_a_hook_raises(self, tape: Tape) -> None:
        class Raising(noterl.Callback):
            def on_batch_end(self, batch: int, logs: Any) -> None:
                if batch == 4:
                    raise OSError("full")

        settings: dict[str, Any] = {"update_every": 1, "updates": 1, "learning_starts": 0, "length": 100}
        agent = taped(tape, **settings, target_update=5, target_unit="updates")
        with pytest.raises(OSError, match="full"):
            agent.fit(steps=9, callbacks=[Raising()], verbose=0)
        assert agent.updates == 5 and tape[-1] == "target"

    @pytest.mark.parametrize("target_update", [None, 0.25])
    def test_target_unit_without_hard_copies_raises(self, tape: Tape, target_update: Any) -> None:
        with pytest.raises(ValueError, match=r"^target_unit"):
            UpdateSchedule(
                batch_size=1,
                learning_starts=0,
                update_every=1,
                updates=1,
                target_update=target_update,
                target_unit="updates",
            )
        with pytest.raises(ValueError, match=r"^target_unit .*got 'episodes'"):
            taped(tape, target_unit="episodes")

    def test_polyak_coefficient_makes_no_hard_copies(self, tape: Tape) -> None:
        agent = taped(tape, target_update=0.25)
        agent.fit(steps=6, verbose=0)
        assert "target" not in tape
        assert agent.schedule.polyak
        assert float(agent.tau) == 0.25


class TestDefaultUpdates:
    """`updates` depends on `update_every` if only the latter is given, so that updates per step do not increase."""

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ({}, (8, 16)),
            ({"update_every": 4}, (4, 8)),
            ({"update_every": 1}, (1, 2)),
            ({"update_every": 64}, (64, 16)),
            ({"update_every": "episode"}, ("episode", 16)),
            ({"update_every": 4, "updates": 16}, (4, 16)),
            ({"update_every": 4, "updates": "pass"}, (4, "pass")),
            ({"updates": 5}, (8, 5)),
        ],
    )
    def test_smaller_update_every_reduces_the_default_of_updates(
        self, arguments: dict[str, Any], expected: tuple[Any, Any]
    ) -> None:
        agent = DefaultsAgent(8, 16)
        agent.compile(**arguments)
        assert (agent.schedule.update_every, agent.schedule.updates) == expected

    def test_at_least_one_update_is_made(self) -> None:
        agent = DefaultsAgent(100, 1)
        agent.compile(update_every=3)
        assert (agent.schedule.update_every, agent.schedule.updates) == (3, 1)

    def test_default_of_an_episode_is_kept(self) -> None:
        agent = DefaultsAgent("episode", 16)
        agent.compile(update_every=4)
        assert (agent.schedule.update_every, agent.schedule.updates) == (4, 16)

    def test_dqn_with_a_smaller_update_every_keeps_its_updates_per_step(self) -> None:
        agent = noterl.DQN("CartPole-v1", hidden=(4,))
        agent.compile()
        ratio = agent.schedule.updates_per_step
        agent.compile(update_every=4)
        assert agent.schedule.updates_per_step == ratio

    def test_more_than_four_updates_per_step_warn(self) -> None:
        agent = noterl.DQN("CartPole-v1", hidden=(4,))
        with pytest.warns(RuntimeWarning, match=r"^updates: 9 every 2 steps .*4\.5") as caught:
            agent.compile(update_every=2, updates=9)
        assert caught[0].filename == __file__
        agent.compile(update_every=2, updates=8)  # no warning

    def test_summary_shows_the_updates_per_step(self, capsys: pytest.CaptureFixture[str]) -> None:
        for arguments, expected in (
            ({"update_every": 8, "updates": 2}, "; updates: 2 every 8 steps (0.25 per step)\n"),
            ({"update_every": "episode", "updates": "pass"}, "; updates: pass every episode\n"),
        ):
            agent = noterl.DQN("CartPole-v1", hidden=(4,))
            agent.compile(replay=noterl.Replay(100), **arguments)
            agent.summary()
            assert expected in capsys.readouterr().out


class TestCalls:
    """Splitting a group into compiled calls changes neither the number of updates nor their logs."""

    @pytest.mark.parametrize("steps_per_execution", [1, 3, 8, "auto"])
    @pytest.mark.parametrize(("update_every", "updates"), [(1, 1), (4, 7), ("episode", "pass")])
    def test_numbers_of_updates_do_not_depend_on_the_call_size(
        self, tape: Tape, steps_per_execution: Any, update_every: Any, updates: Any
    ) -> None:
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
    def test_feedback_of_a_group_arrives_in_one_call(self, tape: Tape, steps_per_execution: Any) -> None:
        agent = TapeAgent(lambda: TapeEnv(tape, 0, 9), tape=tape)
        memory = RecordingReplay(100)
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
        for sample, feedback in memory.received:
            assert sample.indices.shape == (7, 2)
            assert list(feedback) == ["td_error"]
            np.testing.assert_array_equal(feedback["td_error"], sample.indices * 10.0)
        assert len(memory.received) == 2

    @pytest.mark.parametrize("updates", [7, 128])
    def test_the_usual_group_is_one_call(self, tape: Tape, updates: int) -> None:
        assert learner_of(taped(tape, updates=updates, update_every=updates)).call_size(updates) == updates

    def test_calls_for_groups_of_many_sizes_have_few_sizes(self, tape: Tape) -> None:
        learner = learner_of(taped(tape, updates="pass"))
        sizes = {learner.call_size(updates) for updates in range(1, 10_000)}
        assert sizes == {1, 2, 4, 8, 16, 32, 64, 128, 256}
        assert all(learner.call_size(updates) >= updates for updates in range(1, 257))

    @pytest.mark.parametrize(("adapted", "shared"), [(50, 48), (48, 48), (2, 4)])
    def test_adapted_batch_is_divisible_by_the_replicas(self, tape: Tape, adapted: int, shared: int) -> None:
        learner = learner_of(taped(tape))
        learner.schedule.batch_size = adapted
        learner.strategy = type("Four", (), {"replicas": 4, "share": lambda self, size: size // 4})()
        assert (learner.batch_size, learner.share) == (shared, shared // 4)

    def test_a_group_larger_than_the_largest_call_is_split(self, tape: Tape) -> None:
        agent = taped(tape, updates=600, update_every=150)
        agent.fit(steps=150, verbose=0)
        assert [entry for entry in tape if entry.startswith("update")] == ["update 256", "update 256", "update 88"]


class TestRandomActions:
    """Actions before `learning_starts` are uniformly random; the policy chooses all later ones."""

    @staticmethod
    def actions(
        tape: Tape, source: Any, learning_starts: int, steps: int, num_envs: int | None = None, marked: bool = True
    ) -> np.ndarray:
        """Return the stored actions: 7 if the policy chose it; if `marked`, 0 if it is random."""
        agent = TapeAgent(source, tape=tape, seed=3)
        agent.compile(
            policy=GreedyQPolicy(),
            replay=noterl.Replay(steps),
            batch_size=1,
            learning_starts=learning_starts,
            update_every=10**9,
        )
        actor: Any = actor_of(agent)
        actor.select = lambda observations, *_: (np.full(len(observations), 7), {})
        if marked:
            actor.random_actions = lambda count, mask: np.zeros(count, np.int64)
        agent.fit(steps=steps, num_envs=num_envs, verbose=0)
        return agent.replay._storage.action.copy()

    @staticmethod
    def wide(tape: Tape) -> TapeEnv:
        environment = TapeEnv(tape, 0, 3)
        environment.action_space = gymnasium.spaces.Discrete(8)
        return environment

    @pytest.mark.parametrize("num_envs", [1, 3, 4])
    @pytest.mark.parametrize("learning_starts", [0, 1, 10, 12])
    def test_random_actions_end_at_learning_starts(self, tape: Tape, num_envs: int, learning_starts: int) -> None:
        actions = self.actions(tape, lambda: self.wide(tape), learning_starts, 40, num_envs)
        assert actions.tolist() == [0] * learning_starts + [7] * (40 - learning_starts)

    @pytest.mark.filterwarnings("ignore:the budget ended:RuntimeWarning")
    def test_waiting_lanes_do_not_count_as_random_actions(self, tape: Tape) -> None:
        """Episodes of different lengths leave waiting lanes between others; their actions do not count."""
        for learning_starts in range(30):
            lengths = iter([2, 5, 3, 4])
            vector = TogetherVectorEnv([lambda lengths=lengths: EightEnv(next(lengths))] * 4)
            actions = self.actions(tape, vector, learning_starts, 40)
            assert actions.tolist() == [0] * learning_starts + [7] * (40 - learning_starts)

    @pytest.mark.parametrize("num_envs", [1, 4])
    def test_random_actions_are_uniform(self, tape: Tape, num_envs: int) -> None:
        actions = self.actions(tape, lambda: self.wide(tape), 4000, 4000, num_envs, marked=False)
        for lane in range(num_envs):
            counts = np.bincount(actions[lane::num_envs], minlength=8)
            expected = len(actions) / num_envs / 8
            assert ((counts - expected) ** 2 / expected).sum() < 24.3  # chi-square of 7 degrees: p = 0.001
        pairs = np.bincount(actions[:-1] * 8 + actions[1:], minlength=64)
        expected = (len(actions) - 1) / 64
        assert ((pairs - expected) ** 2 / expected).sum() < 103.5  # 63 degrees: p = 0.001


class RecordingReplay(noterl.Replay):
    """Needs `td_error`, and stores the feedback that it receives."""

    feedback_fields = ("td_error",)

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.received: list[tuple[Any, dict[str, np.ndarray]]] = []

    def feedback(self, sample, fields):
        self.received.append((sample, fields))


class EightEnv(CountingEnv):
    """A `CountingEnv` with eight actions."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.action_space = gymnasium.spaces.Discrete(8)

    def step(self, action):
        assert action in self.action_space
        return super().step(0)

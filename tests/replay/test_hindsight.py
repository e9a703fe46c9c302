"""Hindsight: relabeled batches against a plain list, probabilities, reward functions, errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from noterl import envs
from noterl.envs import BitFlip, Reach2D
from noterl.replay import Hindsight, Prioritized, Replay
from tests.support.goal_model import GAMMA, OBSERVATIONS, Goals
from tests.support.replay_model import sample_batch

pytestmark = pytest.mark.backend_free

STRATEGIES = ("future", "final", "episode")

lanes = st.integers(0, 2)
operations = st.lists(
    st.one_of(
        *[st.tuples(st.just("add"), lanes, st.sampled_from([None, None, None, "terminated", "truncated"]))] * 8,
        st.tuples(st.just("interrupt"), lanes),
        st.tuples(st.just("keep"), st.integers(1, 3)),
        st.tuples(st.just("restore")),
    ),
    min_size=1,
    max_size=40,
)


def compare(goals: Goals, strategy: str, ratio: float) -> None:
    """Sample a batch and compare each transition with the model."""
    by_index = {each.row: each for each in goals.unmasked()}
    if not by_index:
        return
    size = max(1, len(by_index) // 2)
    before = len(goals.rule.calls)
    sample = goals.replay.sample(3, size, generator=np.random.default_rng(0))
    batch = goals.replay.gather(sample, gamma=GAMMA)
    relabeled = sample.choices["goal"] >= 0
    assert len(goals.rule.calls) - before == bool(relabeled.any())
    count = relabeled.sum()
    assert np.floor(3 * size * ratio) <= count <= np.ceil(3 * size * ratio)
    for place in np.ndindex(3, size):
        stored = by_index[int(sample.indices[place])]
        desired = int(batch.observation["desired_goal"][place][0])
        assert batch.next_observation["desired_goal"][place] == desired
        goal = desired if relabeled[place] else None
        assert desired in goals.goals(stored, strategy) if relabeled[place] else desired == stored.desired
        total, discount, following = goals.expected(stored, goal, goals.replay.n_step)
        assert batch.reward[place] == np.float32(total)
        assert batch.discount[place] == np.float32(discount)
        assert batch.observation["observation"][place] == stored.number
        assert batch.observation["achieved_goal"][place] == stored.number + 1000
        assert batch.next_observation["observation"][place] == following
        assert batch.action[place] == stored.number % 4


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("sampler", [None, Prioritized])
@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=60, deadline=None)
@given(capacity=st.integers(1, 12), ratio=st.sampled_from([0.0, 0.5, 0.8, 1.0]), operations=operations)
def test_any_history_gives_the_batches_of_a_plain_list(
    strategy: str, sampler: Any, n_step: int, capacity: int, ratio: float, operations: Any
) -> None:
    goals = Goals(capacity, sampler=sampler, relabel=lambda: Hindsight(strategy, ratio), n_step=n_step)
    for operation, *arguments in operations:
        getattr(goals, operation)(*arguments)
        compare(goals, strategy, ratio)


def played(relabel: Any, lengths: tuple[int, ...] = (10, 6), **keywords: Any) -> Goals:
    """Return a memory with episodes of these lengths; the last one is running."""
    goals = Goals(64, relabel=lambda: relabel, **keywords)
    for number, length in enumerate(lengths):
        for step in range(length):
            goals.add(0, "truncated" if step == length - 1 and number < len(lengths) - 1 else None)
    return goals


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_goals_are_uniform_over_those_of_the_strategy(strategy: str) -> None:
    goals = played(Hindsight(strategy, 1.0), (10,))
    stored = goals.stored[3]
    choices = goals.replay.relabel.sample_choices(np.full(7000, stored.row), np.random.default_rng(1))["goal"]
    rows, counts = np.unique(choices, return_counts=True)
    allowed = {"future": 7, "final": 1, "episode": 10}[strategy]
    assert len(rows) == allowed and abs(counts / 7000 - 1 / allowed).max() < 0.02


def test_each_position_has_the_same_probability_and_each_batch_the_same_ratio() -> None:
    goals, generator = played(Hindsight(ratio=0.75)), np.random.default_rng(2)
    chosen = [goals.replay.sample(2, 8, generator=generator).choices["goal"] >= 0 for _ in range(2000)]
    assert all((each.sum(axis=1) == 6).all() for each in chosen)
    assert abs(np.mean(chosen, axis=0) - 0.75).max() < 0.03


def test_gathering_a_sample_in_parts_gives_the_same_batches() -> None:
    goals = played(Hindsight(), n_step=2)
    sample = goals.replay.sample(4, 8, generator=np.random.default_rng(3))
    whole, parts = (
        [goals.replay.gather(each, gamma=GAMMA) for each in pieces] for pieces in ([sample], [sample[:1], sample[1:4]])
    )
    assert np.array_equal(whole[0].reward, np.concatenate([each.reward for each in parts]))
    assert np.array_equal(
        whole[0].next_observation["desired_goal"],
        np.concatenate([each.next_observation["desired_goal"] for each in parts]),
    )


def test_a_pass_samples_each_transition_once() -> None:
    goals = played(Hindsight(ratio=0.5))
    sample = goals.replay.sample_pass(8, generator=np.random.default_rng(4))
    assert sorted(sample.indices.ravel()) == list(range(16)) and (sample.choices["goal"] >= 0).sum() == 8


@pytest.mark.parametrize("make", [Reach2D, BitFlip])
@pytest.mark.parametrize("n_step", [1, 4])
def test_rewards_are_those_of_the_environment_for_the_new_goal(make: Any, n_step: int) -> None:
    env = make()
    replay = Replay(500, relabel=Hindsight(), n_step=n_step)
    replay.relabel.attach(object(), envs.resolve(env))
    replay.build(env.observation_space, env.action_space)
    env.action_space.seed(0)
    observation, over = env.reset(seed=0)[0], False
    for _ in range(700):
        if over:
            observation = env.reset()[0]
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        replay.add(0, observation, action, reward, following, terminated, truncated)
        observation, over = following, terminated or truncated
    batch = sample_batch(replay, 4, 64)
    goals = batch.next_observation["achieved_goal"], batch.next_observation["desired_goal"]
    over = env.compute_terminated(*goals, {})
    assert np.array_equal(batch.discount == 0, over) and 0.02 < over.mean() < 0.9
    if n_step == 1:
        assert np.array_equal(batch.reward, env.compute_reward(*goals, {}).astype(np.float32))
    else:
        # -1 for every step but the one that reaches the goal.
        lengths = np.round(np.log(np.where(over, 1, batch.discount)) / np.log(0.9))
        full = -(1 - 0.9 ** lengths[~over]) / 0.1
        np.testing.assert_allclose(batch.reward[~over], full, rtol=1e-5)


class Doubled(gymnasium.Wrapper):
    """Doubles the rewards."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return 2 * self.env.unwrapped.compute_reward(achieved_goal, desired_goal, info)


class TestRules:
    @pytest.mark.parametrize(
        ("env", "factor"),
        [
            (gymnasium.wrappers.TimeLimit(BitFlip(3), 2), 1),
            (gymnasium.wrappers.TimeLimit(Doubled(BitFlip(3)), 2), 2),
            (lambda: BitFlip(3), 1),
            (SyncVectorEnv([lambda: Doubled(BitFlip(3))] * 2), 2),
        ],
    )
    def test_rules_are_found_under_wrappers_and_in_vector_environments(self, env: Any, factor: int) -> None:
        relabel = Hindsight()
        relabel.attach(object(), envs.resolve(env))
        goals = np.array([[0, 0, 1]], np.int8), np.array([[0, 1, 1]], np.int8)
        assert relabel._compute_reward(*goals, [{}]).tolist() == [-factor]
        assert relabel._compute_terminated(*goals, [{}]).tolist() == [False]
        assert relabel._compute_terminated(goals[0], goals[0], [{}]).tolist() == [True]

    def test_without_compute_terminated_the_stored_termination_stays(self) -> None:
        replay = Replay(10, relabel=Hindsight(ratio=1.0))
        replay.relabel.attach(SimpleNamespace(compute_reward=lambda achieved, desired, info: np.zeros(len(info))))
        env = BitFlip(3)
        replay.build(env.observation_space, env.action_space)
        observation, _ = env.reset(seed=0)
        for terminated in (False, True):
            replay.add(0, observation, 0, -1.0, observation, terminated, False)
        batch = sample_batch(replay, 1, 2, gamma=0.5)
        assert batch.reward.tolist() == [[0.0, 0.0]]
        assert (batch.discount == np.where(batch.index == 1, 0.0, 0.5)).all()

    def test_rule_of_the_agent_replaces_that_of_its_environment(self) -> None:
        agent = SimpleNamespace(compute_reward=lambda achieved, desired, info: np.full(len(info), 7.0))
        relabel = Hindsight()
        relabel.attach(agent, envs.resolve(BitFlip(3)))
        assert relabel._compute_reward is agent.compute_reward
        goals = np.array([[0, 0, 1], [0, 1, 1]], np.int8)
        assert relabel._compute_terminated(goals, goals[:1], [{}] * 2).tolist() == [True, False]  # the environment's
        agent.compute_terminated = lambda achieved, desired, info: np.ones(len(info), bool)
        relabel.attach(agent, envs.resolve(BitFlip(3)))
        assert relabel._compute_terminated is agent.compute_terminated

    def test_rules_receive_goals_in_their_stored_dtype(self) -> None:
        seen = []
        space = spaces.Dict(dict.fromkeys(OBSERVATIONS.spaces, spaces.Box(0, 1, (1,), np.float64)))

        def compute_reward(achieved: Any, desired: Any, info: Any) -> Any:
            seen.append((achieved, desired))
            return np.zeros(len(info))

        replay = Replay(10, relabel=Hindsight("final", 1.0))
        replay.relabel.attach(SimpleNamespace(compute_reward=compute_reward))
        replay.build(space, spaces.Discrete(2))
        observation = {name: np.array([0.1]) for name in space.spaces}
        replay.add(0, observation, 0, -1.0, observation, False, False)
        sample_batch(replay, 1, 1, gamma=0.5)
        assert seen[0][0].dtype == seen[0][1].dtype == np.float64 and seen[0][1].tolist() == [[0.1]]

    def test_compute_reward_without_batches_raises(self) -> None:
        goals = played(Hindsight())
        goals.replay.relabel.attach(SimpleNamespace(compute_reward=lambda *_: 0.0))
        with pytest.raises(ValueError, match="compute_reward must"):
            sample_batch(goals.replay, 1, 8, gamma=0.5)

    def test_compute_terminated_without_batches_is_called_for_each_transition(self) -> None:
        goals, rule = played(Hindsight(ratio=1.0)), SimpleNamespace()
        rule.compute_reward = goals.rule.compute_reward
        rule.compute_terminated = lambda achieved, desired, info: bool(np.sum(achieved) % 2)
        goals.replay.relabel.attach(rule)
        batch = sample_batch(goals.replay, 2, 8, gamma=0.5)
        odd = batch.next_observation["achieved_goal"][..., 0] % 2 == 1
        assert np.array_equal(batch.discount == 0, odd) and 0 < odd.mean() < 1


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"strategy": "past"}, r"strategy must .*got 'past'"),
            ({"ratio": 1.5}, r"ratio must .*got 1\.5"),
            ({"ratio": True}, "ratio must be"),
        ],
    )
    def test_bad_arguments_are_named(self, arguments: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Hindsight(**arguments)

    @pytest.mark.parametrize(
        ("space", "message"),
        [
            (spaces.Box(0, 1, (2,)), r"relabel: .*Dict of observation"),
            (spaces.Dict({"observation": spaces.Discrete(2)}), r"Dict of .*achieved_goal, desired_goal"),
            (
                spaces.Dict({**OBSERVATIONS.spaces, "achieved_goal": spaces.Box(0, 1, (2,))}),
                "goals that are arrays",
            ),
        ],
    )
    def test_other_spaces_raise(self, space: Any, message: str) -> None:
        replay = Replay(10, relabel=Hindsight())
        with pytest.raises(ValueError, match=message):
            replay.build(space, spaces.Discrete(2))

    def test_environment_without_compute_reward_raises(self) -> None:
        with pytest.raises(ValueError, match="neither the agent nor the environment"):
            Hindsight().attach(object(), envs.resolve("CartPole-v1"))

    def test_gather_before_attach_raises(self) -> None:
        env = BitFlip(2)
        replay = Replay(10, relabel=Hindsight(ratio=1.0))
        replay.build(env.observation_space, env.action_space)
        observation, _ = env.reset(seed=0)
        replay.add(0, observation, 0, -1.0, observation, False, False)
        with pytest.raises(RuntimeError, match="has no compute_reward"):
            sample_batch(replay, 1, 1, gamma=0.5)

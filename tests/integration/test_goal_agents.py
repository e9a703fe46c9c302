"""Agents on observations that are not a Box: goal environments with hindsight, nested Dicts, discrete numbers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import noterl
from noterl.envs import BitFlip
from noterl.replay import Hindsight, Prioritized, Triplets
from tests.support.batches import differences
from tests.support.doubles import TogetherVectorEnv
from tests.support.parts import actor_of, lanes_of, sample_batch
from tests.support.replay_invariants import check_replay

pytestmark = pytest.mark.backends("torch")

BITS = 4


def bit_agent(
    env: Any = lambda: BitFlip(BITS),
    *,
    seed: int = 5,
    n_step: int = 1,
    learning_starts: int = 10,
    steps_per_execution: Any = "auto",
) -> Any:
    agent = noterl.DQN(env, hidden=(8,), gamma=0.9, seed=seed)
    agent.compile(
        replay=noterl.Replay(200, relabel=Hindsight(), n_step=n_step),
        batch_size=8,
        learning_starts=learning_starts,
        update_every=5,
        updates=4,
        target_update=20,
        steps_per_execution=steps_per_execution,
    )
    return agent


@pytest.fixture(scope="module")
def trained() -> Any:
    agent = bit_agent()
    agent.fit(steps=150, verbose=0)
    return agent


class TestGoals:
    def test_networks_receive_observation_and_desired_goal(self, trained: Any) -> None:
        assert (trained.observation_size, trained.observation_shape) == (2 * BITS, (2 * BITS,))
        batch = sample_batch(trained, 2)
        assert batch.observation.shape == batch.next_observation.shape == (2, 8, 2 * BITS)
        assert batch.observation.dtype == np.float32 and actor_of(trained).forward.in_numpy

    def test_rewards_of_a_batch_match_its_goals(self, trained: Any) -> None:
        batch = sample_batch(trained, 8)
        reached = (batch.next_observation[..., :BITS] == batch.next_observation[..., BITS:]).all(-1)
        assert np.array_equal(batch.reward, reached - np.float32(1)) and 0.1 < reached.mean() < 0.9
        assert np.array_equal(batch.discount == 0, reached)

    def test_act_accepts_one_observation_and_a_batch(self, trained: Any) -> None:
        observations = [BitFlip(BITS).reset(seed=seed)[0] for seed in range(6)]
        actions = [trained.act(observation) for observation in observations]
        together = {name: np.stack([each[name] for each in observations]) for name in observations[0]}
        assert trained.act(together).tolist() == actions and all(type(action) is int for action in actions)
        with pytest.raises(ValueError, match=r"observation .*'achieved_goal'"):
            trained.act({"observation": np.zeros(BITS)})

    def test_evaluation_returns_the_success_rate(self, trained: Any) -> None:
        result = trained.evaluate(episodes=8)
        assert result["success_rate"] == np.mean(result["returns"] > -BITS)
        assert np.array_equal(trained.evaluate(episodes=8, num_envs=3)["returns"], result["returns"])

    def test_steps_per_execution_does_not_change_the_run(self, trained: Any) -> None:
        other = bit_agent(steps_per_execution=1)
        other.fit(steps=150, verbose=0)
        assert not differences(trained.get_state()["variables"], other.get_state()["variables"])

    def test_restored_run_equals_an_uninterrupted_one(self, tmp_path: Path) -> None:
        first = bit_agent(n_step=2)
        first.fit(steps=61, num_envs=3, verbose=0)
        first.save(tmp_path / "agent.noterl")
        second = bit_agent(n_step=2, seed=9)
        second.restore(tmp_path / "agent.noterl")
        for agent in (first, second):
            agent.fit(steps=50, num_envs=3, verbose=0)
        assert not differences(first.get_state(), second.get_state())

    def test_loaded_agent_acts_and_trains(self, trained: Any, tmp_path: Path) -> None:
        trained.save(tmp_path / "agent.noterl")
        again = noterl.load(tmp_path / "agent.noterl")
        observation, _ = BitFlip(BITS).reset(seed=1)
        assert again.act(observation) == trained.act(observation)
        again.fit(lambda: BitFlip(BITS), steps=5, verbose=0)
        assert isinstance(again.replay.relabel, Hindsight) and (again.steps, again.updates) == (
            155,
            trained.updates + 4,
        )

    @pytest.mark.filterwarnings("ignore:the budget ended within a step")
    @pytest.mark.parametrize("mode", list(AutoresetMode))
    def test_vector_environment_stores_whole_episodes(self, mode: AutoresetMode) -> None:
        agent = bit_agent(TogetherVectorEnv([lambda: BitFlip(BITS)] * 3, autoreset_mode=mode), learning_starts=1000)
        agent.fit(steps=60, verbose=0)
        check_replay(agent.replay)
        storage = agent.replay._storage
        rows = storage.stored_indices()
        before, after = storage.observations(rows), storage.next_observations(rows)
        flips = np.abs(after["achieved_goal"].astype(int) - before["achieved_goal"]).sum(-1)
        assert (flips == 1).all() and np.array_equal(after["desired_goal"], before["desired_goal"])
        reached = (after["achieved_goal"] == after["desired_goal"]).all(-1)
        assert np.array_equal(reached, storage.terminated[rows]) and storage.truncated[rows].any()

    def test_compute_reward_of_the_agent_takes_precedence(self) -> None:
        class RewardingDQN(noterl.DQN):
            def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
                return np.full(len(achieved_goal), 5.0)

        agent = RewardingDQN(lambda: BitFlip(BITS), hidden=(8,), seed=1)
        agent.compile(replay=noterl.Replay(100, relabel=Hindsight(ratio=1.0)), batch_size=8, learning_starts=1000)
        agent.fit(steps=20, verbose=0)
        assert (sample_batch(agent, 1).reward == 5.0).all()

    def test_column_of_rewards_raises_before_training(self) -> None:
        class Column(BitFlip):
            def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
                return -np.any(np.atleast_2d(achieved_goal != desired_goal), axis=-1, keepdims=True).astype(float)

            def step(self, action: Any) -> Any:
                observation, _, *others = super().step(action)
                reward = self.compute_reward(observation["achieved_goal"], observation["desired_goal"], {})
                return observation, float(reward), *others

        agent = bit_agent(lambda: Column(BITS))
        with pytest.raises(ValueError, match="compute_reward must"):
            agent.fit(steps=20, verbose=0)
        assert agent.steps == 0

    def test_environment_without_goals_raises_before_training(self) -> None:
        agent = noterl.DQN("CartPole-v1", hidden=(8,))
        agent.compile(replay=noterl.Replay(100, relabel=Hindsight()), batch_size=8)
        with pytest.raises(ValueError, match="relabel: "):
            agent.fit(steps=20, verbose=0)
        assert agent.steps == 0 and lanes_of(agent) is None


class Pairs(noterl.Agent):
    """Learns the rewards of both stretches of a triplet."""

    memory, head = "replay", noterl.heads.Q()

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.q = noterl.networks.mlp(self.observation_size, [8], self.action_size)

    def forward(self, observation: Any) -> Any:
        return self.q(observation)

    def loss(self, batch: Any) -> Any:
        best = [keras.ops.max(self.q(batch.observation[:, side]), axis=-1) for side in (0, 1)]
        errors = keras.ops.stack(best, axis=1) - batch.reward  # [B, 2]
        return keras.ops.mean(batch.weight[:, None] * keras.ops.square(errors)), {"td_error": errors}


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_agent_learns_from_prioritized_triplets() -> None:
    agent = Pairs(lambda: BitFlip(BITS), seed=1)
    agent.compile(
        replay=noterl.Replay(200, sampler=Prioritized(initial_td=0.1), relabel=Triplets()),
        batch_size=8,
        learning_starts=20,
        update_every=10,
        updates=2,
    )
    agent.fit(steps=60, verbose=0)
    batch = sample_batch(agent, 2)
    assert batch.observation.shape == (2, 8, 2, 2 * BITS) and batch.reward.shape == (2, 8, 2)
    assert agent.updates == 8 and agent.replay.sampler.probabilities().std() > 0


class RoomEnv(gymnasium.Env):
    """Observes random members of a space, renders, and rewards with the action."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, space: spaces.Space[Any], render_mode: str | None = None, broken: int | None = None) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)
        self.render_mode, self.broken, self.steps = render_mode, broken, 0

    def _observation(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(1000)))
        observation = copy.deepcopy(self.observation_space.sample())
        if self.steps == self.broken:
            observation["inner"]["grid"][0] = np.nan
        return observation

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def step(self, action: Any):
        self.steps += 1
        return self._observation(), float(action), False, self.steps >= 6, {}

    def render(self) -> np.ndarray:
        return np.full((8, 8, 3), self.steps, np.uint8)


NESTED = spaces.Dict(
    {"inner": spaces.Dict({"grid": spaces.Box(-1.0, 1.0, (2, 2), np.float64)}), "mode": spaces.Discrete(3)}
)


def room_agent(space: spaces.Space[Any], **keywords: Any) -> Any:
    agent = noterl.DQN(lambda render_mode=None: RoomEnv(space, render_mode, **keywords), hidden=(8,), seed=2)
    agent.compile(replay=noterl.Replay(100), batch_size=8, learning_starts=8, update_every=4, updates=1)
    return agent


@pytest.mark.parametrize("space", [NESTED, spaces.Discrete(5)], ids=["nested", "discrete"])
def test_agent_on_any_space_trains_resumes_and_renders(space: Any, tmp_path: Path) -> None:
    agent = room_agent(space)
    agent.fit(steps=33, num_envs=2, verbose=0)
    assert agent.updates == 6
    agent.save(tmp_path / "agent.noterl")
    other = room_agent(space)
    other.restore(tmp_path / "agent.noterl")
    for each in (agent, other):
        each.fit(steps=11, num_envs=2, verbose=0)
    assert not differences(agent.get_state(), other.get_state())
    assert agent.animate(tmp_path / "room.gif", max_steps=3) in (0.0, 1.0, 2.0, 3.0)


def test_error_names_a_part_that_is_not_finite() -> None:
    with pytest.raises(ValueError, match=r"\['inner'\]\['grid'\] .*0 at step 4"):
        room_agent(NESTED, broken=4).fit(steps=20, verbose=0)


def test_normalization_counts_achieved_goals() -> None:
    class Fixed(noterl.envs.Reach2D):
        def _begin(self) -> None:
            super()._begin()
            self.goal = np.array([4.0, 4.0], np.float32)

    agent = noterl.DDPG(Fixed, seed=1, hidden=(4,), normalize_observation=True)
    agent.compile(replay=noterl.Replay(1_000, relabel=Hindsight()), learning_starts=10**6)
    agent.fit(steps=200, verbose=0)
    goals = agent.replay.gather(agent.replay.sample(1, 64, generator=np.random.default_rng(0)), gamma=0.99).observation[
        "desired_goal"
    ][0]
    sample = agent.replay.sample(1, 64, generator=np.random.default_rng(0))
    sample.gamma = 0.99
    received = agent._parts.learner.gather(sample).observation[0][:, 2:]
    assert len(np.unique(received.round(3), axis=0)) == len(np.unique(goals.round(3), axis=0)) > 5
    assert np.abs(received).max() < 9.0

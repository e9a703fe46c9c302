"""Agents in environments of EnvPool; `test_atari_training.py` runs this file in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import noterl
from tests.support.states import assert_same_state

pytestmark = [
    pytest.mark.backends("torch"),
    pytest.mark.filterwarnings("ignore:the budget ended within a step"),
]


def small(env: Any) -> noterl.DQN:
    agent = noterl.DQN(env, hidden=(8,), seed=3)
    agent.compile(replay=noterl.Replay(500), learning_starts=20, update_every=10, batch_size=8, jit_compile=False)
    return agent


def test_reset_makes_a_pool_with_the_seed() -> None:
    vector = noterl.envs.EnvPool("CartPole-v1").make_vector(3)
    first, second = vector.reset(seed=1)[0].copy(), vector.reset(seed=2)[0].copy()
    assert np.array_equal(vector.reset(seed=1)[0], first) and not np.array_equal(first, second)
    assert len(np.unique(first, axis=0)) == 3
    vector.close()


def test_every_stored_transition_is_one_that_cartpole_makes() -> None:
    agent = small("envpool:CartPole-v1")
    agent.fit(steps=300, num_envs=3, verbose=0)
    assert agent.episodes > 5
    storage, model = agent.replay._storage, gymnasium.make("CartPole-v1").unwrapped
    model.reset(seed=0)
    rows = np.arange(storage.length)
    for row, before, after in zip(rows, storage.observations(rows), storage.next_observations(rows), strict=True):
        model.state, model.steps_beyond_terminated = tuple(before), None
        expected, _, over, _, _ = model.step(int(storage.action[row]))
        np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-5)
        assert (float(storage.reward[row]), bool(storage.terminated[row])) == (1.0, over)
    agent.close()


def test_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, half = small("envpool:CartPole-v1"), small("envpool:CartPole-v1")
    for agent in (whole, half):
        agent.fit(steps=60, num_envs=2, verbose=0)
    whole.fit(steps=60, verbose=0)
    half.save(tmp_path / "half.noterl")
    loaded = noterl.load(tmp_path / "half.noterl")
    loaded.fit(steps=60, verbose=0)
    assert_same_state(loaded.get_state(), whole.get_state())


def test_evaluation_is_reproducible_and_whole() -> None:
    agent = small(noterl.envs.EnvPool("CartPole-v1", max_episode_steps=7))
    first, second = (agent.evaluate(episodes=3)["returns"].tolist() for _ in range(2))
    assert first == second and max(first) <= 7
    training = noterl.envs.EnvPool("Pong-v5", reward_clip=True, episodic_life=True)
    assert training.make_single()._vector._options == {"reward_clip": False, "episodic_life": False}


def test_clipped_rewards_are_logged_unclipped() -> None:
    vector = noterl.envs.EnvPool("SpaceInvaders-v5", reward_clip=True).make_vector(2)
    vector.reset(seed=0)
    actions = np.random.default_rng(0).integers(6, size=(200, 2))
    steps = [vector.step(action) for action in actions]
    clipped, rewards = (
        np.array([step[1] for step in steps]),
        np.array([step[4]["unclipped_reward"] for step in steps]),
    )
    assert rewards.max() >= 5 and np.array_equal(clipped, np.sign(rewards))
    vector.close()


@pytest.mark.parametrize("task", ["CartPoll-v1", 3])
def test_unknown_task_raises(task: Any) -> None:
    with pytest.raises(ValueError, match=r"^task must"):
        noterl.envs.EnvPool(task)


def test_unknown_option_raises() -> None:
    with pytest.raises(ValueError, match=r"CartPole-v1.*colour"):
        noterl.envs.EnvPool("CartPole-v1", colour="red").make_vector(1)

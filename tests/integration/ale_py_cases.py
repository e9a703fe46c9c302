"""Agents in Atari games; `test_atari_training.py` runs this file in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import noterl
from noterl.callbacks import LambdaCallback
from tests.support.states import assert_same_state

pytestmark = [
    pytest.mark.backends("torch"),
    pytest.mark.filterwarnings("ignore:the budget ended within a step"),
]


def small(game: noterl.envs.Atari | str, **arguments: Any) -> noterl.DQN:
    agent = noterl.DQN(game, hidden=(8,), seed=3)
    replay = noterl.Replay(1_000, frame_stack=4)
    agent.compile(
        **{
            "replay": replay,
            "learning_starts": 60,
            "update_every": 20,
            "batch_size": 4,
            "jit_compile": False,
            **arguments,
        }
    )
    return agent


def test_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    game = noterl.envs.Atari("Breakout", episodic_life=True, size=40)
    whole, half = small(game), small(game)
    whole.fit(steps=70, num_envs=2, verbose=0)
    whole.fit(steps=70, verbose=0)
    half.fit(steps=70, num_envs=2, verbose=0)
    half.save(tmp_path / "half.noterl")
    loaded = noterl.load(tmp_path / "half.noterl")
    loaded.fit(steps=70, verbose=0)
    assert loaded.episodes > 2 and loaded.updates > 3
    assert_same_state(loaded.get_state(), whole.get_state())
    whole.close()
    loaded.close()


def test_logs_hold_the_rewards_of_the_game_and_the_memory_their_signs() -> None:
    # Without updates, and with random actions, which need no network.
    game = noterl.envs.Atari("SpaceInvaders", episodic_life=True, size=40)
    agent = small(game, update_every=10**6, learning_starts=10**6)
    history = agent.fit(steps=2_400, num_envs=4, info={"game_reward": "last"}, verbose=0).history
    storage = agent.replay._storage
    assert set(np.unique(storage.reward)) == {0.0, 1.0}
    assert {reward % 5 for reward in history["reward"]} == {0.0}  # an invader is worth 5 to 30 points
    assert max(history["reward"]) > 5
    games = [value for value in history["game_reward"] if not np.isnan(value)]
    assert 0 < len(games) < len(history["reward"])
    assert max(games) > max(history["reward"]) or sum(games) <= sum(history["reward"])
    agent.close()


def test_lanes_continue_and_their_number_can_change() -> None:
    agent, begun = small(noterl.envs.Atari("Pong", size=40)), []
    count = LambdaCallback(on_episode_begin=lambda episode, logs: begun.append(episode))
    for num_envs in (3, None, 2):
        agent.fit(steps=30, num_envs=num_envs, callbacks=[count], verbose=0)
    assert begun == [0, 1, 2, 0, 1, 2, 3, 4] and agent.steps == 90
    agent.close()


def test_evaluation_plays_in_the_wrappers_of_gymnasium() -> None:
    agent = small(noterl.envs.Atari("Pong", max_frames=400, size=40))
    result = agent.play(episodes=1, max_steps=30)
    assert result["trajectory"][0].observations.shape == (31, 4, 40, 40)
    assert agent.evaluate(episodes=1)["lengths"].tolist() == agent.evaluate(episodes=1)["lengths"].tolist()
    agent.close()


@pytest.mark.filterwarnings("ignore:the default memory")
def test_default_memory_stores_each_frame_once() -> None:
    agent = noterl.DQN(noterl.envs.Atari("Pong", size=40), hidden=(8,), seed=3)
    agent.compile()
    assert agent.replay.get_config()["frame_stack"] == 4
    single = noterl.DQN(noterl.envs.Atari("Pong", size=40, stack=1), hidden=(8,), seed=3)
    single.compile()
    assert single.replay.get_config()["frame_stack"] is None


def test_ppo_learns_from_lanes_of_atari() -> None:
    agent = noterl.PPO(noterl.envs.Atari("Pong", size=40), hidden=(8,), rollout_steps=8, seed=1)
    agent.compile(batch_size=8, jit_compile=False)
    agent.fit(steps=32, num_envs=4, verbose=0)
    assert agent.updates > 0
    agent.close()


def test_memory_of_a_given_capacity_stores_each_frame_once() -> None:
    agent = noterl.DQN(noterl.envs.Atari("Pong", size=40), hidden=(8,), seed=1)
    agent.compile(replay=200)
    assert (agent.replay.capacity, agent.replay._frame_stack) == (200, 4)
    agent.close()


def test_workers_and_raw_games_are_refused_with_the_reason() -> None:
    agent = small(noterl.envs.Atari("Pong", size=40))
    with pytest.raises(ValueError, match="workers must be 0"):
        agent.fit(steps=10, workers=2, verbose=0)
    agent.close()
    raw = noterl.DQN("ALE/Pong-v5", hidden=(8,), seed=1)
    raw.compile(replay=100)
    with pytest.raises(ValueError, match=r"noterl\.envs\.Atari"):
        raw.fit(steps=10, num_envs=2, vectorize=True, verbose=0)
    raw.close()

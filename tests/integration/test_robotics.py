"""Hindsight on an environment of gymnasium-robotics, if the extra `robotics` is installed."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from noterl import envs
from noterl.envs.observation import ObservationEncoder
from noterl.replay import Hindsight, Replay
from tests.support.replay_invariants import next_indices

pytestmark = [
    pytest.mark.backend_free,
    # Warnings of the simulator and of gymnasium-robotics.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def source() -> envs.EnvSource:
    pytest.importorskip("gymnasium_robotics", reason='needs pip install "noterl[robotics]"')
    import gymnasium_robotics

    gymnasium.register_envs(gymnasium_robotics)
    found = envs.resolve("FetchReach-v4")
    yield found
    found.close()


@pytest.mark.parametrize("n_step", [1, 3])
def test_relabeled_rewards_match_compute_reward_of_fetch_reach(source: envs.EnvSource, n_step: int) -> None:
    env, relabel = source.make(), Hindsight("future", ratio=0.8)
    relabel.attach(object(), source)
    replay = Replay(400, relabel=relabel, n_step=n_step)
    replay.build(source.observation_space, source.action_space)
    env.action_space.seed(0)
    before, ended = env.reset(seed=0)[0], False
    for _ in range(500):
        before = env.reset()[0] if ended else before
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        replay.add(0, before, action, reward, after, terminated, truncated)
        before, ended = after, terminated or truncated
    sample = replay.sample(4, 64, generator=np.random.default_rng(0))
    batch = replay.gather(sample, gamma=0.5)
    relabeled = sample.choices["goal"] >= 0
    assert 204 <= relabeled.sum() <= 205
    storage, task = replay._storage, env.unwrapped
    for place in zip(*relabeled.nonzero(), strict=True):
        goal = storage.next_observations(sample.choices["goal"][place][None])["achieved_goal"][0]
        assert np.array_equal(batch.observation["desired_goal"][place], goal)
        index, total = int(sample.indices[place]), 0.0
        for step in range(n_step):
            achieved = storage.next_observations(np.array([index]))["achieved_goal"][0]
            total += 0.5**step * task.compute_reward(achieved.astype(float), goal.astype(float), {})
            index = int(next_indices(storage, np.array([index]))[0])
            if index < 0:
                break
        assert batch.reward[place] == np.float32(total)
    # Fetch never terminates, whatever is achieved.
    assert (batch.discount > 0).all() and (batch.reward == 0).any() and (batch.reward < 0).any()
    assert ObservationEncoder(source.observation_space)(batch.observation).shape == (4, 64, 13)

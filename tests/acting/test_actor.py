"""The actor explores at the rate that its policy or noise gives for the number of environment steps."""

from __future__ import annotations

import pytest

import noterl
from noterl.noise import GaussianWhiteNoiseProcess


@pytest.mark.parametrize("num_envs", [1, 4])
def test_random_actions_before_learning_starts_anneal_the_noise(num_envs: int) -> None:
    noise = GaussianWhiteNoiseProcess(sigma=1.0, sigma_min=0.1, n_steps_annealing=200, size=1)
    agent = noterl.DDPG("Pendulum-v1", hidden=(4,), seed=1)
    agent.compile(noise=noise, replay=noterl.Replay(500), learning_starts=150, batch_size=4, update_every=50)
    agent.fit(steps=160, num_envs=num_envs, verbose=0)
    assert agent.noise is not None and agent.noise.n == 160

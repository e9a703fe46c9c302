"""The actor explores at the rate that its policy or noise gives for the number of environment steps."""

from __future__ import annotations

from typing import Any

import pytest

import noterl
from noterl.noise import GaussianWhiteNoiseProcess
from noterl.policies import EpsGreedyQPolicy
from tests.support.states import differences


@pytest.mark.backends("torch")
@pytest.mark.parametrize("num_envs", [1, 4])
def test_random_actions_before_learning_starts_anneal_the_noise(num_envs: int) -> None:
    noise = GaussianWhiteNoiseProcess(sigma=1.0, sigma_min=0.1, n_steps_annealing=200, size=1)
    agent = noterl.DDPG("Pendulum-v1", hidden=(4,), seed=1)
    agent.compile(noise=noise, replay=noterl.Replay(500), learning_starts=150, batch_size=4, update_every=50)
    agent.fit(steps=160, num_envs=num_envs, verbose=0)
    assert agent.noise is not None and agent.noise.n == 160


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", ["policy", "noise"])
def test_agents_do_not_share_their_exploration(kind: str) -> None:
    """Agents that receive one object train as if each had its own."""
    maker, env, shared = {
        "policy": (noterl.DQN, "CartPole-v1", EpsGreedyQPolicy(0.5)),
        "noise": (noterl.DDPG, "Pendulum-v1", GaussianWhiteNoiseProcess(0.5, sigma_min=0.1, n_steps_annealing=50)),
    }[kind]

    def made() -> Any:
        agent: Any = maker(env, hidden=(4,), seed=1)
        agent.compile(**{kind: shared}, learning_starts=20, batch_size=4)
        return agent

    agent, other = made(), made()
    agent.fit(steps=40, verbose=0)
    other.fit(steps=20, verbose=0)
    agent.fit(steps=20, verbose=0)
    other.fit(steps=40, verbose=0)
    assert not differences(agent.get_weights(), other.get_weights())
    assert getattr(agent, kind) is shared, "the first agent uses the object itself"
    assert getattr(other, kind) is not shared

"""Networks passed to built-in agents, and the heads of user-defined agents: which fit, and which raise."""

from __future__ import annotations

from typing import Any

import pytest
from gymnasium import spaces
from keras import ops

import noterl
from noterl import heads, losses, networks
from noterl.noise import GaussianWhiteNoiseProcess
from tests.support.doubles import RandomWalkEnv

BOX = spaces.Box(-1.0, 1.0, (3,))


class Deterministic(noterl.Agent):
    """A user-defined agent with deterministic continuous actions."""

    memory, head, optimizer_names = "replay", heads.Deterministic(), ("actor", "critic")

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.actor = networks.mlp(self.observation_size, [4], self.action_size)
        self.critic = networks.mlp(self.observation_size + self.action_size, [4], 1)
        self.gamma = self.hyperparameter("gamma", 0.9)

    def forward(self, observation: Any) -> Any:
        return self.actor(observation)

    def update(self, batch: Any) -> Any:
        critic, feedback = self.minimize(self.critic_loss, self.critic, "critic", batch)
        self.minimize(self.actor_loss, self.actor, "actor", batch)
        return {"loss": critic}, feedback

    def value(self, observation: Any, action: Any) -> Any:
        return self.critic(ops.concatenate([observation, action], axis=-1))[:, 0]

    def critic_loss(self, batch: Any) -> Any:
        next_value = self.value(batch.next_observation, self.head.act(self.actor(batch.next_observation)))
        error = self.value(batch.observation, batch.action) - losses.td_target(batch.reward, batch.discount, next_value)
        return ops.mean(ops.square(error)), {"td_error": error}

    def actor_loss(self, batch: Any) -> Any:
        return -ops.mean(self.value(batch.observation, self.head.act(self.actor(batch.observation))))


def test_user_agent_supports_the_action_spaces_of_its_head() -> None:
    agent = Deterministic(RandomWalkEnv, seed=1)
    agent.compile(noise=GaussianWhiteNoiseProcess(sigma=0.1, size=1), batch_size=4, learning_starts=8)
    agent.fit(steps=12, verbose=0)
    assert agent.updates > 0
    for head, action in ((heads.Gaussian(), BOX), (heads.Categorical(), spaces.MultiDiscrete([2, 3]))):
        kind = type("Mine", (noterl.Agent,), {"head": head})
        assert kind((BOX, action)).head.size in (6, 5)
    with pytest.raises(ValueError, match=r"head Q .*Discrete.*got Box"):
        type("Mine", (noterl.Agent,), {"head": heads.Q()})((BOX, BOX))


def small(inputs: int, outputs: int) -> Any:
    return networks.mlp(inputs, [4], outputs)


@pytest.mark.parametrize(
    ("kind", "action", "network"),
    [
        (noterl.PPO, BOX, lambda: small(3, 3)),  # means without deviations
        (noterl.PPO, BOX, lambda: (None, small(3, 2))),
        (noterl.A2C, spaces.Discrete(2), lambda: small(3, 3)),
        (noterl.DQN, spaces.Discrete(2), lambda: small(3, 3)),
        (noterl.DQN, spaces.Discrete(2), lambda: small(4, 2)),
        (noterl.SAC, spaces.Discrete(2), lambda: small(3, 5)),
        (noterl.TD3, BOX, lambda: small(3, 1)),
        (noterl.DDPG, BOX, lambda: (None, small(5, 1))),
    ],
)
def test_network_that_does_not_fit_raises(kind: Any, action: Any, network: Any) -> None:
    agent = kind((BOX, action), network=network(), seed=1)
    with pytest.raises(ValueError, match=rf"network .*{kind.__name__}"):
        agent.build()

"""Implicit Q-learning, for learning from a data set.

Paper: Kostrikov, Nair and Levine, "Offline reinforcement learning with implicit Q-learning" (2022), algorithm 1.

Differs: for Box actions, the policy is the squashed Gaussian of `SAC`, whose deviations depend on the observation; the
paper's Gaussian is not squashed. The learning rate of the actor is constant. Discrete actions are not in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

from gymnasium import spaces

from noterl import heads, losses, networks
from noterl.agent import Defaults
from noterl.agents.ensemble import CriticEnsemble, EnsembleOptions
from noterl.backends import ops
from noterl.hyperparameters import Hyperparameter
from noterl.networks.critics import scalar_values
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import Batch

# As in the authors' code: larger weights of the actor's loss are clipped.
LARGEST_WEIGHT = 100.0

# The tanh has no inverse at the bounds. Closer to them, the log-probability of an action that a data set has clipped
# would dominate the loss.
_LARGEST_ACTION = 1.0 - 1e-6


@register
class IQL(CriticEnsemble):
    """Value learning by expectile regression and a weighted imitation of the data, for Box or Discrete actions.

    No target evaluates an action that is not in the data. Box actions need finite bounds; critics receive actions that
    are scaled to [-1, 1], and log-probabilities are densities of them. The feedback for the memory is the mean of the
    critics' absolute errors.

    Args:
        env: see `noterl.Agent`.
        hidden: units of each hidden layer, of all networks; with images, only of the critics of Box actions.
        network: the path of a network file, or your own actor as for `SAC`; or (actor, value, critic, critic), where
            the value network is `[B, observation] -> [B, 1]` and critics are as for `SAC`; or (actor, value, critic)
            with one file for all critics. The agent builds a network that is None.
        gamma: discount factor, 0 to 1. Can be changed during training.
        expectile: the expectile of the critics' values that the value network learns, 0 to 1. At 0.5, the value is that
            of the data's policy; near 1, that of its best actions. Can be changed during training.
        temperature: factor of the advantage in the exponent of the imitation's weights, at least 0. At 0, the actor
            imitates all actions alike; a larger number prefers better actions. Can be changed during training.
        critics: the number of critics.
        critics_in_target: the number of random critics whose minimum is used; by default all.
        critic_hidden: units of each hidden layer of the critics; by default as in `hidden`, with the same exception.
        layer_norm: whether the hidden layers of the critics normalize their values.
        dropout: the share of the critics' hidden values that is 0 in each update; not in targets.
        normalize_observation: see `noterl.Agent`.
        normalize_reward: see `noterl.Agent`.
        seed: see `noterl.Agent`.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.IQL("Pendulum-v1", hidden=(32,), seed=7)
    >>> agent.compile(learning_starts=50, batch_size=32)
    >>> history = agent.fit(steps=60, verbose=0)
    >>> agent.updates
    10
    """

    action_spaces: tuple[str, ...] = ("Box", "Discrete")
    optimizer_names: tuple[str, ...] = ("actor", "critic", "value")
    gamma: Hyperparameter
    expectile: Hyperparameter
    temperature: Hyperparameter

    def __init__(
        self,
        env: Any,
        *,
        hidden: Sequence[int] = (256, 256),
        network: Any = None,
        gamma: float | Schedule = 0.99,
        expectile: float | Schedule = 0.7,
        temperature: float | Schedule = 3.0,
        **options: Unpack[EnsembleOptions],
    ) -> None:
        networks.refuse_options(self, options, policy_delay="each update updates all networks")
        super().__init__(env, **options)
        self.discrete: bool = isinstance(self.action_space, spaces.Discrete)
        self.head: Any = (heads.Categorical() if self.discrete else heads.SquashedGaussian()).bind(self.action_space)
        self.random_spec: Any = self.choice_spec
        space = self.spaces.network_space
        shape = self.observation_shape
        size = self.action_size
        actor, value, *critics = networks.split_networks(network, "actor", "value", *["critic"] * self.num_critics)

        def build_critic(layers: Any) -> networks.Network:
            if self.discrete:
                return networks.default_network(space, layers, size, **self.critic_norm)
            return networks.default_critic(space, layers, size, **self.critic_norm)

        self.actor = self.spaces.network_or_default(actor, hidden, size if self.discrete else 2 * size)
        self.state_value: networks.Network = self.spaces.network_or_default(value, hidden, 1)
        self.build_ensemble(critics, hidden, build_critic, shape if self.discrete else (self.observation_size + size,))
        self.gamma = self.hyperparameter("gamma", gamma, minimum=0.0, maximum=1.0)
        self.expectile = self.hyperparameter("expectile", expectile, minimum=0.0, maximum=1.0)
        self.temperature = self.hyperparameter("temperature", temperature, minimum=0.0)

    def defaults(self) -> Defaults:
        """Return the paper's settings, and 1,000 random steps of a training in an environment."""
        return Defaults(learning_rate=3e-4, capacity=1_000_000, batch_size=256, target_update=0.005)

    def forward(self, observation: Any) -> Any:
        """Return the input of the head, `[B, 2 A]` or logits `[B, A]`."""
        return self.actor(observation)

    def value(self, observation: Any) -> Any:
        """Return the state values `[B]`."""
        return scalar_values(self.state_value(observation))

    def update(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Update the value network, the actor and the critics, in the order of the authors' code."""
        value_loss, _ = self.minimize(self.value_loss, self.state_value, "value", batch)
        actor_loss, _ = self.minimize(self.actor_loss, self.actor, "actor", batch)
        loss, feedback = self.minimize(self.critic_loss, self.critics, "critic", batch)
        return {"loss": loss, "value_loss": value_loss, "actor_loss": actor_loss}, feedback

    def value_loss(self, batch: Batch) -> Any:
        """Return the mean expectile loss of the state values (equation 5)."""
        error = self.target_q(batch) - self.value(batch.observation)
        weight = ops.abs(self.expectile - ops.cast(error < 0, "float32"))
        return losses.weighted_mean(weight * ops.square(error), batch.weight)

    def critic_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the sum of the critics' mean squared errors (equation 6), and the mean absolute errors `[B]`."""
        target = losses.td_target(batch.reward, batch.discount, self.value(batch.next_observation))
        return self.squared_loss([q - target for q in self.taken_values(self.critics, batch)], batch)

    def actor_loss(self, batch: Batch) -> Any:
        """Return the mean negative log-probability of the data's actions, weighted by their advantage (equation 7)."""
        advantage = ops.stop_gradient(self.target_q(batch) - self.value(batch.observation))
        # The exponent is clipped, because the exponential of a large one would be infinite.
        weight = ops.exp(ops.minimum(self.temperature * advantage, math.log(LARGEST_WEIGHT)))
        return -ops.mean(weight * self.log_prob(batch))

    def target_q(self, batch: Batch) -> Any:
        """Return the minimum of the target critics' values of the data's actions, `[B]`, without a gradient."""
        return ops.stop_gradient(self.target_value(self.taken_values(self.target_critics, batch), batch))

    def log_prob(self, batch: Batch) -> Any:
        """Return the log-probabilities `[B]` of the data's actions."""
        values = self.actor(batch.observation)
        if self.discrete:
            return self.head.log_prob(self.head.masked(values, batch.extra.get("action_mask")), batch.action)
        scaled = ops.clip(self.head.scale(batch.action), -_LARGEST_ACTION, _LARGEST_ACTION)
        return self.head.log_prob(values, scaled)

"""Parallelised Q-network: Q-learning from rollouts, without replay memory and target network.

Paper: Gallici et al., "Simplifying deep temporal difference learning" (2025), algorithm 1, with its Q(lambda) returns.

Differs: a truncated episode is bootstrapped from its true last observation. For images, the dense layer after the
convolutions is normalized, and the convolutions are not. Learning rate, epochs and lambda are from CleanRL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from noterl import heads, losses, networks
from noterl.agent import Agent, AgentOptions, Defaults
from noterl.backends import ops
from noterl.hyperparameters import Hyperparameter
from noterl.optimizers import RAdam
from noterl.policies import LinearEpsGreedyPolicy
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import Batch
from noterl.utils.checks import check_positive


@register
class PQN(Agent):
    """Q-learning from the rollouts of many environments, for Discrete actions.

    Layer normalization replaces the target network, so a network of your own needs it, too. Use 16 or more environments
    (`fit(num_envs=16)`), whose rollouts replace the replay memory.

    Args:
        env: see `noterl.Agent`.
        hidden: units of each hidden layer for vector observations; images use the network of the Nature paper. Images
            below 36x36 pixels are flattened.
        network: the path of a network file, or your own network `[B, observation] -> [B, actions]`.
        gamma: discount factor, 0 to 1. Can be changed during training.
        q_lambda: 0 gives one-step targets; 1 gives the returns of whole rollouts. Can be changed during training.
        rollout_steps: steps of each environment between updates.
        epochs: passes over each rollout.
        normalize_observation: see `noterl.Agent`.
        normalize_reward: see `noterl.Agent`.
        seed: see `noterl.Agent`.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.PQN("CartPole-v1", rollout_steps=8, hidden=(16,), seed=7)
    >>> history = agent.fit(steps=64, num_envs=4, verbose=0)
    >>> agent.updates
    8
    """

    memory = "rollout"
    head: Any = heads.Q()
    action_spaces: tuple[str, ...] = ("Discrete",)
    supports_replay = False  # the targets need actions of the current policy
    corrects_staleness = True  # as exploration does, slightly older weights only choose other actions
    gamma: Hyperparameter
    q_lambda: Hyperparameter

    def __init__(
        self,
        env: Any,
        *,
        hidden: Sequence[int] = (128, 128),
        network: Any = None,
        gamma: float | Schedule = 0.99,
        q_lambda: float | Schedule = 0.65,
        rollout_steps: int = 32,
        epochs: int = 4,
        **options: Unpack[AgentOptions],
    ) -> None:
        super().__init__(env, **options)
        (network,) = networks.split_networks(network, "q")
        self.q: networks.Network = self.spaces.network_or_default(network, hidden, self.action_size, layer_norm=True)
        self.rollout_steps: int = check_positive("rollout_steps", rollout_steps)
        self.epochs: int = check_positive("epochs", epochs)
        self.gamma = self.hyperparameter("gamma", gamma, minimum=0.0, maximum=1.0)
        self.q_lambda = self.hyperparameter("q_lambda", q_lambda, minimum=0.0, maximum=1.0)

    def defaults(self) -> Defaults:
        """Return the settings of CleanRL, with a schedule of epsilon in environment steps."""
        steps = 1_000_000 if self.is_image else 50_000
        policy = LinearEpsGreedyPolicy(1.0, 0.05, steps=steps)
        return Defaults(batch_size=128, policy=policy, optimizer=RAdam(2.5e-4, global_clipnorm=10.0))

    def forward(self, observation: Any) -> Any:
        """Return the action values `[B, A]`."""
        return self.q(observation)

    def largest(self, observation: Any, *legal: Any) -> Any:
        """Return the value `[B]` of the best action; with a mask `[B, A]`, of the best legal one."""
        return ops.max(self.head.masked(self.q(observation), *(legal or (None,))), axis=-1)

    def prepare(self, rollout: Batch) -> dict[str, Any]:
        """Return the Q(lambda) returns of a rollout, `[T, N]`.

        `R_t = r_t + d_t (lambda R_{t+1} + (1 - lambda) max Q(s_{t+1}))`, which is the recursion of `losses.gae` for the
        difference of the return and the largest value.
        """
        legal = [rollout.extra[name] for name in ("action_mask", "next_action_mask") if name in rollout.extra]
        value = losses.map_rows(self.largest, rollout.observation, *legal[:1])
        next_value = losses.map_rows(self.largest, rollout.next_observation, *legal[1:])
        decay = rollout.discount * rollout.extra["continues"] * self.q_lambda
        return {"target": value + losses.gae(rollout.reward, rollout.discount, value, next_value, decay)}

    def loss(self, batch: Batch) -> Any:
        """Return the mean squared error of the values of the actions taken."""
        error = losses.take(self.q(batch.observation), batch.action) - batch.extra["target"]
        return losses.masked_mean(losses.squared(error), batch.weight)

"""Revisited behavior-regularized actor-critic, for learning from a data set.

Paper: Tarasov et al., "Revisiting the minimalist approach to offline reinforcement learning" (2023), equations 4 and 5.

Differs: the layer normalization of the critics precedes the activation. The paper searches both weights for each data
set; the defaults are from its grid. The penalty of the critic is 0 where the memory holds no next action: at
truncations, and at the newest step of a running episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from noterl.agent import Defaults
from noterl.agents.td3 import TD3
from noterl.agents.td3bc import inverse_mean_size
from noterl.backends import ops
from noterl.hyperparameters import Hyperparameter
from noterl.networks.critics import q_values
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import Batch


@register
class ReBRAC(TD3):
    """TD3 whose actor and target are penalized for distance to the data's actions, for Box actions with finite bounds.

    Args:
        env: see `noterl.Agent`.
        hidden: see `TD3`.
        actor_beta: weight of the actor's squared distance to the data's action, at least 0. Can be changed during
            training.
        critic_beta: weight of the squared distance of the target's action to the data's next action, at least 0. Can be
            changed during training.
        **options: see `TD3`; `layer_norm` is True by default, unless there is a `network`.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.ReBRAC("Pendulum-v1", hidden=(32,), seed=7)
    >>> agent.compile(learning_starts=50, batch_size=32)
    >>> history = agent.fit(steps=60, verbose=0)
    >>> agent.updates
    10
    """

    next_actions: bool = True
    actor_beta: Hyperparameter
    critic_beta: Hyperparameter

    def __init__(
        self,
        env: Any,
        *,
        hidden: Sequence[int] = (256, 256, 256),
        actor_beta: float | Schedule = 0.01,
        critic_beta: float | Schedule = 0.01,
        **options: Any,
    ) -> None:
        options.setdefault("layer_norm", options.get("network") is None)
        super().__init__(env, hidden=hidden, **options)
        self.actor_beta = self.hyperparameter("actor_beta", actor_beta, minimum=0.0)
        self.critic_beta = self.hyperparameter("critic_beta", critic_beta, minimum=0.0)

    def defaults(self) -> Defaults:
        """Return the paper's settings."""
        return super().defaults()._replace(learning_rate=1e-3, batch_size=1024)

    def next_value(self, batch: Batch, action: Any) -> Any:
        """Return the values `[B]` of the next observations, minus the penalty for the distance to the data's action."""
        distance = ops.sum(ops.square(action - self.head.scale(batch.extra["next_action"])), axis=-1)
        penalty = self.critic_beta * batch.extra["has_next_action"] * distance
        return super().next_value(batch, action) - penalty

    def actor_loss(self, batch: Batch) -> Any:
        """Return the mean of the weighted squared distance to the data, minus the mean value over its mean size."""
        action = self.head.act(self.actor(batch.observation))
        q = self.actor_value(batch.observation, action)
        distance = ops.sum(ops.square(action - self.head.scale(batch.action)), axis=-1)
        return ops.mean(self.actor_beta * distance) - inverse_mean_size(q) * ops.mean(q)

    def actor_value(self, observation: Any, action: Any) -> Any:
        """Return the minimum of the critics' values, `[B]`, or their mean if targets take random critics."""
        return self.value_for_actor(q_values(self.critics, observation, action))

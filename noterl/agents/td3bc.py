"""TD3 with behavior cloning, for learning from a data set.

Paper: Fujimoto and Gu, "A minimalist approach to offline reinforcement learning" (2021), equations 3 to 5.

As in the paper, observations are normalized; statistics come from the data set and are then fixed.

Differs: normalized observations are clipped to -10 and 10. 1e-8 is added to the variance; the paper adds 1e-3 to the
standard deviation.
"""

from __future__ import annotations

from typing import Any

from noterl.agents.td3 import TD3
from noterl.backends import ops
from noterl.backends.replicas import mean_over_replicas
from noterl.hyperparameters import Hyperparameter
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import Batch


@register
class TD3BC(TD3):
    """TD3 whose actor also imitates the actions of the data, for Box actions with finite bounds.

    Args:
        env: see `noterl.Agent`.
        alpha: weight of the critic's value, at least 0. With 0, the actor only imitates; a larger number trusts the
            critic more. Can be changed during training.
        normalize_observation: see `noterl.Agent`.
        **options: see `TD3`.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.TD3BC("Pendulum-v1", hidden=(32,), seed=7)
    >>> agent.compile(learning_starts=50, batch_size=32)
    >>> history = agent.fit(steps=60, verbose=0)
    >>> agent.updates
    10
    """

    alpha: Hyperparameter

    def __init__(
        self, env: Any, *, alpha: float | Schedule = 2.5, normalize_observation: bool = True, **options: Any
    ) -> None:
        super().__init__(env, normalize_observation=normalize_observation, **options)
        self.alpha = self.hyperparameter("alpha", alpha, minimum=0.0)

    def actor_loss(self, batch: Batch) -> Any:
        """Return the negated mean value, scaled by the mean absolute value, plus the mean squared distance to the data.

        The scale is `lambda = alpha / mean |Q|` (equation 5).
        """
        action = self.head.act(self.actor(batch.observation))
        q = self.actor_value(batch.observation, action)
        scale = self.alpha * inverse_mean_size(q)
        return ops.mean(ops.square(action - self.head.scale(batch.action))) - scale * ops.mean(q)


def inverse_mean_size(q: Any) -> Any:
    """Return `1 / mean |Q|` of the global batch for values `[B]`, without a gradient."""
    return ops.stop_gradient(1.0 / mean_over_replicas(ops.mean(ops.abs(q))))

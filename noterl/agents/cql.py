"""Conservative Q-learning for Discrete actions, for learning from a data set.

Paper: Kumar et al., "Conservative Q-learning for offline reinforcement learning" (2020), equation 4, as CQL(H).

Differs: the base is `DQN` with its settings, such as returns of three steps; the base of the paper is QRDQN.
"""

from __future__ import annotations

from typing import Any, Unpack

from noterl import losses, networks
from noterl.agents.dqn import DQN, DQNOptions
from noterl.backends import ops
from noterl.hyperparameters import Hyperparameter
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import Batch


@register
class CQL(DQN):
    """Q-learning whose values of actions outside of the data are low, for Discrete actions.

    Args:
        env: see `noterl.Agent`.
        alpha: weight of the conservative loss, at least 0. A larger number keeps the policy closer to the data. Can be
            changed during training.
        double: see `DQN`.
        **options: see `DQN`; options of a memory are refused.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.CQL("CartPole-v1", hidden=(64,), seed=7)
    >>> history = agent.fit(steps=100, verbose=0)
    >>> agent.steps
    100
    """

    alpha: Hyperparameter

    def __init__(
        self, env: Any, *, alpha: float | Schedule = 1.0, double: bool = True, **options: Unpack[DQNOptions]
    ) -> None:
        networks.refuse_options(self, options)
        super().__init__(env, double=double, **options)
        self.alpha = self.hyperparameter("alpha", alpha, minimum=0.0)

    def loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the loss of `DQN` plus the weighted conservative loss, and the errors `[B]` with the latter loss.

        The conservative loss is the mean of `log sum_a exp Q(s, a) - Q(s, data's action)`.
        """
        td_error, values = self.errors_and_values(batch)
        legal = self.head.masked(values, batch.extra.get("action_mask"))
        gap = losses.weighted_mean(ops.logsumexp(legal, axis=-1) - losses.take(values, batch.action), batch.weight)
        loss = losses.weighted_mean(self.error_loss(td_error), batch.weight) + self.alpha * gap
        return loss, {"td_error": td_error, "conservative_loss": gap}

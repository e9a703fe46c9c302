"""Q-learning with quantile regression.

Paper: Dabney et al., "Distributional reinforcement learning with quantile regression" (2018), algorithm 1, with the
quantile Huber loss of equation 10 (kappa = 1).

Differs: optimizer, n-step returns and schedule as in `DQN`. 50 quantiles on vectors, the paper's 200 on images.
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from noterl import networks
from noterl.agents.distributional import DistributionalDQN, take_atoms
from noterl.agents.dqn import DQNOptions
from noterl.backends import ops
from noterl.registry import register
from noterl.types import Batch
from noterl.utils.checks import check_positive


@register
class QRDQN(DistributionalDQN):
    """Quantiles of each action's return, for Discrete actions; the agent acts on the mean.

    The feedback for the memory is the absolute difference of the means of quantiles and target.

    Args:
        env: see `noterl.Agent`.
        quantiles: the number of quantiles of each action; by default 50, or 200 for images.
        double: see `DQN`.
        **options: see `DQN`. A `network` of your own is `[B, observation] -> [B, quantiles * actions]`.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.QRDQN("CartPole-v1", quantiles=10, hidden=(64,), seed=7)
    >>> history = agent.fit(steps=100, verbose=0)
    >>> agent.steps
    100
    """

    def __init__(
        self, env: Any, *, quantiles: int | None = None, double: bool = False, **options: Unpack[DQNOptions]
    ) -> None:
        self.quantiles: int | None = None if quantiles is None else check_positive("quantiles", quantiles)
        super().__init__(env, double=double, **options)
        self.fractions: Any = networks.midpoints(self.num_atoms).astype(np.float32)  # lemma 2

    @property
    def num_atoms(self) -> int:
        """The number of quantiles."""
        return self.quantiles or (200 if self.is_image else 50)

    def loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the mean quantile Huber loss, and the absolute differences of the means `[B]`."""
        quantiles = take_atoms(self.q.atoms(batch.observation, *self.noises(batch)[0]), batch.action)  # [B, Z]
        return self.quantile_loss(batch, quantiles, self.next_atoms(batch), ops.convert_to_tensor(self.fractions))

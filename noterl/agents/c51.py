"""Categorical Q-learning.

Paper: Bellemare, Dabney and Munos, "A distributional perspective on reinforcement learning" (2017), algorithm 1.

Differs: optimizer, n-step returns and schedule as in `DQN`. The paper's 51 atoms on ±10 are for the clipped
rewards of Atari games; on vectors, 101 atoms are on ±100.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from noterl import losses
from noterl.agents.distributional import DistributionalDQN, take_atoms
from noterl.agents.dqn import DQNOptions
from noterl.backends import ops
from noterl.registry import register
from noterl.types import Batch
from noterl.utils.checks import check_int, increasing_pair

# If updates clip more than this share of the targets' probability, for as many updates, the agent warns.
_MOST_CLIPPED = 0.01
_CLIPPED_UPDATES = 1_000


@register
class C51(DistributionalDQN):
    """Probabilities of a fixed support of each action's return, for Discrete actions; the agent acts on the mean.

    The feedback for the memory is the Kullback-Leibler divergence of the target from the prediction.

    Args:
        env: see `noterl.Agent`.
        atoms: the number of values of the support, at least 2; by default 101, or 51 for images.
        support: the lowest and the highest return; by default (-100, 100), or (-10, 10) for images. The metric
            `clipped` is the share of the probability that targets have beyond the support.
        double: see `DQN`.
        **options: see `DQN`. A `network` of your own returns logits, `[B, observation] -> [B, atoms * actions]`.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.C51("CartPole-v1", atoms=51, support=(0, 100), hidden=(64,), seed=7)
    >>> history = agent.fit(steps=100, verbose=0)
    >>> agent.steps
    100
    """

    def __init__(
        self,
        env: Any,
        *,
        atoms: int | None = None,
        support: tuple[float, float] | None = None,
        double: bool = False,
        **options: Unpack[DQNOptions],
    ) -> None:
        self.atoms: int | None = None if atoms is None else check_int("atoms", atoms, least=2)
        self.support: tuple[float, float] | None = None if support is None else increasing_pair("support", support)
        super().__init__(env, double=double, **options)
        # Updates when few targets were clipped last; below 0 before the first check, infinity after the warning.
        self.last_unclipped: float = -1

    @property
    def num_atoms(self) -> int:
        """The number of atoms."""
        return self.atoms or (51 if self.is_image else 101)

    @property
    def atom_values(self) -> Any:
        """The values of the atoms, `[Z]`."""
        low, high = self.support or ((-10.0, 10.0) if self.is_image else (-100.0, 100.0))
        return np.linspace(low, high, self.num_atoms).astype(np.float32)

    def loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the mean cross-entropy, the divergences `[B]`, and the clipped share of the targets."""
        support = ops.convert_to_tensor(self.q.support)
        logits = take_atoms(self.q.atoms(batch.observation, *self.noises(batch)[0]), batch.action)  # [B, Z]
        next_probability = ops.softmax(self.next_atoms(batch), axis=1)
        target = losses.categorical_target(next_probability, batch.reward, batch.discount, support)
        cross_entropy = -ops.sum(target * ops.log_softmax(logits, axis=1), axis=1)
        entropy = -ops.sum(target * ops.log(ops.maximum(target, 1e-30)), axis=1)
        value = ops.expand_dims(batch.reward, 1) + ops.expand_dims(batch.discount, 1) * support
        beyond = ops.cast((value < support[0]) | (value > support[-1]), "float32")
        clipped = ops.stop_gradient(ops.mean(ops.sum(beyond * next_probability, axis=1)))
        feedback = {"td_error": ops.stop_gradient(cross_entropy - entropy), "clipped": clipped}
        return losses.weighted_mean(cross_entropy, batch.weight), feedback

    def check_metrics(self, metrics: Mapping[str, float]) -> None:
        """Warn once if targets are clipped at the support for 1,000 updates; called at the end of each episode."""
        if metrics.get("clipped", 0.0) <= _MOST_CLIPPED or self.last_unclipped < 0:
            self.last_unclipped = self.updates if self.last_unclipped < math.inf else math.inf
        elif self.updates - self.last_unclipped >= _CLIPPED_UPDATES:
            self.last_unclipped = math.inf
            warnings.warn(
                f"support: for {_CLIPPED_UPDATES:,} updates, {metrics['clipped']:.0%} of the probability of targets is "
                f"beyond ({self.q.support[0]:g}, {self.q.support[-1]:g}), where returns are clipped; pass a wider "
                "support, or normalize_reward=True",
                stacklevel=2,
            )

"""Truncated quantile critics.

Paper: Kuznetsov et al., "Controlling overestimation bias with truncated mixture of continuous distributional quantile
critics" (2020), algorithm 1.

Differs: the critics have the hidden layers of SAC, (256, 256); the paper has three of 512 units. As in the
authors' code, the loss is the mean over the critics, and over the quantiles of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from noterl import losses, networks
from noterl.agents.sac import SAC
from noterl.backends import ops
from noterl.registry import register
from noterl.types import Batch
from noterl.utils.checks import check_int, check_positive


@register
class TQC(SAC):
    """Soft actor-critic whose critics return quantiles, for Box actions with finite bounds.

    The target leaves out the largest quantiles of all critics together, which limits overestimation. The feedback for
    the memory is the mean over critics of the absolute difference of the means of quantiles and target.

    Args:
        env: see `noterl.Agent`.
        critics: the number of critics.
        quantiles: the quantiles of each critic.
        drop: the quantiles of each critic that the target leaves out; more reduces overestimation.
        **options: see `SAC`. Critics of your own are `[B, observation + A] -> [B, quantiles]`.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.TQC("Pendulum-v1", critics=2, hidden=(32,), seed=7)
    >>> agent.compile(learning_starts=50, batch_size=32)
    >>> history = agent.fit(steps=60, verbose=0)
    >>> agent.updates
    10
    """

    action_spaces: tuple[str, ...] = ("Box",)

    def __init__(self, env: Any, *, critics: int = 5, quantiles: int = 25, drop: int = 2, **options: Any) -> None:
        networks.refuse_options(self, options, critics_in_target="a target pools the quantiles of all critics")
        self.critic_outputs: int = check_positive("quantiles", quantiles)
        self.drop: int = check_int("drop", drop, least=0)
        if drop >= quantiles:
            raise ValueError(f"drop must be below quantiles, {quantiles}, got {drop!r}")
        super().__init__(env, critics=critics, **options)
        self.fractions: Any = networks.midpoints(quantiles).astype(np.float32)

    def critic_values(self, outputs: Any) -> Any:
        """Return a critic's quantiles `[B, M]`.

        Raises:
            ValueError: if a critic returns another number of quantiles.
        """
        if outputs.shape[-1] != self.critic_outputs:
            raise ValueError(f"a critic must return quantiles [B, {self.critic_outputs}], got {tuple(outputs.shape)}")
        return outputs

    def value_for_actor(self, values: Sequence[Any]) -> Any:
        """Return the mean of all quantiles of all critics, `[B]`, for quantiles `[B, M]` each."""
        return sum(ops.mean(quantiles, axis=-1) for quantiles in values) / len(values)

    def truncated(self, values: Sequence[Any]) -> Any:
        """Return the smallest quantiles of all critics together, `[B, N (M - drop)]`, for quantiles `[B, M]` each."""
        kept = self.num_critics * (self.critic_outputs - self.drop)
        return ops.sort(ops.concatenate(values, axis=-1), axis=-1)[:, :kept]

    def critic_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the mean quantile Huber loss of all critics (equation 10), and the feedback `[B]`."""
        quantiles, log_probability = self._evaluate(self.target_critics, self.truncated, batch, "next_")
        soft_value = quantiles - ops.expand_dims(self.entropy_weight() * log_probability, 1)
        target = losses.td_target(batch.reward[:, None], batch.discount[:, None], soft_value)  # [B, N (M - drop)]
        taken = self.taken_values(self.critics, batch)
        fractions = ops.convert_to_tensor(self.fractions)
        error = sum(losses.quantile_huber(quantiles, target, fractions) for quantiles in taken)
        loss = losses.weighted_mean(error / (len(taken) * self.critic_outputs), batch.weight)
        differences = [ops.mean(quantiles, axis=1) - ops.mean(target, axis=1) for quantiles in taken]
        return loss, {"td_error": self.mean_error(differences)}

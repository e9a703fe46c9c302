"""The part of ACER for Box actions.

Paper: Wang et al., "Sample efficient actor-critic with experience replay", 2017, section 5, algorithm 3: stochastic
dueling networks (equation 13), and the policy gradient with targets of Retrace whose coefficients are 1 (equation 14).

Differs: standard deviations are learned instead of fixed, so the trust region covers means and log standard deviations.
The advantage network receives actions clipped to the bounds, as the environment does. The entropy is part of the
gradient that the trust region limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl import losses, networks
from noterl.agents.actor_critic import ActorCritic
from noterl.backends import ops
from noterl.hyperparameters import Hyperparameter
from noterl.networks.critics import q_values, scalar_values
from noterl.types import Batch


class ContinuousACER(ActorCritic):
    """Base of ACER, with the losses for Box actions; arguments as in `ActorCritic`.

    Attributes:
        advantage: the network of the advantage `[B, observation + A] -> [B, 1]`; for Box actions only.
        average_actor: the actor of the average policy.
    """

    advantage: Any = None
    average_actor: Any = None
    truncation: Hyperparameter
    trust_region: float | Hyperparameter | None
    value_coefficient: Hyperparameter

    @property
    def is_discrete(self) -> bool:
        """Whether actions are Discrete."""
        return isinstance(self.action_space, spaces.Discrete)

    @property
    def num_values(self) -> int:
        """The number of values that the critic returns for each observation: one for each Discrete action, or 1."""
        return self.action_size if self.is_discrete else 1

    @property
    def network_roles(self) -> tuple[str, ...]:
        """The roles of the networks in the argument `network`."""
        return ("actor", "critic") if self.is_discrete else ("actor", "critic", "advantage")

    def build_others(self, others: list[Any], hidden: Sequence[int], activation: str) -> None:
        """Build the advantage network for Box actions."""
        if others:
            space = self.spaces.network_space
            size = self.action_size
            self.advantage = networks.network_or_default(
                others[0],
                hidden,
                lambda layers: networks.default_critic(space, layers, size, activation, gain=1.0),
                (self.observation_size + size,),
            )

    @property
    def _trained_networks(self) -> list[Any]:
        return super()._trained_networks if self.is_discrete else [*super()._trained_networks, self.advantage]

    def average_outputs(self, observation: Any) -> Any:
        """Return the outputs of the average actor, as `forward` returns for the actor."""
        outputs = self.average_actor(observation)
        return outputs[0] if self.critic is None else outputs

    def advantages(self, observation: Any, actions: Any) -> Any:
        """Return the advantages `[B, m]` of m actions for each observation, `[B, m, A]`, not centered yet."""
        count = actions.shape[1]
        flat = (-1, self.observation_size)
        rows = ops.expand_dims(ops.reshape(ops.cast(observation, "float32"), flat), 1)
        repeated = ops.reshape(ops.repeat(rows, count, axis=1), flat)
        space: Any = self.action_space
        low, high = (np.asarray(bound, np.float32).reshape(-1) for bound in (space.low, space.high))
        executed = ops.reshape(ops.clip(actions, low, high), (-1, self.action_size))
        (values,) = q_values([self.advantage], repeated, executed)
        return ops.reshape(values, (-1, count))

    def policy_and_dueling_values(self, observation: Any, action: Any, behavior: Any, noise: Any) -> tuple[Any, ...]:
        """Return everything that algorithm 3 needs of steps `[B, ...]`.

        Args:
            observation: `[B, ...]`.
            action: the actions taken, `[B, ...]`.
            behavior: the outputs of the policy that took them, `[B, 2 A]`.
            noise: standard normal numbers `[B, 1 + n, A]`.

        Returns:
            Two tuples in one. Of the policy: its outputs `[B, 2 A]`, one sampled action `[B, A]`, and the importance
            weights `[B]` of the taken and the sampled action. Of the critics: V, and Q of the taken and the sampled
            action (equation 13), `[B]` each. Only outputs, V and Q have gradients.
        """
        outputs = self.actor(observation)
        outputs, value = outputs if self.critic is None else (outputs, self.critic(observation))
        fixed = ops.stop_gradient(outputs)
        size = self.action_size
        mean, deviation = (ops.expand_dims(half, 1) for half in (fixed[:, :size], ops.exp(fixed[:, size:])))
        samples = mean + deviation * noise  # [B, 1 + n, A]
        taken = ops.reshape(ops.cast(action, "float32"), (-1, size))
        sampled = samples[:, 0]
        weights = (
            losses.importance_weight(self.head.log_prob(fixed, actions), self.head.log_prob(behavior, actions))
            for actions in (taken, sampled)
        )
        advantages = self.advantages(observation, ops.concatenate([taken[:, None], samples], axis=1))
        value = scalar_values(value)
        q = ops.expand_dims(value, -1) + advantages[:, :2] - ops.mean(advantages[:, 2:], axis=-1, keepdims=True)
        return outputs, sampled, *weights, value, q[:, 0], q[:, 1]

    def continuous_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return a loss for sequences `[T, N, ...]` with the gradient of algorithm 3, and metrics.

        As in `combined_loss`, the value of this loss has no meaning.
        """
        weight = batch.weight
        stop = ops.stop_gradient
        head = self.head
        outputs, sampled, ratio, sampled_ratio, value, q, sampled_q = losses.map_rows(
            self.policy_and_dueling_values,
            batch.observation,
            batch.action,
            batch.extra["behavior"],
            batch.extra["noise"],
        )
        fixed = stop(outputs)
        average = stop(losses.map_rows(self.average_outputs, batch.observation))
        target, opc = self.continuous_targets(batch, ratio, stop(q))
        baseline = stop(value)
        bound = ops.convert_to_tensor(self.truncation)
        coefficient = ops.minimum(ratio, bound) * (opc - baseline)
        correction = ops.relu(1.0 - bound / sampled_ratio) * (stop(sampled_q) - baseline)
        taken = losses.map_rows(head.log_prob_gradient, fixed, batch.action)
        other = losses.map_rows(head.log_prob_gradient, fixed, sampled)
        gradient = ops.expand_dims(coefficient, -1) * taken + ops.expand_dims(correction, -1) * other
        gradient, limited = self.continuous_gradient(gradient, fixed, average)
        surrogate = -losses.masked_mean(ops.sum(gradient * outputs, axis=-1), weight)
        # V also moves towards min(1, ratio) (target - Q) + V.
        value_target = stop(ops.minimum(ratio, 1.0) * (target - q)) + baseline
        value_loss = losses.masked_mean(losses.squared(target - q) + losses.squared(value_target - value), weight)
        objective = coefficient * losses.map_rows(head.log_prob, outputs, batch.action)
        objective = objective + correction * losses.map_rows(head.log_prob, outputs, sampled)
        metrics = {
            "policy_loss": -losses.masked_mean(objective, weight),
            "value_loss": value_loss,
            "entropy": losses.masked_mean(losses.map_rows(head.entropy, outputs), weight),
            "average_kl": losses.masked_mean(losses.map_rows(head.kl_divergence, average, outputs), weight),
            "limited": losses.masked_mean(limited, weight),
        }
        loss = metrics["policy_loss"] - self.entropy_coefficient * metrics["entropy"]
        return surrogate + self.value_coefficient * value_loss, {
            "loss": loss + self.value_coefficient * value_loss,
            **metrics,
        }

    def continuous_targets(self, batch: Batch, ratio: Any, q: Any) -> tuple[Any, Any]:
        """Return the Retrace targets `[T, N]` with coefficients `min(1, ratio^(1/A))`, and those with coefficients 1.

        `ratio` and `q` belong to the actions taken, `[T, N]`, without gradients.
        """
        next_value = ops.stop_gradient(losses.map_rows(self.value, batch.next_observation))
        arguments = batch.reward, batch.discount, q, next_value
        powers = ops.power(ratio, 1.0 / self.action_size), ops.ones_like(ratio)
        target, opc = (losses.retrace(*arguments, power, batch.extra["continues"]) for power in powers)
        return target, opc

    def continuous_gradient(self, gradient: Any, outputs: Any, average: Any) -> tuple[Any, Any]:
        """Return the gradient for the outputs `[T, N, 2 A]`, and whether the trust region changed it `[T, N]`.

        Args:
            gradient: of equation 14, without the one of the entropy, `[T, N, 2 A]`.
            outputs: means and log standard deviations, `[T, N, 2 A]`.
            average: outputs of the average policy, `[T, N, 2 A]`.
        """
        size = self.action_size
        of_entropy = np.repeat(
            np.array([0.0, 1.0], np.float32), size
        )  # the entropy is the sum of the log standard deviations
        gradient = gradient + self.entropy_coefficient * of_entropy
        if self.trust_region is None:
            return gradient, ops.zeros_like(gradient[..., 0])
        normal = losses.map_rows(self.head.kl_gradient, average, outputs)
        return losses.trust_region(gradient, normal, ops.convert_to_tensor(self.trust_region))

"""Actor-critic with experience replay.

Paper: Wang et al., "Sample efficient actor-critic with experience replay", 2017, algorithms 1 and 2: Retrace (equation
5), truncated importance weights with the correction of their bias (equation 9), and the trust region around an average
policy (equation 12). For Box actions, algorithm 3 (section 5): stochastic dueling networks (equation 13), and the
policy gradient with targets of Retrace whose coefficients are 1 (equation 14).

Differs: as in Stable-Baselines 2, the gradient that the trust region limits includes that of the entropy, with a weight
of 0.01. There is one learner for all environments instead of one for each, and networks have separate trunks unless
observations are images. Sequences start at any stored step, not only at the first one of a rollout. Truncated episodes
are bootstrapped from the value of their true last observation. For Box actions, standard deviations are learned
instead of fixed, so the trust region covers means and log standard deviations. The advantage network receives actions
clipped to the bounds, as the environment does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl import losses, networks
from noterl.agent import Defaults
from noterl.agents.actor_critic import ActorCritic, masks
from noterl.backends import keras, ops
from noterl.networks.critics import action_values, q_values, scalar_values
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import Batch
from noterl.utils.checks import check_int, check_positive, positive


@register
class ACER(ActorCritic):
    """Actor-critic with experience replay for Discrete and Box actions, on vectors and images.

    After each rollout of all environments, it makes one update on it, and then Poisson(`replay_ratio`) updates on
    sequences from a replay memory of rollouts. For Discrete actions, the critic returns Q for all actions; the value of
    an observation is their mean under the policy. For Box actions, the critic returns the value V. A third network, the
    advantage A, completes it: `Q(s, a) = V(s) + A(s, a) - mean of A(s, u)` over actions u of the policy. The default
    optimizer is RMSProp with `global_clipnorm=10`. The average policy moves by `compile(target_update=0.01)` of its
    distance after each update.

    Args:
        env: see `noterl.Agent`.
        gamma: discount factor, 0 to 1; near 1 for long tasks. Can be changed during training.
        rollout_steps: T, the steps of each environment between updates, and of each stored sequence in an update.
        replay_ratio: mean number of updates on stored sequences after each rollout; 0 for none. Can be changed during
            training.
        replay_starts: environment steps before the first update on stored sequences.
        truncation: c, the upper bound of importance weights. A larger one has more variance; the bias is corrected. Can
            be changed during training.
        trust_region: delta, the limit for the change of the KL divergence from the average policy; None for no limit. A
            number can be changed during training.
        entropy_coefficient: weight of the entropy in the loss; higher explores more. Can be changed during training.
        value_coefficient: weight of the loss of Q. Can be changed during training.
        epsilon: is added to probabilities of Discrete actions in denominators and logarithms.
        dueling_samples: n, the actions of the policy whose mean advantage is subtracted; for Box actions only.
        hidden: units of each hidden layer for vector observations; images use the network of Mnih et al. (2015).
        network: the path of a network file, or your own actor `[B, observation] -> [B, actions]`, with logits or, after
            a softmax, probabilities; or (actor, critic), with a critic `[B, observation] -> [B, actions]`; or one
            network that returns both. For Box actions, an actor `[B, observation] -> [B, 2 A]`, means and log standard
            deviations; or (actor, critic, advantage), with a critic `[B, observation] -> [B, 1]` and an advantage
            `[B, observation + A] -> [B, 1]`. The agent builds a network that is None.
        shared: whether actor and critic share all layers but the last; by default only for images, unless you pass
            an actor.
        activation: of the hidden layers.
        log_std: the initial log standard deviations of Box actions; they do not depend on the observation.
        seed: see `noterl.Agent`.
        normalize_observation: see `noterl.Agent`.
        normalize_reward: see `noterl.Agent`.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.ACER("CartPole-v1", rollout_steps=8, replay_starts=1_000, hidden=(16,), seed=7)
    >>> history = agent.fit(steps=64, num_envs=2, verbose=0)
    >>> agent.updates
    4
    """

    memory = "sequences"
    action_spaces = ("Discrete", "Box")

    def __init__(
        self,
        env: Any,
        *,
        gamma: float | Schedule = 0.99,
        rollout_steps: int = 20,
        replay_ratio: float | Schedule = 4.0,
        replay_starts: int = 1_000,
        truncation: float | Schedule = 10.0,
        trust_region: float | Schedule | None = 1.0,
        entropy_coefficient: float | Schedule = 0.01,
        value_coefficient: float | Schedule = 0.5,
        epsilon: float = 1e-6,
        dueling_samples: int = 5,
        hidden: Sequence[int] = (64, 64),
        network: Any = None,
        shared: bool | None = None,
        activation: str = "tanh",
        log_std: float = 0.0,
        seed: int | None = None,
        normalize_observation: bool = False,
        normalize_reward: bool = False,
    ) -> None:
        super().__init__(
            env,
            hidden=hidden,
            network=network,
            shared=shared,
            activation=activation,
            log_std=log_std,
            seed=seed,
            normalize_observation=normalize_observation,
            normalize_reward=normalize_reward,
        )
        self.average_actor = networks.clone(self.actor)
        self.rollout_steps = check_positive("rollout_steps", rollout_steps)
        self.replay_starts = check_int("replay_starts", replay_starts, least=0)
        self.epsilon = positive("epsilon", epsilon)
        self.dueling_samples = check_positive("dueling_samples", dueling_samples)
        if not self.is_discrete:  # one action for the correction, and those of the dueling network
            self.random_spec = {"noise": ((1 + self.dueling_samples, self.action_size), "normal")}
        self.gamma = self.hyperparameter("gamma", gamma, minimum=0.0, maximum=1.0)
        self.replay_ratio = self.hyperparameter("replay_ratio", replay_ratio, minimum=0.0)
        self.truncation = self.hyperparameter("truncation", truncation, minimum=0.0)
        limit = None if trust_region is None else self.hyperparameter("trust_region", trust_region, minimum=0.0)
        self.trust_region = limit
        self.entropy_coefficient = self.hyperparameter("entropy_coefficient", entropy_coefficient)
        self.value_coefficient = self.hyperparameter("value_coefficient", value_coefficient, minimum=0.0)

    def __setattr__(self, name: str, value: Any) -> None:
        unused = name == "trust_region" and name in self.__dict__ and self.__dict__[name] is None
        if unused and value is not None:  # updates are compiled without it
            raise ValueError(f"{name} cannot be set to {value!r}, because it was None in the constructor")
        super().__setattr__(name, value)

    def defaults(self) -> Defaults:
        """Return the settings of Stable-Baselines 2, and the paper's memory of 50,000 steps."""
        optimizer = keras.optimizers.RMSprop(7e-4, rho=0.99, epsilon=1e-5, global_clipnorm=10.0)
        return Defaults(batch_size="rollout", capacity=50_000, target_update=0.01, optimizer=optimizer)

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
            space, size = self._network_space, self.action_size
            self.advantage = networks.network_or_default(
                others[0],
                hidden,
                lambda layers: networks.default_critic(space, layers, size, activation, gain=1.0),
                (self.observation_size + size,),
            )

    @property
    def _trained_networks(self) -> list[Any]:
        return super()._trained_networks if self.is_discrete else [*super()._trained_networks, self.advantage]

    def policy_and_values(self, observation: Any, mask: Any = None) -> tuple[Any, Any]:
        """Return the log-probabilities and the values Q of all actions, `[B, A]` each.

        `mask` `[B, A]` is that of legal actions; None if all are.
        """
        outputs = self.actor(observation)
        outputs, q = outputs if self.critic is None else (outputs, self.critic(observation))
        return self.head.log_policy(self.head.masked(outputs, mask)), action_values(q, self.action_size)

    def value(self, observation: Any, mask: Any = None) -> Any:
        """Return the values `[B]` of observations `[B, ...]`: the critic's, or the mean of Q under the policy."""
        if not self.is_discrete:
            return super().value(observation)
        log_policy, q = self.policy_and_values(observation, mask)
        return ops.sum(ops.exp(log_policy) * q, axis=-1)

    def average_policy(self, observation: Any, mask: Any = None) -> Any:
        """Return the probabilities `[B, A]` of the average policy."""
        outputs = self.head.masked(self.average_outputs(observation), mask)
        return ops.exp(self.head.log_policy(outputs))

    def average_outputs(self, observation: Any) -> Any:
        """Return the outputs of the average actor, those that `forward` returns for the actor."""
        outputs = self.average_actor(observation)
        return outputs[0] if self.critic is None else outputs

    def prepare(self, rollout: Batch) -> dict[str, Any]:
        """Return the policy that collected the rollout: the probabilities `[T, N, A]` of all actions.

        For Box actions, means and log standard deviations `[T, N, 2 A]`.
        """
        if not self.is_discrete:
            return {"behavior": losses.map_rows(self.forward, rollout.observation)}

        def policy(observation: Any, mask: Any = None) -> Any:
            return ops.exp(self.head.log_policy(self.outputs(observation, mask)))

        return {"behavior": losses.map_rows(policy, rollout.observation, *masks(rollout))}

    def combined_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return a loss for sequences `[T, N, ...]` whose gradient is that of algorithm 2, and its metrics.

        The value of this loss has no meaning: the gradient for the probabilities is given, not derived. The metric
        `loss` is the value of the objective that the gradient belongs to where the trust region does not change it.
        """
        weight, stop = batch.weight, ops.stop_gradient
        legal = masks(batch)
        log_policy, q = losses.map_rows(self.policy_and_values, batch.observation, *legal)  # [T, N, A]
        policy, taken_q = ops.exp(log_policy), losses.take(q, batch.action)
        average = losses.map_rows(self.average_policy, batch.observation, *legal)
        coefficients, target = self.coefficients_and_targets(batch, stop(policy), stop(q))
        gradient, limited = self.policy_gradient(stop(log_policy), coefficients, stop(average))
        surrogate = -losses.masked_mean(ops.sum(gradient * policy, axis=-1), weight)
        value_loss = losses.masked_mean(losses.squared(target - taken_q), weight)
        objective = ops.sum(coefficients * ops.log(policy + self.epsilon), axis=-1)
        divergence = ops.sum(average * (ops.log(average + self.epsilon) - log_policy), axis=-1)
        metrics = {
            "policy_loss": -losses.masked_mean(objective, weight),
            "value_loss": value_loss,
            "entropy": -losses.masked_mean(ops.sum(policy * log_policy, axis=-1), weight),
            "average_kl": losses.masked_mean(divergence, weight),
            "limited": losses.masked_mean(limited, weight),
        }
        loss = metrics["policy_loss"] - self.entropy_coefficient * metrics["entropy"]
        return surrogate + self.value_coefficient * value_loss, {
            "loss": loss + self.value_coefficient * value_loss,
            **metrics,
        }

    def coefficients_and_targets(self, batch: Batch, policy: Any, q: Any) -> tuple[Any, Any]:
        """Return the coefficients of `log pi` `[T, N, A]` (equation 9), and the Retrace targets `[T, N]`.

        `policy` and `q` are `[T, N, A]`, without gradients.
        """
        behavior, action = batch.extra["behavior"], batch.action
        value = ops.sum(policy * q, axis=-1)  # [T, N]
        next_value = losses.map_rows(self.value, batch.next_observation, *masks(batch, "next_action_mask"))
        ratio = losses.take(policy / (behavior + self.epsilon), action)
        taken_q, continues = losses.take(q, action), batch.extra["continues"]
        target = losses.retrace(batch.reward, batch.discount, taken_q, next_value, ratio, continues)
        taken = losses.map_rows(self.head.one_hot, action)
        advantages, bound = q - ops.expand_dims(value, -1), ops.convert_to_tensor(self.truncation)
        coefficients = losses.truncated_importance(
            policy, behavior, taken, target - value, advantages, bound, self.epsilon
        )
        return coefficients, target

    def policy_gradient(self, log_policy: Any, coefficients: Any, average: Any) -> tuple[Any, Any]:
        """Return the gradient for the probabilities `[T, N, A]`, and whether the trust region changed it `[T, N]`.

        Args:
            log_policy: `[T, N, A]`, without a gradient.
            coefficients: of `log pi` in the objective, `[T, N, A]`.
            average: probabilities of the average policy, `[T, N, A]`.
        """
        denominator = ops.exp(log_policy) + self.epsilon
        gradient = coefficients / denominator - self.entropy_coefficient * (log_policy + 1.0)
        if self.trust_region is None:
            return gradient, ops.zeros_like(gradient[..., 0])
        return losses.trust_region(gradient, -average / denominator, ops.convert_to_tensor(self.trust_region))

    def advantages(self, observation: Any, actions: Any) -> Any:
        """Return the advantages `[B, m]` of m actions for each observation, `[B, m, A]`, not centered yet."""
        count, flat = actions.shape[1], (-1, self.observation_size)
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
        fixed, size = ops.stop_gradient(outputs), self.action_size
        mean, deviation = (ops.expand_dims(half, 1) for half in (fixed[:, :size], ops.exp(fixed[:, size:])))
        samples = mean + deviation * noise  # [B, 1 + n, A]
        taken, sampled = ops.reshape(ops.cast(action, "float32"), (-1, size)), samples[:, 0]
        weights = (
            losses.importance_weight(self.head.log_prob(fixed, each), self.head.log_prob(behavior, each))
            for each in (taken, sampled)
        )
        advantages = self.advantages(observation, ops.concatenate([taken[:, None], samples], axis=1))
        value = scalar_values(value)
        q = ops.expand_dims(value, -1) + advantages[:, :2] - ops.mean(advantages[:, 2:], axis=-1, keepdims=True)
        return outputs, sampled, *weights, value, q[:, 0], q[:, 1]

    def continuous_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return a loss for sequences `[T, N, ...]` whose gradient is that of algorithm 3, and its metrics.

        As that of `combined_loss`, the value of this loss has no meaning.
        """
        weight, stop, head = batch.weight, ops.stop_gradient, self.head
        outputs, sampled, ratio, sampled_ratio, value, q, sampled_q = losses.map_rows(
            self.policy_and_dueling_values,
            batch.observation,
            batch.action,
            batch.extra["behavior"],
            batch.extra["noise"],
        )
        fixed, average = stop(outputs), stop(losses.map_rows(self.average_outputs, batch.observation))
        target, opc = self.continuous_targets(batch, ratio, stop(q))
        baseline, bound = stop(value), ops.convert_to_tensor(self.truncation)
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

        `ratio` and `q` are those of the actions taken, `[T, N]`, without gradients.
        """
        next_value = ops.stop_gradient(losses.map_rows(self.value, batch.next_observation))
        known = batch.reward, batch.discount, q, next_value
        powers = ops.power(ratio, 1.0 / self.action_size), ops.ones_like(ratio)
        target, opc = (losses.retrace(*known, each, batch.extra["continues"]) for each in powers)
        return target, opc

    def continuous_gradient(self, gradient: Any, outputs: Any, average: Any) -> tuple[Any, Any]:
        """Return the gradient for the outputs `[T, N, 2 A]`, and whether the trust region changed it `[T, N]`.

        Args:
            gradient: of equation 14, without that of the entropy, `[T, N, 2 A]`.
            outputs: means and log standard deviations, `[T, N, 2 A]`.
            average: those of the average policy, `[T, N, 2 A]`.
        """
        size = self.action_size
        of_entropy = np.repeat(np.float32([0.0, 1.0]), size)  # the entropy is the sum of the log standard deviations
        gradient = gradient + self.entropy_coefficient * of_entropy
        if self.trust_region is None:
            return gradient, ops.zeros_like(gradient[..., 0])
        normal = losses.map_rows(self.head.kl_gradient, average, outputs)
        return losses.trust_region(gradient, normal, ops.convert_to_tensor(self.trust_region))

    def update(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make one gradient step on sequences `[T, N, ...]`."""
        loss = self.combined_loss if self.is_discrete else self.continuous_loss
        _, metrics = self.minimize(loss, self._trained_networks, "optimizer", batch)
        return metrics, {}

    def update_target(self) -> None:
        """Move the average policy towards the policy."""
        networks.copy(self.actor, self.average_actor, self.tau)

"""Actor-critic with experience replay.

Paper: Wang et al., "Sample efficient actor-critic with experience replay", 2017, algorithms 1 and 2: Retrace (equation
5), truncated importance weights with the correction of their bias (equation 9), and the trust region around an average
policy (equation 12). Section 5, for Box actions, is left out.

Differs: as in Stable-Baselines 2, the gradient that the trust region limits includes the entropy's, with a weight of
0.01. There is one learner for all environments instead of one for each, and networks have separate trunks unless
observations are images. Sequences start at any stored step, not only at the first one of a rollout. Truncated episodes
are bootstrapped from the value of the true last observation.
"""

from __future__ import annotations

from typing import Any, Unpack

from noterl import losses, networks
from noterl.agent import Defaults
from noterl.agents.actor_critic import ActorCritic, ActorCriticOptions, masks
from noterl.backends import keras, ops
from noterl.hyperparameters import Hyperparameter
from noterl.networks.critics import action_values
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import ACTING_OUTPUTS, Batch
from noterl.utils.checks import check_int, check_positive, positive


@register
class ACER(ActorCritic):
    """Actor-critic with experience replay for Discrete actions, on vectors and images.

    After each rollout of all environments, the agent makes one update on the rollout, and then Poisson(`replay_ratio`)
    updates on sequences from a replay memory of rollouts. The critic returns Q for all actions; the value of an
    observation is their mean under the policy. The default optimizer is RMSProp with `global_clipnorm=10`. After each
    update, the weights of the average policy become `(1 - tau) * average + tau * policy`, with
    `compile(target_update=tau)`, 0.01 by default.

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
        epsilon: is added to probabilities in denominators and logarithms.
        hidden: units of each hidden layer for vector observations; images use the network of Mnih et al. (2015).
        network: the path of a network file, or your own actor `[B, observation] -> [B, actions]`, with logits or, after
            a softmax, probabilities; or (actor, critic), with a critic `[B, observation] -> [B, actions]`; or one
            network that returns both. The agent builds a network that is None.
        shared: whether actor and critic share all layers but the last; by default only for images, unless you pass
            an actor.
        activation: of the hidden layers.
        log_std: has no effect, because actions are Discrete.
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
    corrects_staleness = True
    _optional_hyperparameters = ("trust_region",)
    action_spaces: tuple[str, ...] = ("Discrete",)
    replay_ratio: Hyperparameter
    truncation: Hyperparameter
    value_coefficient: Hyperparameter

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
        **options: Unpack[ActorCriticOptions],
    ) -> None:
        super().__init__(env, **options)
        self.average_actor: Any = networks.clone(self.actor)
        self.rollout_steps: int = check_positive("rollout_steps", rollout_steps)
        self.replay_starts: int = check_int("replay_starts", replay_starts, least=0)
        self.epsilon: float = positive("epsilon", epsilon)
        self.gamma = self.hyperparameter("gamma", gamma, minimum=0.0, maximum=1.0)
        self.replay_ratio = self.hyperparameter("replay_ratio", replay_ratio, minimum=0.0)
        self.truncation = self.hyperparameter("truncation", truncation, minimum=0.0)
        limit = None if trust_region is None else self.hyperparameter("trust_region", trust_region, minimum=0.0)
        self.trust_region: Any = limit
        self.entropy_coefficient = self.hyperparameter("entropy_coefficient", entropy_coefficient)
        self.value_coefficient = self.hyperparameter("value_coefficient", value_coefficient, minimum=0.0)

    def defaults(self) -> Defaults:
        """Return the settings of Stable-Baselines 2, and the paper's memory of 50,000 steps."""
        optimizer = keras.optimizers.RMSprop(7e-4, rho=0.99, epsilon=1e-5, global_clipnorm=10.0)
        return Defaults(batch_size="rollout", capacity=50_000, target_update=0.01, optimizer=optimizer)

    @property
    def num_values(self) -> int:
        """The number of values that the critic returns for each observation: one for each action."""
        return self.action_size

    def policy_and_values(self, observation: Any, mask: Any = None) -> tuple[Any, Any]:
        """Return the log-probabilities and the values Q of all actions, `[B, A]` each.

        `mask` `[B, A]` marks legal actions; None if all are.
        """
        outputs = self.actor(observation)
        outputs, q = outputs if self.critic is None else (outputs, self.critic(observation))
        return self.head.log_policy(self.head.masked(outputs, mask)), action_values(q, self.action_size)

    def value(self, observation: Any, mask: Any = None) -> Any:
        """Return the values `[B]` of observations `[B, ...]`: the critic's, or the mean of Q under the policy."""
        log_policy, q = self.policy_and_values(observation, mask)
        return ops.sum(ops.exp(log_policy) * q, axis=-1)

    def average_policy(self, observation: Any, mask: Any = None) -> Any:
        """Return the probabilities `[B, A]` of the average policy."""
        outputs = self.average_actor(observation)
        outputs = outputs[0] if self.critic is None else outputs
        return ops.exp(self.head.log_policy(self.head.masked(outputs, mask)))

    def prepare(self, rollout: Batch) -> dict[str, Any]:
        """Return the policy that collected the rollout: the probabilities `[T, N, A]` of all actions."""
        outputs = rollout.extra.get(ACTING_OUTPUTS)
        if outputs is None:
            outputs = losses.map_rows(self.forward, rollout.observation)

        def policy(outputs: Any, mask: Any = None) -> Any:
            return ops.exp(self.head.log_policy(self.head.masked(outputs, mask)))

        return {"behavior": losses.map_rows(policy, outputs, *masks(rollout))}

    def combined_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return a loss for sequences `[T, N, ...]` with the gradient of algorithm 2, and metrics.

        The value of this loss has no meaning: the gradient for the probabilities is given, not derived. The metric
        `loss` is the value of the objective that the gradient belongs to where the trust region does not change it.
        """
        weight = batch.weight
        stop = ops.stop_gradient
        legal = masks(batch)
        log_policy, q = losses.map_rows(self.policy_and_values, batch.observation, *legal)  # [T, N, A]
        policy = ops.exp(log_policy)
        taken_q = losses.take(q, batch.action)
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
        behavior = batch.extra["behavior"]
        action = batch.action
        value = ops.sum(policy * q, axis=-1)  # [T, N]
        next_value = losses.map_rows(self.value, batch.next_observation, *masks(batch, "next_action_mask"))
        ratio = losses.take(policy / (behavior + self.epsilon), action)
        taken_q = losses.take(q, action)
        target = losses.retrace(batch.reward, batch.discount, taken_q, next_value, ratio, batch.extra["continues"])
        taken = losses.map_rows(self.head.one_hot, action)
        advantages = q - ops.expand_dims(value, -1)
        limits = ops.convert_to_tensor(self.truncation), self.epsilon
        coefficients = losses.truncated_importance(policy, behavior, taken, target - value, advantages, *limits)
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

    def update(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make one gradient step on sequences `[T, N, ...]`."""
        _, metrics = self.minimize(self.combined_loss, self._trained_networks, "optimizer", batch)
        return metrics, {}

    def update_target(self) -> None:
        """Move the average policy towards the policy."""
        networks.copy(self.actor, self.average_actor)

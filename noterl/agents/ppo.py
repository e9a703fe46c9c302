"""Proximal policy optimization.

Paper: Schulman et al., "Proximal policy optimization algorithms", 2017: the clipped surrogate of equation 7 and the
combined loss of equation 9. Advantages: Schulman et al., "High-dimensional continuous control using generalized
advantage estimation", 2016, equation 16. With workers that overlap, V-trace gives the targets (Espeholt et al.,
"IMPALA", 2018, section 4.1).

Differs: as in Stable-Baselines3, advantages are normalized within each minibatch, gradients are clipped by their norm,
and the value loss is the squared error without a factor of 0.5. Advantages are divided by the standard deviation of the
population, not of the sample. If the divergence exceeds 1.5 times `target_kl`, this update is undone and no other
update is made on the rollout. An incomplete last minibatch of an epoch is filled with randomly chosen rows; in
Stable-Baselines3 it is shorter. Truncated episodes are bootstrapped from the value of the true last observation;
Stable-Baselines3 adds that value to the reward.
"""

from __future__ import annotations

from typing import Any, Unpack

from noterl import losses
from noterl.agent import Defaults
from noterl.agents.recurrent import RecurrentActorCritic, RecurrentOptions
from noterl.backends import keras, ops
from noterl.hyperparameters import Hyperparameter
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import Batch
from noterl.utils.checks import check_bool, check_positive


@register
class PPO(RecurrentActorCritic):
    """Proximal policy optimization for Discrete, MultiDiscrete, MultiBinary and Box actions, on vectors and images.

    The default optimizer is Adam with `global_clipnorm=0.5`. Your own optimizer must clip gradients
    itself. An optimizer of `torch.optim` can do this in a hook (`register_step_pre_hook`).

    With `compile(replay=...)`, rollouts are stored in a replay memory with their log-probabilities and advantages, and
    updates sample from it. `noterl.Replay(4096, sampler=Prioritized(score=RatioScore()))` prioritizes large value
    errors and transitions whose probability has changed. The capacity, or a callback that trims the memory, determines
    how many past transitions are used.

    Args:
        env: see `noterl.Agent`.
        gamma: discount factor, 0 to 1; near 1 for long tasks. Can be changed during training.
        gae_lambda: 0 gives one-step advantages; 1 gives advantages of whole rollouts, with less bias and more variance.
            Can be changed during training.
        rollout_steps: steps of each environment between updates.
        epochs: passes over each rollout.
        clip: the change of the probability ratio beyond which the gradient is zero. Can be changed during training.
        value_clip: the same bound for changes of the value; None for no bound. A number can be changed during training.
        entropy_coefficient: weight of the entropy in the loss; higher explores more. Can be changed during training.
        value_coefficient: weight of the value loss. Can be changed during training.
        normalize_advantage: whether advantages are shifted and scaled within each minibatch.
        target_kl: updates on a rollout end if the estimated KL divergence exceeds 1.5 times this; None for no limit. A
            number can be changed during training.
        optimizers: 1, or 2 for separate optimizers "actor" and "critic"; `compile(optimizer=[...])` then takes two.
        hidden: units of each hidden layer for vector observations; images use the network of Mnih et al. (2015).
        network: the path of a network file, or your own actor `[B, observation] -> [B, outputs of the head]`; or
            (actor, critic), with a critic `[B, observation] -> [B, 1]`; or one network that returns both. The agent
            builds a network that is None. For Discrete actions, the actor returns logits, or probabilities if its last
            layer is a softmax.
        shared: whether actor and critic share all layers but the last; by default only for images, unless you pass
            an actor.
        activation: of the hidden layers.
        log_std: the initial log standard deviations of Box actions; they do not depend on the observation.
        recurrent: "gru", "lstm" or a function `inputs -> cell` for a policy with a memory; None for none. The cell lies
            between the convolutions, if there are any, and the hidden layers. Actor and critic have a cell each, unless
            they are `shared`.
        recurrent_units: the number of outputs of each cell.
        sequence_length: steps through which gradients flow, and of which minibatches are made. It divides
            `rollout_steps` and `batch_size`; by default the largest such number up to 64.
        seed: see `noterl.Agent`.
        normalize_observation: see `noterl.Agent`.
        normalize_reward: see `noterl.Agent`.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.PPO("CartPole-v1", rollout_steps=16, epochs=2, hidden=(16,), seed=7)
    >>> history = agent.fit(steps=64, num_envs=2, verbose=0)
    >>> agent.updates
    4
    """

    _optional_hyperparameters = ("value_clip", "target_kl")
    clip: Hyperparameter
    value_clip: float | Hyperparameter | None
    value_coefficient: Hyperparameter
    target_kl: float | Hyperparameter | None

    def __init__(
        self,
        env: Any,
        *,
        gamma: float | Schedule = 0.99,
        gae_lambda: float | Schedule = 0.95,
        rollout_steps: int = 2048,
        epochs: int = 10,
        clip: float | Schedule = 0.2,
        value_clip: float | Schedule | None = None,
        entropy_coefficient: float | Schedule = 0.0,
        value_coefficient: float | Schedule = 0.5,
        normalize_advantage: bool = True,
        target_kl: float | Schedule | None = None,
        optimizers: int = 1,
        **options: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(env, **options)
        if check_positive("optimizers", optimizers) > 2:
            raise ValueError(f"optimizers must be 1 or 2, got {optimizers!r}")
        if optimizers == 2 and self.critic is None:
            raise ValueError("optimizers must be 1 for a network that returns the outputs of actor and critic, got 2")
        self.optimizer_names: tuple[str, ...] = ("optimizer",) if optimizers == 1 else ("actor", "critic")
        self.normalize_advantage: bool = check_bool("normalize_advantage", normalize_advantage)
        self.rollout_steps: int = check_positive("rollout_steps", rollout_steps)
        self.epochs: int = check_positive("epochs", epochs)
        self.gamma = self.hyperparameter("gamma", gamma, minimum=0.0, maximum=1.0)
        self.gae_lambda = self.hyperparameter("gae_lambda", gae_lambda, minimum=0.0, maximum=1.0)
        self.clip = self.hyperparameter("clip", clip, minimum=0.0)
        self.value_clip = None if value_clip is None else self.hyperparameter("value_clip", value_clip, minimum=0.0)
        self.entropy_coefficient = self.hyperparameter("entropy_coefficient", entropy_coefficient)
        self.value_coefficient = self.hyperparameter("value_coefficient", value_coefficient, minimum=0.0)
        self.target_kl = None if target_kl is None else self.hyperparameter("target_kl", target_kl, minimum=0.0)

    def defaults(self) -> Defaults:
        """Return Stable-Baselines3's settings for vectors, and the paper's appendix for images."""
        rate = 2.5e-4 if self.is_image else 3e-4
        size = 256 if self.is_image else 64
        return Defaults(batch_size=size, optimizer=keras.optimizers.Adam(rate, epsilon=1e-5, global_clipnorm=0.5))

    def corrected_advantage(self, rollout: Batch, continues: Any, target: Any, value: Any, next_value: Any) -> Any:
        """Return the advantages without a weight, because the ratio of `policy_loss` replaces the weight of V-trace."""
        # The target of the next row; where an episode or the rollout ends, the value of the next observation.
        following = ops.concatenate([target[1:], next_value[-1:]])
        next_target = continues * following + (1.0 - continues) * next_value
        return rollout.reward + rollout.discount * next_target - value

    def policy_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the clipped surrogate minus the weighted entropy, and its metrics."""
        values = self.policy_outputs(batch)
        batch = self._as_rows(batch)
        log_prob = self.head.log_prob(values, batch.action)
        old = batch.extra["log_prob"]
        advantage = batch.extra["advantage"]
        if self.normalize_advantage:
            advantage = losses.normalize(advantage, batch.weight)
        surrogate = losses.clipped_surrogate(log_prob, old, advantage, self.clip)
        entropy = losses.masked_mean(self.head.entropy(values), batch.weight)
        policy = losses.masked_mean(surrogate, batch.weight)
        ratio = ops.exp(log_prob - old)
        clipped = ops.cast(ops.abs(ratio - 1.0) > self.clip, "float32")
        return policy - self.entropy_coefficient * entropy, {
            "policy_loss": policy,
            "entropy": entropy,
            "approximate_kl": losses.masked_mean(losses.approximate_kl(log_prob, old), batch.weight),
            "clip_fraction": losses.masked_mean(clipped, batch.weight),
            "ratio": ratio,
        }

    def value_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the weighted error of the values, and its metrics."""
        value = self.values(batch)
        batch = self._as_rows(batch)
        old = batch.extra["value"]
        target = batch.extra["target"]
        error = losses.masked_mean(losses.value_error(value, target, old, self.value_clip), batch.weight)
        return self.value_coefficient * error, {"value_loss": error, "td_error": target - value}

    def combined_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the sum of both losses (equation 9, negated), and the metrics of both."""
        policy, policy_metrics = self.policy_loss(batch)
        value, value_metrics = self.value_loss(batch)
        return policy + value, {**policy_metrics, **value_metrics}

    def update(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make one gradient step on a minibatch, with one optimizer or one for each network."""
        if len(self.optimizer_names) == 1:
            loss, metrics = self.minimize(self.combined_loss, self._trained_networks, "optimizer", batch)
        else:
            policy, policy_metrics = self.minimize(self.policy_loss, self.actor, "actor", batch)
            value, value_metrics = self.minimize(self.value_loss, self.critic, "critic", batch)
            loss = policy + value
            metrics = {**policy_metrics, **value_metrics}
        feedback = {name: metrics.pop(name) for name in ("ratio", "td_error")}
        return {"loss": loss, **metrics}, feedback

    def stop_epochs(self, logs: dict[str, Any]) -> Any:
        """Return whether the policy has moved too far from the one that collected the rollout."""
        return None if self.target_kl is None else logs["approximate_kl"] > 1.5 * self.target_kl

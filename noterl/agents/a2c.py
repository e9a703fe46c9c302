"""Advantage actor-critic, synchronous.

Paper: Mnih et al., "Asynchronous methods for deep reinforcement learning", 2016, algorithm S3, with synchronous
environments.

With workers that overlap, V-trace gives targets and advantages (Espeholt et al., "IMPALA", 2018, section 4.1).

Differs: if `gae_lambda` is below 1, as by default, advantages follow Schulman et al. (2016), equation 16. With 1,
advantages are the paper's n-step returns minus the value. Rollouts are longer, because the default is one environment
(see benchmarks/first_programs.py). RMSProp's epsilon is inside the root in Keras and outside in Stable-Baselines3,
whose 1e-5 is therefore 1e-10 here.
"""

from __future__ import annotations

from typing import Any, Unpack

from noterl import losses
from noterl.agent import Defaults
from noterl.agents.recurrent import RecurrentActorCritic, RecurrentOptions
from noterl.backends import keras
from noterl.hyperparameters import Hyperparameter
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import Batch
from noterl.utils.checks import check_bool, check_positive


@register
class A2C(RecurrentActorCritic):
    """Advantage actor-critic for Discrete, MultiDiscrete, MultiBinary and Box actions, on vectors and images.

    Each rollout of all environments gives one update. The default optimizer is RMSProp with
    `global_clipnorm=0.5`; `compile(optimizer="adam")` replaces it.

    Args:
        env: see `noterl.Agent`.
        gamma: discount factor, 0 to 1; near 1 for long tasks. Can be changed during training.
        gae_lambda: 1 gives n-step returns. Below 1, generalized advantages have less variance and more bias. Can be
            changed during training.
        rollout_steps: n, the steps of each environment between updates. 32 suits one environment. With 8 or more
            environments, use the paper's 5.
        entropy_coefficient: weight of the entropy in the loss; higher explores more. Can be changed during training.
        value_coefficient: weight of the value loss. Can be changed during training.
        normalize_advantage: whether advantages are shifted and scaled within the rollout.
        hidden: units of each hidden layer for vector observations; images use the network of Mnih et al. (2015).
        network: the path of a network file, or your own actor `[B, observation] -> [B, outputs of the head]`; or
            (actor, critic), with a critic `[B, observation] -> [B, 1]`; or one network that returns both. The agent
            builds a network that is None. For Discrete actions, the actor returns logits, or probabilities if its last
            layer is a softmax.
        shared: whether actor and critic share all layers but the last; by default only for images, unless you pass
            an actor.
        activation: of the hidden layers.
        log_std: the initial log standard deviations of Box actions; they do not depend on the observation.
        recurrent: "gru", "lstm" or a function `inputs -> cell` for a policy with a memory; see `PPO`.
        recurrent_units: the number of outputs of each cell.
        sequence_length: steps through which gradients flow; see `PPO`.
        seed: see `noterl.Agent`.
        normalize_observation: see `noterl.Agent`.
        normalize_reward: see `noterl.Agent`.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.A2C("CartPole-v1", rollout_steps=8, hidden=(16,), seed=7)
    >>> history = agent.fit(steps=64, num_envs=2, verbose=0)
    >>> agent.updates
    4
    """

    supports_replay = False  # the policy gradient needs actions of the current policy
    value_coefficient: Hyperparameter

    def __init__(
        self,
        env: Any,
        *,
        gamma: float | Schedule = 0.99,
        gae_lambda: float | Schedule = 0.95,
        rollout_steps: int = 32,
        entropy_coefficient: float | Schedule = 0.0,
        value_coefficient: float | Schedule = 0.5,
        normalize_advantage: bool = False,
        **options: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(env, **options)
        self.rollout_steps: int = check_positive("rollout_steps", rollout_steps)
        self.epochs: int = 1
        self.normalize_advantage: bool = check_bool("normalize_advantage", normalize_advantage)
        self.gamma = self.hyperparameter("gamma", gamma, minimum=0.0, maximum=1.0)
        self.gae_lambda = self.hyperparameter("gae_lambda", gae_lambda, minimum=0.0, maximum=1.0)
        self.entropy_coefficient = self.hyperparameter("entropy_coefficient", entropy_coefficient)
        self.value_coefficient = self.hyperparameter("value_coefficient", value_coefficient, minimum=0.0)

    def defaults(self) -> Defaults:
        """Return the optimizer of Stable-Baselines3, and whole rollouts as batches."""
        optimizer = keras.optimizers.RMSprop(7e-4, rho=0.99, epsilon=1e-10, global_clipnorm=0.5)
        return Defaults(batch_size="rollout", optimizer=optimizer)

    def combined_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the combined loss of policy, values and entropy, and its metrics."""
        values = self.policy_outputs(batch)
        state_values = self.values(batch)
        batch = self._as_rows(batch)
        advantage = batch.extra["advantage"]
        weight = batch.weight
        if self.normalize_advantage:
            advantage = losses.normalize(advantage, weight)
        policy = -losses.masked_mean(self.head.log_prob(values, batch.action) * advantage, weight)
        entropy = losses.masked_mean(self.head.entropy(values), weight)
        value = losses.masked_mean(losses.value_error(state_values, batch.extra["target"]), weight)
        loss = policy + self.value_coefficient * value - self.entropy_coefficient * entropy
        return loss, {"policy_loss": policy, "value_loss": value, "entropy": entropy}

    def update(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make one gradient step on a rollout."""
        loss, metrics = self.minimize(self.combined_loss, self._trained_networks, "optimizer", batch)
        return {"loss": loss, **metrics}, {}

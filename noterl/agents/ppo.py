"""Proximal policy optimization.

Paper: Schulman et al., "Proximal policy optimization algorithms", 2017, with the clipped surrogate of equation 7 and
the combined loss of equation 9; advantages are those of Schulman et al., "High-dimensional continuous control using
generalized advantage estimation", 2016, equation 16.

Differs: as Stable-Baselines3 does, advantages are normalised within each minibatch (here by the population's standard
deviation), gradients are clipped by their norm, the value loss is the squared error without a factor of 0.5, and
`target_kl` discards the update that finds the policy too far from the one that acted, and those after it. The last
minibatch of an epoch is filled up where theirs is shorter. Truncated episodes are bootstrapped from their true last
observation's value, where theirs adds that value to the reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl import heads, losses, networks
from noterl.agent import Agent, Defaults
from noterl.backends import keras, ops
from noterl.networks.critics import scalar_values
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import Batch
from noterl.utils.checks import check_bool, check_number, check_positive

Number = float | Schedule


class ActorCritic(Agent):
    """Base of the agents with a policy and a value that learn from rollouts: their networks and advantages.

    Args:
        env: see `noterl.Agent`.
        hidden: units of each hidden layer, for vectors; images get the network of Mnih et al. (2015), shared.
        network: an actor `[B, observation] -> [B, outputs of the head]` of your own instead, or a pair of it and a
            critic `-> [B, 1]`, with None for the one that is to be built.
        shared: whether actor and critic share all layers but the last; by default only for images.
        activation: of the hidden layers.
        log_std: where the logarithms of the standard deviations start, for a Box; they do not depend on observations.
        normalize_observation: whether networks see observations shifted and scaled by their running moments.
        normalize_reward: whether rewards are scaled by the running deviation of the discounted return.
        seed: see `noterl.Agent`.
    """

    memory = "rollout"
    action_spaces = ("Discrete", "MultiDiscrete", "Box")
    head: heads.Categorical | heads.Gaussian
    gae_lambda: Any

    def __init__(
        self,
        env: Any,
        *,
        hidden: Sequence[int] = (64, 64),
        network: Any = None,
        shared: bool | None = None,
        activation: str = "tanh",
        log_std: float = 0.0,
        normalize_observation: bool = False,
        normalize_reward: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(env, seed=seed, normalize_observation=normalize_observation, normalize_reward=normalize_reward)
        continuous = isinstance(self.action_space, spaces.Box)
        head: Any = (heads.Gaussian() if continuous else heads.Categorical()).bind(self.action_space)
        self.head = head
        actor, critic = networks.split_networks(network, "actor", "critic")
        shared = self.is_image and actor is None if shared is None else check_bool("shared", shared)
        rules: Any = {"gain": 0.01, "log_std": check_number("log_std", log_std) if continuous else None}
        means = head.size // 2 if continuous else head.size

        def built(outputs: int, **rules: Any) -> Any:
            if self.is_image:
                return networks.nature_cnn(self.observation_shape, outputs, **rules)
            return networks.mlp(self.observation_shape, hidden, outputs, activation=activation, **rules)

        def beside() -> Any:
            return networks.share_trunk(self.actor, 1, gain=1.0) if shared else built(1, gain=1.0)

        self.actor = networks.network_or_default(actor, lambda: built(means, **rules))
        self.critic = networks.network_or_default(critic, beside)

    def forward(self, observation: Any) -> Any:
        """Return what the head takes: logits, or means and logarithms of standard deviations."""
        return self.actor(observation)

    def value(self, observation: Any) -> Any:
        """Return the values `[B]` of observations `[B, ...]`."""
        return scalar_values(self.critic(observation))

    def log_prob(self, observation: Any, action: Any) -> Any:
        """Return the log-probabilities `[B]` of actions `[B, ...]` for observations `[B, ...]`."""
        return self.head.log_prob(self.forward(observation), action)

    def prepare(self, rollout: Batch) -> dict[str, Any]:
        """Return values, log-probabilities, advantages and value targets of a rollout; all `[T, N]`."""
        value = losses.by_rows(self.value, rollout.observation)
        # The true next observations: a truncated episode goes on, in its value, from the one that it was cut off at.
        next_value = losses.by_rows(self.value, rollout.next_observation)
        log_prob = losses.by_rows(self.log_prob, rollout.observation, rollout.action)
        decay = rollout.discount * rollout.extra["continues"] * self.gae_lambda
        advantage = losses.gae(rollout.reward, rollout.discount, value, next_value, decay)
        return {"value": value, "log_prob": log_prob, "advantage": advantage, "target": advantage + value}


@register
class PPO(ActorCritic):
    """Proximal policy optimization for Discrete, MultiDiscrete and Box actions, on vectors and images.

    The arguments of `ActorCritic`, and:

    Args:
        gamma: discount factor, 0 to 1; near 1 for long tasks. Live.
        gae_lambda: 0 takes one-step advantages, 1 those of whole rollouts: less bias, more variance. Live.
        rollout_steps: steps of each environment between updates.
        epochs: passes over each rollout.
        clip: how far the ratio of probabilities may move from 1 before it stops counting. Live.
        value_clip: the same for values, around those of the rollout; None for no bound. Live unless None.
        entropy_coefficient: weight of the entropy in the loss; more keeps exploring. Live.
        value_coefficient: weight of the value loss. Live.
        normalize_advantage: whether advantages are shifted and scaled within each minibatch.
        target_kl: updates on a rollout end when the estimated divergence exceeds 1.5 of this; None for never. Live
            unless None.
        optimizers: 1, or 2 for an "actor" and a "critic" of their own; then `compile(optimizer=[...])` takes two.

    With `compile(replay=...)` rollouts go to a replay memory and stay there, to be drawn with their old
    log-probabilities and advantages: `noterl.Replay(4096, sampler=Prioritized(score=RatioScore()))` draws by how wrong
    the value is and how far the policy has moved. Its capacity, or a callback that trims it, is the window of them.

    The default optimizer is Adam, with gradients clipped to a norm of 0.5 (`global_clipnorm`): an optimizer of your own
    clips what you tell it to, one of `torch.optim` by its `register_step_pre_hook`.

    Raises:
        ValueError: for another kind of space or a bad argument.

    Example:
    >>> import noterl
    >>> agent = noterl.PPO("CartPole-v1", rollout_steps=16, epochs=2, hidden=(16,), seed=7)
    >>> history = agent.fit(steps=64, num_envs=2, verbose=0)
    >>> agent.updates
    4
    """

    def __init__(
        self,
        env: Any,
        *,
        gamma: Number = 0.99,
        gae_lambda: Number = 0.95,
        rollout_steps: int = 2048,
        epochs: int = 10,
        clip: Number = 0.2,
        value_clip: Number | None = None,
        entropy_coefficient: Number = 0.0,
        value_coefficient: Number = 0.5,
        normalize_advantage: bool = True,
        target_kl: Number | None = None,
        optimizers: int = 1,
        seed: int | None = None,
        **architecture: Any,
    ) -> None:
        super().__init__(env, seed=seed, **architecture)
        if isinstance(optimizers, bool) or not isinstance(optimizers, int | np.integer) or optimizers not in (1, 2):
            raise ValueError(f"optimizers must be 1 or 2, got {optimizers!r}")
        self.optimizer_names = ("optimizer",) if optimizers == 1 else ("actor", "critic")
        self.normalize_advantage = check_bool("normalize_advantage", normalize_advantage)
        self.rollout_steps = check_positive("rollout_steps", rollout_steps)
        self.epochs = check_positive("epochs", epochs)
        self.gamma = self.hyperparameter("gamma", gamma, minimum=0.0, maximum=1.0)
        self.gae_lambda = self.hyperparameter("gae_lambda", gae_lambda, minimum=0.0, maximum=1.0)
        self.clip = self.hyperparameter("clip", clip, minimum=0.0)
        self.value_clip = None if value_clip is None else self.hyperparameter("value_clip", value_clip, minimum=0.0)
        self.entropy_coefficient = self.hyperparameter("entropy_coefficient", entropy_coefficient)
        self.value_coefficient = self.hyperparameter("value_coefficient", value_coefficient, minimum=0.0)
        self.target_kl = None if target_kl is None else self.hyperparameter("target_kl", target_kl, minimum=0.0)

    def __setattr__(self, name: str, value: Any) -> None:
        without = name in ("value_clip", "target_kl") and name in self.__dict__ and self.__dict__[name] is None
        if without and value is not None:  # updates are compiled without it
            raise ValueError(f"{name} of this agent was None as it was made, and stays so; got {value!r}")
        super().__setattr__(name, value)

    def defaults(self) -> Defaults:
        """Return the settings of Stable-Baselines3 for vectors, and for images those of the paper's appendix."""
        rate = 2.5e-4 if self.is_image else 3e-4
        size = 256 if self.is_image else 64
        return Defaults(batch_size=size, optimizer=keras.optimizers.Adam(rate, epsilon=1e-5, global_clipnorm=0.5))

    def policy_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the clipped surrogate less the entropy's share, and what tells how it goes."""
        values = self.forward(batch.observation)
        log_prob, old = self.head.log_prob(values, batch.action), batch.extra["log_prob"]
        advantage = batch.extra["advantage"]
        if self.normalize_advantage:
            advantage = losses.normalized(advantage, batch.weight)
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
        """Return the weighted error of the values, and the error itself."""
        value, old, target = self.value(batch.observation), batch.extra["value"], batch.extra["target"]
        error = losses.masked_mean(losses.value_error(value, target, old, self.value_clip), batch.weight)
        return self.value_coefficient * error, {"value_loss": error, "td_error": target - value}

    def combined_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the sum of both losses (equation 9, as a loss), and what both tell."""
        policy, told = self.policy_loss(batch)
        value, also = self.value_loss(batch)
        return policy + value, {**told, **also}

    def update(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Take one step on a minibatch, with one optimizer or with one for each network."""
        if len(self.optimizer_names) == 1:
            loss, told = self.minimize(self.combined_loss, [self.actor, self.critic], "optimizer", batch)
        else:
            policy, of_policy = self.minimize(self.policy_loss, self.actor, "actor", batch)
            value, of_value = self.minimize(self.value_loss, self.critic, "critic", batch)
            loss, told = policy + value, {**of_policy, **of_value}
        feedback = {name: told[name] for name in ("ratio", "td_error")}
        return {"loss": loss, **{name: value for name, value in told.items() if name not in feedback}}, feedback

    def stop_epochs(self, logs: dict[str, Any]) -> Any:
        """Return whether the policy has moved too far from the one that acted."""
        return None if self.target_kl is None else logs["approximate_kl"] > 1.5 * self.target_kl

"""Soft actor-critic, for continuous and for discrete actions.

Paper: Haarnoja et al., "Soft actor-critic algorithms and applications" (2018), algorithm 1, with a learned temperature.
For discrete actions: Christodoulou, "Soft actor-critic for discrete action settings" (2019), algorithm 1.

Differs: the logarithm of the temperature is learned, with the gradient of `-log(temperature) (log pi + target)`, as in
the authors' code. Training starts with 1,000 random steps in all tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from gymnasium import spaces

from noterl import heads, losses, networks
from noterl.agent import Agent, AgentOptions, Defaults
from noterl.backends import keras, ops
from noterl.hyperparameters import Hyperparameter
from noterl.networks.critics import action_values, critic_pair, q_values
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import Batch
from noterl.utils.checks import check_number


@register
class SAC(Agent):
    """Stochastic actor and two critics, for Box actions with finite bounds or Discrete ones.

    Box actions are scaled to [-1, 1]: the critics receive scaled actions, and log-probabilities are densities of them.
    The feedback for the memory is the mean of the two absolute errors.

    Args:
        env: see `noterl.Agent`.
        hidden: units of each hidden layer, of actor and critics; with images, of the critics only.
        network: the path of a network file, or your own actor `[B, observation] -> [B, 2 A]`, mean and log standard
            deviation before the tanh, or logits `[B, A]` for Discrete actions; or (actor, critic, critic), or (actor,
            critic) with one file for both critics. Critics are `[B, observation + A] -> [B, 1]`, or `[B, observation]
            -> [B, A]` for Discrete actions. Their initial weights must differ. The agent builds a network that is None.
        gamma: discount factor, 0 to 1. Can be changed during training.
        temperature: weight of the entropy, at least 0; higher makes the policy more random. "auto" learns it. A number
            or schedule sets it, and a number can be changed during training.
        initial_temperature: the initial value of a learned temperature, above 0. For small rewards, such as those of
            `normalize_reward`, use about 0.01. With 1, the entropy outweighs them for tens of thousands of updates.
        target_entropy: the entropy of the policy that a learned temperature maintains. The default is minus the number
            of values in an action, or 0.98 times the maximum entropy for Discrete actions.
        normalize_observation: see `noterl.Agent`.
        normalize_reward: see `noterl.Agent`.
        seed: see `noterl.Agent`.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.SAC("Pendulum-v1", hidden=(32,), seed=7)
    >>> agent.compile(learning_starts=50, batch_size=32)
    >>> history = agent.fit(steps=60, verbose=0)
    >>> agent.updates
    10
    """

    memory = "replay"
    action_spaces: tuple[str, ...] = ("Box", "Discrete")
    optimizer_names: tuple[str, ...] = ("actor", "critic", "temperature")
    gamma: Hyperparameter
    temperature: Hyperparameter

    def __init__(
        self,
        env: Any,
        *,
        hidden: Sequence[int] = (256, 256),
        network: Any = None,
        gamma: float | Schedule = 0.99,
        temperature: float | Schedule | str = "auto",
        initial_temperature: float = 1.0,
        target_entropy: float | None = None,
        **options: Unpack[AgentOptions],
    ) -> None:
        super().__init__(env, **options)
        self.discrete: bool = isinstance(self.action_space, spaces.Discrete)
        size = self.action_size
        head = heads.Categorical() if self.discrete else heads.SquashedGaussian()
        self.head: Any = head.bind(self.action_space)
        self.random_spec: Any = {} if self.discrete else dict.fromkeys(("noise", "next_noise"), ((size,), "normal"))
        space, outputs = self.spaces.network_space, size if self.discrete else 2 * size
        actor, *critics = networks.split_networks(network, "actor", "critic", "critic")
        shape = self.observation_shape
        self.actor: networks.Network = networks.network_or_default(
            actor, hidden, lambda layers: networks.default_network(space, layers, outputs), shape
        )
        build_critic = networks.default_network if self.discrete else networks.default_critic
        inputs = shape if self.discrete else (self.observation_size + size,)
        self.critics: list[networks.Network] = critic_pair(
            critics, hidden, lambda layers: build_critic(space, layers, size), inputs
        )
        self.target_critics: list[networks.Network] = [networks.clone(critic) for critic in self.critics]
        self.gamma = self.hyperparameter("gamma", gamma, minimum=0.0, maximum=1.0)
        log_initial = math.log(check_number("initial_temperature", initial_temperature, low=0, above=True))
        default = 0.98 * math.log(self.action_size) if self.discrete else -float(self.action_size)
        self.target_entropy: Any = default if target_entropy is None else check_number("target_entropy", target_entropy)
        self.learns_temperature: bool = temperature == "auto"
        if self.learns_temperature:
            self.log_temperature: Any = keras.Variable(np.float32(log_initial), name="log_temperature")
        elif isinstance(temperature, str):
            raise ValueError(f"temperature must be 'auto' or a number, got {temperature!r}")
        else:
            self.optimizer_names = ("actor", "critic")
            self.temperature = self.hyperparameter("temperature", temperature, minimum=0.0)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "temperature" and self.__dict__.get("learns_temperature", False):
            raise ValueError(
                f"temperature cannot be set to {value!r}, because it is learned; give it to the constructor"
            )
        super().__setattr__(name, value)

    def defaults(self) -> Defaults:
        """Return the paper's settings (its table 1), and 1,000 random steps."""
        return Defaults(
            learning_rate=3e-4, capacity=1_000_000, batch_size=256, learning_starts=1_000, target_update=0.005
        )

    def forward(self, observation: Any) -> Any:
        """Return mean and log standard deviation before the tanh, `[B, 2 A]`, or logits `[B, A]`."""
        return self.actor(observation)

    def value(self, observation: Any) -> Any:
        """Return the smaller critic's values `[B]` of the mean action; its expectations under a discrete policy."""
        values = self.actor(observation)
        if not self.discrete:
            return ops.minimum(*q_values(self.critics, observation, ops.tanh(values[:, : self.action_size])))
        q = ops.minimum(*(action_values(critic(observation), self.action_size) for critic in self.critics))
        return ops.sum(ops.softmax(values, axis=-1) * q, axis=-1)

    def update(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Update the critics, the actor and the temperature."""
        loss, feedback = self.minimize(self.critic_loss, self.critics, "critic", batch)
        actor_loss, log_probability = self.minimize(self.actor_loss, self.actor, "actor", batch)
        logs = {"loss": loss, "actor_loss": actor_loss, "temperature": self.entropy_weight()}
        if self.learns_temperature:
            legal = (batch.extra["action_mask"],) if "action_mask" in batch.extra else ()
            self.minimize(self.temperature_loss, self.log_temperature, "temperature", log_probability, *legal)
        return logs, feedback

    def critic_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the sum of both critics' mean squared errors, and the mean of the absolute errors `[B]`."""
        next_q, log_probability = self._evaluate(self.target_critics, batch.next_observation, batch, "next_")
        soft_value = next_q - self.entropy_weight() * log_probability  # equation 3
        target = losses.td_target(batch.reward, batch.discount, soft_value)  # [B]
        errors = [q - target for q in self._taken_values(batch)]
        loss = sum(losses.weighted_mean(losses.squared(error), batch.weight) for error in errors)
        return loss, {"td_error": 0.5 * (ops.abs(errors[0]) + ops.abs(errors[1]))}

    def actor_loss(self, batch: Batch) -> tuple[Any, Any]:
        """Return the mean of `temperature * log pi - Q` (equation 7), and the log-probabilities `[B]`."""
        q, log_probability = self._evaluate(self.critics, batch.observation, batch)
        return ops.mean(ops.stop_gradient(self.entropy_weight()) * log_probability - q), ops.stop_gradient(
            log_probability
        )

    def temperature_loss(self, log_probability: Any, mask: Any = None) -> Any:
        """Return the loss that moves the entropy to its target (equation 18).

        With a mask `[B, A]` of n legal actions, the target is `target_entropy * log(n) / log(A)`, which is possible.
        """
        target = self.target_entropy
        if mask is not None:
            legal = ops.sum(ops.cast(mask, "float32"), axis=-1)
            target = target * ops.log(ops.maximum(legal, 1.0)) / math.log(max(self.action_size, 2))
        return -ops.mean(self.log_temperature * (log_probability + target))

    def update_target(self) -> None:
        """Update the target networks."""
        for critic, target in zip(self.critics, self.target_critics, strict=True):
            networks.copy(critic, target)

    def entropy_weight(self) -> Any:
        """Return the temperature as a tensor."""
        return ops.exp(self.log_temperature) if self.learns_temperature else ops.convert_to_tensor(self.temperature)

    def _evaluate(self, critics: Sequence[Any], observation: Any, batch: Batch, prefix: str = "") -> tuple[Any, Any]:
        """Return the minimum of both critics' values of the policy's action, and its log-probability, `[B]` each.

        A continuous action is sampled. For discrete actions, both results are expectations under the policy. `prefix`
        is that of the noise and the mask in `batch.extra`.
        """
        values = self.actor(observation)
        if not self.discrete:
            action, log_probability = self.head.sample(values, batch.extra[f"{prefix}noise"])
            return ops.minimum(*q_values(critics, observation, action)), log_probability
        legal = batch.extra.get(f"{prefix}action_mask")  # None if the environment reports no masks
        log_policy = ops.log_softmax(self.head.masked(values, legal), axis=-1)  # [B, A]
        policy = ops.exp(log_policy)
        q = ops.minimum(*(action_values(critic(observation), self.action_size) for critic in critics))
        return ops.sum(policy * q, axis=-1), ops.sum(policy * log_policy, axis=-1)

    def _taken_values(self, batch: Batch) -> list[Any]:
        """Return each critic's values of the taken actions, `[B]` each."""
        if self.discrete:
            return [losses.take(critic(batch.observation), batch.action) for critic in self.critics]
        return q_values(self.critics, batch.observation, self.head.scale(batch.action))

"""Soft actor-critic, for continuous and for discrete actions.

Paper: Haarnoja et al., "Soft actor-critic algorithms and applications" (2018), algorithm 1, with a learned temperature.
For discrete actions: Christodoulou, "Soft actor-critic for discrete action settings" (2019), algorithm 1.

Differs: the logarithm of the temperature is learned, with the gradient of `-log(temperature) (log pi + target)`, as in
the authors' code. Training starts with 1,000 random steps in all tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Unpack

import numpy as np
from gymnasium import spaces

from noterl import heads, losses, networks
from noterl.agent import Defaults
from noterl.agents.ensemble import CriticEnsemble, EnsembleOptions
from noterl.backends import keras, ops
from noterl.hyperparameters import Hyperparameter
from noterl.networks.critics import action_values, joint
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import Batch
from noterl.utils.checks import check_number


@register
class SAC(CriticEnsemble):
    """Stochastic actor and two or more critics, for Box actions with finite bounds or Discrete ones.

    Box actions are scaled to [-1, 1]: the critics receive scaled actions, and log-probabilities are densities of them.
    The feedback for the memory is the mean of the critics' absolute errors.

    Args:
        env: see `noterl.Agent`.
        hidden: units of each hidden layer, of actor and critics; with images, only of the critics of Box actions.
        network: the path of a network file, or your own actor `[B, observation] -> [B, 2 A]`, mean and log standard
            deviation before the tanh, or logits `[B, A]` for Discrete actions; or (actor, critic, critic), or (actor,
            critic) with one file for all critics. Critics are `[B, observation + A] -> [B, 1]`, or `[B, observation]
            -> [B, A]` for Discrete actions. Their initial weights must differ. The agent builds a network that is None.
        gamma: discount factor, 0 to 1. Can be changed during training.
        temperature: weight of the entropy, at least 0; higher makes the policy more random. "auto" learns it. A number
            or schedule sets it, and a number can be changed during training. The next two arguments need "auto".
        initial_temperature: the initial value of a learned temperature, above 0. For small rewards, such as with
            `normalize_reward`, use about 0.01. With 1, entropy outweighs the rewards for tens of thousands of updates.
        target_entropy: the entropy of the policy that a learned temperature maintains. The default is minus the number
            of values in an action, or 0.98 times the maximum entropy for Discrete actions.
        recurrent: "gru", "lstm" or a function `inputs -> cell` for networks with a memory; see `DQN`.
        recurrent_units: the number of outputs of each cell.
        sequence_length: steps of each sequence through which gradients flow; by default 32.
        burn_in: steps before these that only compute the state of the memories; critics start from zeros.
        policy_delay: number of critic updates for each update of actor and temperature.
        critics: the number of critics.
        critics_in_target: the number of random critics whose minimum a target takes; by default all. With fewer, the
            actor maximizes the mean of all critics; otherwise their minimum.
        critic_hidden: units of each hidden layer of the critics; by default as in `hidden`, with the same exception.
        layer_norm: whether the hidden layers of the critics normalize their values. With images and Discrete actions,
            `layer_norm` and `dropout` are for the 512 units after the convolutions, and are refused with `recurrent`.
        dropout: the share of the critics' hidden values that is 0 in each update; not in targets.
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

    action_spaces: tuple[str, ...] = ("Box", "Discrete")
    optimizer_names: tuple[str, ...] = ("actor", "critic", "temperature")
    gamma: Hyperparameter
    temperature: Hyperparameter
    critic_outputs: int = 1  # for each action; TQC has more

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
        recurrent: str | Callable[[int], Any] | None = None,
        recurrent_units: int = 64,
        sequence_length: int | None = None,
        burn_in: int = 0,
        policy_delay: int = 1,
        **options: Unpack[EnsembleOptions],
    ) -> None:
        super().__init__(env, policy_delay=policy_delay, **options)
        self.discrete: bool = isinstance(self.action_space, spaces.Discrete)
        size = self.action_size
        self.head: Any = (heads.Categorical() if self.discrete else heads.SquashedGaussian()).bind(self.action_space)
        noise = () if self.discrete else ("noise", "next_noise")
        self.random_spec: Any = {**dict.fromkeys(noise, ((size,), "normal")), **self.choice_spec}
        space, outputs = self.spaces.network_space, size if self.discrete else 2 * size
        actor, *critics = networks.split_networks(network, "actor", *["critic"] * self.num_critics)
        networks.check_memory(recurrent, network, sequence_length=sequence_length, burn_in=burn_in or None)
        self.sequence_length: int | None = sequence_length
        self.burn_in: int = burn_in

        def build(layers: Any, outputs: int, actions: int = 0, **norm: Any) -> networks.Network:
            if recurrent is not None:
                sizes = recurrent_units, layers, outputs
                return networks.recurrent_network(space, recurrent, *sizes, actions=actions, **norm)
            if actions:
                return self.finished(networks.default_critic(space, layers, actions, outputs=outputs, **norm))
            return self.finished(networks.default_network(space, layers, outputs, **norm))

        shape = self.observation_shape
        self.actor = networks.network_or_default(actor, hidden, lambda layers: build(layers, outputs), shape)
        self.state_spec: Any = self.actor.state_spec if recurrent is not None else {}
        inputs = shape if self.discrete else (self.observation_size + size,)
        sizes = (size,) if self.discrete else (self.critic_outputs, size)
        self.build_ensemble(critics, hidden, lambda layers: build(layers, *sizes, **self.critic_norm), inputs)
        self.gamma = self.hyperparameter("gamma", gamma, minimum=0.0, maximum=1.0)
        log_initial = math.log(check_number("initial_temperature", initial_temperature, low=0, above=True))
        default = 0.98 * math.log(self.action_size) if self.discrete else -float(self.action_size)
        self.target_entropy: Any = default if target_entropy is None else check_number("target_entropy", target_entropy)
        self.learns_temperature: bool = temperature == "auto"
        if self.learns_temperature:
            self.log_temperature: Any = keras.Variable(np.float32(log_initial), name="log_temperature")
        elif isinstance(temperature, str) or (initial_temperature, target_entropy) != (1.0, None):
            # Only a learned temperature has an initial value and a target.
            condition = "or a number without initial_temperature= and target_entropy="
            raise ValueError(f"temperature must be 'auto', {condition}, got {temperature!r}")
        else:
            self.optimizer_names = ("actor", "critic")
            self.temperature = self.hyperparameter("temperature", temperature, minimum=0.0)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "temperature" and self.__dict__.get("learns_temperature", False):
            raise ValueError(f"temperature cannot be {value!r}, because it is learned; give it to the constructor")
        super().__setattr__(name, value)

    def defaults(self) -> Defaults:
        """Return the paper's settings (its table 1), and 1,000 random steps."""
        defaults = Defaults(learning_rate=3e-4, capacity=1_000_000, batch_size=256, target_update=0.005)
        # With a memory, a batch has four times the rows.
        return defaults._replace(update_every=4) if self.state_spec else defaults

    def forward(self, observation: Any, *state: Any) -> Any:
        """Return the input of the head, `[B, 2 A]` or logits `[B, A]`; with a memory, also the next state."""
        return self.actor(observation, *state)

    def value(self, observation: Any) -> Any:
        """Return what the actor maximizes, `[B]`, for the mean action; its expectations under a discrete policy."""
        values = self.actor(observation)
        if not self.discrete:
            inputs = joint(observation, ops.tanh(values[:, : self.action_size]))
            return self.value_for_actor([self.critic_values(critic(inputs)) for critic in self.critics])
        q = self.value_for_actor([action_values(critic(observation), self.action_size) for critic in self.critics])
        return ops.sum(ops.softmax(values, axis=-1) * q, axis=-1)

    def update(self, batch: Batch, index: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
        """Update the critics; the last of each `policy_delay` updates also updates the actor and the temperature."""
        loss, feedback = self.minimize(self.critic_loss, self.critics, "critic", batch)
        if index < self.update_period - 1:
            return {"loss": loss}, feedback
        actor_loss, log_probability = self.minimize(self.actor_loss, self.actor, "actor", batch)
        logs = {"loss": loss, "actor_loss": actor_loss, "temperature": self.entropy_weight()}
        if self.learns_temperature:
            self.minimize(self.temperature_loss, self.log_temperature, "temperature", log_probability, batch)
        return logs, feedback

    def critic_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the sum of the critics' mean squared errors, and the mean of the absolute errors `[B]`."""
        combine = partial(self.target_value, batch=batch)
        next_q, log_probability = self._evaluate(self.target_critics, combine, batch, "next_")
        # equation 3
        soft_value = ops.reshape(next_q - self.entropy_weight() * log_probability, batch.reward.shape)
        # Without sequences, the memory has summed the rewards of several steps.
        steps = (batch.extra["continues"], self.replay.n_step) if self.state_spec else (None, 1)
        target = losses.n_step_target(batch.reward, batch.discount, soft_value, *steps)
        errors = [ops.reshape(q, batch.reward.shape) - target for q in self.taken_values(self.critics, batch)]
        return self.squared_loss(errors, batch)

    def actor_loss(self, batch: Batch) -> tuple[Any, Any]:
        """Return the mean of `temperature * log pi - Q` (equation 7), and the log-probabilities `[B]`."""
        q, log_probability = self._evaluate(self.critics, self.value_for_actor, batch)
        objective = ops.stop_gradient(self.entropy_weight()) * log_probability - q
        return self.mean_over_rows(objective, batch), ops.stop_gradient(log_probability)

    def temperature_loss(self, log_probability: Any, batch: Batch) -> Any:
        """Return the loss that moves the entropy to its target (equation 18).

        With a mask `[B, A]` of n legal actions, the target is `target_entropy * log(n) / log(A)`, which is possible.
        """
        target = self.target_entropy
        if "action_mask" in batch.extra:
            legal = ops.sum(ops.cast(batch.extra["action_mask"], "float32"), axis=-1)
            target = target * ops.log(ops.maximum(ops.reshape(legal, (-1,)), 1.0)) / math.log(max(self.action_size, 2))
        return -self.mean_over_rows(self.log_temperature * (log_probability + target), batch)

    def entropy_weight(self) -> Any:
        """Return the temperature as a tensor."""
        return ops.exp(self.log_temperature) if self.learns_temperature else ops.convert_to_tensor(self.temperature)

    def _evaluate(self, critics: Sequence[Any], combine: Any, batch: Batch, prefix: str = "") -> tuple[Any, Any]:
        """Return the combined values of the policy's action by the critics, and its log-probability, `[B]` each.

        For discrete actions, both are expectations under the policy. The prefix "next_" selects the next observations.
        """
        features, layers = self.features(self.actor, batch, prefix)
        values = layers(features)
        if not self.discrete:
            noise = ops.reshape(batch.extra[f"{prefix}noise"], (-1, self.action_size))
            action, log_probability = self.head.sample(values, noise)
            return combine([self._q(critic, batch, prefix, action) for critic in critics]), log_probability
        legal = batch.extra.get(f"{prefix}action_mask")  # None if the environment reports no masks
        legal = legal if legal is None else ops.reshape(legal, (-1, self.action_size))
        log_policy = ops.log_softmax(self.head.masked(values, legal), axis=-1)  # [B, A]
        policy = ops.exp(log_policy)
        q = combine([self._q(critic, batch, prefix) for critic in critics])
        return ops.sum(policy * q, axis=-1), ops.sum(policy * log_policy, axis=-1)

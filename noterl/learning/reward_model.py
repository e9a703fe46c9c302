"""Generative adversarial imitation learning: a reward that is learned from demonstrations, for any agent.

Paper: Ho and Ermon, "Generative adversarial imitation learning" (2016), algorithm 1. Off-policy agents, and the
gradient penalty: Kostrikov et al., "Discriminator-actor-critic" (2019). Rewards: Orsini et al., "What matters for
adversarial imitation learning?" (2021), section 2.

Differs: D is the probability that a pair is the expert's; in Ho and Ermon, the policy's. Each gradient
update of the agent first trains the discriminator, on the same batch and as many pairs of the demonstrations. If an
agent learns from rollouts, the rewards come from the discriminator before the rollout's updates. Absorbing states
are not added: `reward` selects the sign of the reward instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from noterl import heads, losses, networks
from noterl.backends import keras, ops
from noterl.learning import optimizers
from noterl.learning.expert_data import ExpertData, check_demonstrations
from noterl.networks.initializers import glorot_uniform
from noterl.random import Generators
from noterl.registry import Configurable, register
from noterl.types import ActionData, Batch
from noterl.utils.checks import check_int, check_number, check_word, non_negative

if TYPE_CHECKING:
    from noterl.algorithm import Algorithm

Tensor = Any

# Fields of `Batch.extra` with a row of the demonstrations for each row of the batch.
OBSERVATION = "demonstration/observation"
ACTION = "demonstration/action"
MIX = "demonstration/mix"

# Standardized inputs are clipped to this, as by `noterl.normalization`.
CLIP = 10.0

_REWARDS: dict[str, Callable[[Tensor], Tensor]] = {
    "positive": lambda logit: ops.softplus(logit),
    "negative": lambda logit: -ops.softplus(-logit),
    "logit": lambda logit: logit,
}


@register
class GAIL(Configurable):
    """A reward model for `compile(reward_model=...)`: rewards actions that a discriminator takes for the expert's.

    The discriminator is a multi-layer perceptron with tanh. The inputs are the observation and the action. Box
    observations are standardized by the mean and standard deviation of the demonstrations, unless the agent normalizes
    observations; images are flattened. Box actions are clipped to the bounds and scaled to [-1, 1]; others are one-hot.

    The reward is `weight` times the model's plus `environment_weight` times the environment's. Replay memories need
    `n_step=1`.

    Args:
        demonstrations: the expert's episodes, `noterl.imitation.Demonstrations`.
        hidden: units of each hidden layer.
        optimizer: of the discriminator: a Keras optimizer, or a learning rate; Adam with 3e-4 by default.
        gradient_penalty: weight of the mean of `(|gradient of the logit| - 1)^2` at random points between the batch and
            the demonstrations. The penalty keeps the discriminator smooth.
        reward: "positive" for `-log(1 - D)`, which favors long episodes; "negative" for `log D`, which favors short
            ones; "logit" for the difference of the two, `log(D / (1 - D))`.
        weight: factor of this reward.
        environment_weight: factor of the environment's reward, which is normalized before if the agent has
            `normalize_reward=True`.

    Raises:
        ValueError: if an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> from noterl.imitation import GAIL
    >>> expert = noterl.DQN("CartPole-v1", seed=1)
    >>> agent = noterl.PPO("CartPole-v1", hidden=(8,), rollout_steps=16, epochs=1, seed=2)
    >>> agent.compile(reward_model=GAIL(noterl.Dataset.record(expert, episodes=2)))
    >>> history = agent.fit(steps=32, verbose=0)
    >>> "discriminator_loss" in agent.metric_names
    True
    """

    read_by_losses = True  # see `noterl.backends.reads`

    def __init__(
        self,
        demonstrations: ActionData,
        *,
        hidden: Sequence[int] = (64, 64),
        optimizer: Any = None,
        gradient_penalty: float = 10.0,
        reward: str = "positive",
        weight: float = 1.0,
        environment_weight: float = 0.0,
    ) -> None:
        self.demonstrations: ActionData = check_demonstrations(demonstrations)
        if isinstance(hidden, str) or not isinstance(hidden, Sequence):
            raise ValueError(f"hidden must be a sequence of positive ints, such as (64, 64), got {hidden!r}")
        self.hidden: tuple[int, ...] = tuple(check_int("hidden", units) for units in hidden)
        optimizers.resolve(optimizer, ("discriminator",), 3e-4)  # only to check it
        self.optimizer = optimizer
        self.gradient_penalty: float = non_negative("gradient_penalty", gradient_penalty)
        self.reward: str = check_word("reward", reward, tuple(_REWARDS))
        self.weight: float = check_number("weight", weight)
        self.environment_weight: float = check_number("environment_weight", environment_weight)


class Discriminator:
    """The discriminator of one agent, and the reward; `Settings.make_learner` makes a new one for each learner.

    Args:
        settings: the reward model.
        algorithm: the agent.

    Attributes:
        settings: the reward model.
        variables: kernel and bias of each layer.
        optimizer: trains these variables.

    Raises:
        ValueError: if the demonstrations do not fit the agent.
    """

    metric_names: frozenset[str] = frozenset(
        {"discriminator_loss", "discriminator_accuracy", "gradient_penalty", "model_reward"}
    )

    def __init__(self, settings: GAIL, algorithm: Algorithm) -> None:
        self.settings: GAIL = settings
        self._generators = algorithm.generators
        self._data = ExpertData(algorithm, settings.demonstrations)
        self._action_inputs, actions = _action_encoder(algorithm.action_space)
        self._scale, self._shift = self._input_scale(algorithm)
        generator = Generators(algorithm.generators.seed)("discriminator")
        weights: list[np.ndarray] = []  # kernels and biases: Glorot's uniform distribution, and zeros
        for inputs, outputs in itertools.pairwise((len(self._scale) + actions, *settings.hidden, 1)):
            weights += [glorot_uniform((inputs, outputs), generator), np.zeros(outputs, np.float32)]
        self.variables: list[Any] = [
            keras.Variable(weight, name=f"discriminator_{k}") for k, weight in enumerate(weights)
        ]
        (optimizer,) = optimizers.resolve(settings.optimizer, ("discriminator",), 3e-4).values()
        self._deferred = optimizers.DeferredOptimizer(optimizer, self.variables)
        self.optimizer: Any = self._deferred.optimizer

    def _input_scale(self, algorithm: Algorithm) -> tuple[np.ndarray, np.ndarray]:
        """Return what the values `[D]` of an observation are multiplied with, and what is then added."""
        scale = networks.column_scales(algorithm.spaces.network_space)
        shift = np.zeros(scale.shape)
        normalized = algorithm.spaces.normalizes_observation
        if isinstance(algorithm.observation_space, spaces.Box) and not normalized and (scale == 1).all():
            values = self._data.observation.reshape(len(self._data), -1).astype(np.float64)
            mean = values.mean(axis=0)
            deviation = values.std(axis=0)
            # A column that is constant in the demonstrations is only shifted.
            scale = 1 / np.where(deviation > 1e-6, deviation, 1.0)
            shift = -mean * scale
        return scale.astype(np.float32), shift.astype(np.float32)

    def build(self) -> None:
        """Allocate the slots of the optimizer."""
        self._deferred.build({})

    def all_variables(self) -> list[Any]:
        """Return the variables of the network and of the optimizer."""
        return [*self.variables, *optimizers.variables(self.optimizer)]

    # Data

    def add_demonstrations(self, batch: Batch, count: int) -> Batch:
        """Return batches `[K, B, ...]` with a random row of the demonstrations for each row, in `extra`.

        Args:
            batch: K batches, or a rollout `[T, N, ...]`.
            count: how many batches are used; the others receive the first row.
        """
        shape = batch.reward.shape
        indices = np.zeros(shape, np.int64)
        mix = np.zeros(shape, np.float32)
        used = (count, *shape[1:])
        indices[:count] = self._data.sample_indices(used, self._generators("demonstrations"))
        mix[:count] = self._generators("demonstrations/mix").random(used, np.float32)
        observation, action = self._data.gather(indices)
        return batch._replace(extra={**batch.extra, OBSERVATION: observation, ACTION: action, MIX: mix})

    def inputs(self, observation: Tensor, action: Tensor) -> Tensor:
        """Return the inputs `[B, D + A]` of the discriminator."""
        flat = ops.reshape(ops.cast(observation, "float32"), (-1, len(self._scale)))
        standardized = ops.clip(ops.add(ops.multiply(flat, self._scale), self._shift), -CLIP, CLIP)
        return ops.concatenate([standardized, self._action_inputs(action)], axis=-1)

    # The network

    def logit(self, inputs: Tensor) -> Tensor:
        """Return log(D / (1 - D)), `[B]`, for inputs `[B, D + A]`."""
        return self._hidden_and_logit(inputs)[1]

    def _hidden_and_logit(self, inputs: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the outputs of each hidden layer, `[B, units]`, and the logit `[B]`."""
        outputs = inputs
        hidden = []
        for kernel, bias in self._layers[:-1]:
            outputs = ops.tanh(ops.matmul(outputs, kernel) + bias)
            hidden.append(outputs)
        kernel, bias = self._layers[-1]
        return hidden, (ops.matmul(outputs, kernel) + bias)[:, 0]

    def slope(self, inputs: Tensor) -> Tensor:
        """Return the norm `[B]` of the gradient of the logit with respect to the inputs `[B, D + A]`.

        The norm is written as a formula, so that a gradient of the norm needs no second derivative of a framework.
        """
        hidden, _ = self._hidden_and_logit(inputs)
        gradient = ops.ones_like(inputs[:, :1])
        for (kernel, _), outputs in zip(self._layers[:0:-1], reversed(hidden), strict=True):
            gradient = ops.matmul(gradient, ops.transpose(kernel)) * (1.0 - ops.square(outputs))
        gradient = ops.matmul(gradient, ops.transpose(self._layers[0][0]))
        # 1e-12, because the gradient of a square root at 0 is infinite.
        return ops.sqrt(ops.sum(ops.square(gradient), axis=-1) + 1e-12)

    @property
    def _layers(self) -> list[tuple[Tensor, Tensor]]:
        tensors = [ops.convert_to_tensor(variable) for variable in self.variables]
        return list(zip(tensors[::2], tensors[1::2], strict=True))

    # Learning

    def loss(self, expert: Tensor, policy: Tensor, mix: Tensor, weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the discriminator, and the metrics.

        Args:
            expert: inputs of demonstrated pairs, `[B, D + A]`.
            policy: inputs of the agent's pairs, `[B, D + A]`.
            mix: numbers in [0, 1), `[B]`: the share of the expert in the points of the gradient penalty.
            weight: of the agent's pairs, `[B]`.
        """
        ours = self.logit(policy)
        theirs = self.logit(expert)
        # softplus(-logit) is -log(D), and softplus(logit) is -log(1 - D).
        loss = ops.mean(ops.softplus(-theirs)) + losses.masked_mean(ops.softplus(ours), weight)
        right = ops.mean(ops.cast(theirs > 0, "float32")) + losses.masked_mean(ops.cast(ours <= 0, "float32"), weight)
        metrics = {"discriminator_loss": loss, "discriminator_accuracy": 0.5 * right}
        if not self.settings.gradient_penalty:
            return loss, {**metrics, "gradient_penalty": ops.zeros_like(loss)}
        # The penalty holds at random points on the lines between demonstrations and the agent's pairs.
        share = ops.expand_dims(mix, -1)
        points = share * expert + (1.0 - share) * policy
        penalty = losses.masked_mean(ops.square(self.slope(points) - 1.0), weight)
        return loss + self.settings.gradient_penalty * penalty, {**metrics, "gradient_penalty": penalty}

    def train(self, batch: Batch, minimize: Callable[..., Any]) -> tuple[Batch, dict[str, Tensor]]:
        """Train on a batch `[B, ...]` with demonstrations; return the batch without demonstrations, and the metrics.

        Args:
            batch: tensors; `add_demonstrations` has added the demonstrations and the mix to `extra`.
            minimize: `minimize(loss_fn, variables, optimizer, args) -> (loss, aux)`; see `Updater.apply_gradients`.
        """
        extra = dict(batch.extra)
        demonstrated = (extra.pop(OBSERVATION), extra.pop(ACTION))
        mix = extra.pop(MIX)
        expert = self.inputs(*demonstrated)
        policy = self.inputs(batch.observation, batch.action)
        _, metrics = minimize(self.loss, self.variables, self.optimizer, (expert, policy, mix, batch.weight))
        reward = losses.masked_mean(self.reward(batch.observation, batch.action), batch.weight)
        return batch._replace(extra=extra), {**metrics, "model_reward": reward}

    def reward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Return the model's reward `[B]` for pairs `[B, ...]`, without a gradient and without the factor `weight`."""
        return ops.stop_gradient(_REWARDS[self.settings.reward](self.logit(self.inputs(observation, action))))

    def replace_reward(self, batch: Batch) -> Batch:
        """Return a batch `[B, ...]` or `[T, N, ...]` with the weighted sum of both rewards."""
        settings = self.settings
        reward_of = self.reward if len(batch.reward.shape) == 1 else partial(losses.map_rows, self.reward)
        reward = settings.weight * reward_of(batch.observation, batch.action)
        if settings.environment_weight:
            reward = reward + settings.environment_weight * batch.reward
        return batch._replace(reward=reward)

    # State

    def get_state(self, *, allocate: bool = True) -> dict[str, Any]:
        """Return weights and optimizer state; `optimizers.DeferredOptimizer` documents `allocate`."""
        weights = [weight for variable in self.variables for weight in networks.get_weights(variable)]
        return {"variables": weights, "optimizer": self._deferred.get_state({}, allocate=allocate)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned; check the state first by `schema` and `check_state`."""
        self._deferred.set_state(state["optimizer"], {})
        for variable, weight in zip(self.variables, state["variables"], strict=True):
            networks.set_weights(variable, [weight])

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise a ValueError if the optimizer's part of a state does not fit."""
        self._deferred.check_state(state["optimizer"], {})


def _action_encoder(space: spaces.Space[Any]) -> tuple[Callable[[Tensor], Tensor], int]:
    """Return a function from actions `[B, ...]` to inputs `[B, A]` of the reward model's networks, and A."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        head: Any = heads.Categorical().bind(space)
        return head.one_hot, sum(head.counts)
    size = math.prod(space.shape or ())
    if not isinstance(space, spaces.Box):
        return lambda action: ops.reshape(ops.cast(action, "float32"), (-1, size)), size
    low, high = (np.asarray(side, np.float32).reshape(-1) for side in (space.low, space.high))
    head = heads.Deterministic().bind(space) if space.is_bounded() else None

    def encode(action: Tensor) -> Tensor:
        flat = ops.reshape(ops.cast(action, "float32"), (-1, size))
        # As the environment executes actions, so that differences beyond the bounds do not count.
        executed = ops.minimum(ops.maximum(flat, low), high)
        return executed if head is None else head.scale(executed)

    return encode, size

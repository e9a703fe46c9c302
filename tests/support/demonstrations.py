"""Small demonstrations, and a float64 NumPy reference of the discriminator of GAIL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.imitation import Demonstrations

OBSERVATIONS = spaces.Box(-9.0, 9.0, (3,), np.float32)
DISCRETE = spaces.Discrete(2)
CONTINUOUS = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))


def demonstrations(
    action_space: Any = DISCRETE, lengths: Sequence[int] = (4, 6), observation_space: Any = OBSERVATIONS, seed: int = 0
) -> Demonstrations:
    """Return episodes of random observations and actions; the last one is truncated."""
    rng = np.random.default_rng(seed)
    observation_space.seed(seed)
    action_space.seed(seed)

    def sampled(space: Any, count: int) -> Any:
        if isinstance(space, spaces.Dict):
            return {name: sampled(part, count) for name, part in space.spaces.items()}
        return np.stack([space.sample() for _ in range(count)])

    return Demonstrations(
        [sampled(observation_space, length + 1) for length in lengths],
        [sampled(action_space, length) for length in lengths],
        [rng.normal(size=length) for length in lengths],
        [index < len(lengths) - 1 for index in range(len(lengths))],
        observation_space=observation_space,
        action_space=action_space,
    )


class ReferenceDiscriminator:
    """The discriminator in float64, with the gradients of finite differences.

    Args:
        weights: kernel and bias of each layer.
        expert: the demonstrations, for the statistics of observations.
        penalty: weight of the gradient penalty.
    """

    def __init__(self, weights: Sequence[np.ndarray], expert: Demonstrations, penalty: float) -> None:
        self.weights = [np.array(weight, np.float64) for weight in weights]
        self.observations, self.actions = expert.pairs()
        self.space, self.penalty = expert.action_space, penalty
        observations = self.observations.astype(np.float64)
        self.mean, self.deviation = observations.mean(axis=0), observations.std(axis=0)

    def inputs(self, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        standardized = np.clip((observation.astype(np.float64) - self.mean) / self.deviation, -10, 10)
        if isinstance(self.space, spaces.Discrete):
            columns = np.eye(self.space.n)[action.astype(np.int64)]
        else:
            low, high = self.space.low.astype(np.float64), self.space.high.astype(np.float64)
            columns = 2 * (np.clip(action, low, high) - low) / (high - low) - 1
        return np.concatenate([standardized, columns], axis=-1)

    def logit(self, inputs: np.ndarray) -> np.ndarray:
        *layers, last = zip(self.weights[::2], self.weights[1::2], strict=True)
        for kernel, bias in layers:
            inputs = np.tanh(inputs @ kernel + bias)
        return (inputs @ last[0] + last[1])[:, 0]

    def slope(self, inputs: np.ndarray, step: float = 1e-6) -> np.ndarray:
        """Return the norm of the gradient of the logit by its inputs, by finite differences."""
        moves = step * np.eye(inputs.shape[1])
        slopes = [(self.logit(inputs + move) - self.logit(inputs - move)) / (2 * step) for move in moves]
        return np.sqrt(np.sum(np.square(slopes), axis=0))

    def metrics(self, expert: np.ndarray, policy: np.ndarray, mix: np.ndarray, weight: np.ndarray) -> dict[str, float]:
        theirs, ours = self.logit(expert), self.logit(policy)
        points = mix[:, None] * expert + (1 - mix[:, None]) * policy
        total = weight.sum()
        return {
            "discriminator_loss": np.logaddexp(0, -theirs).mean() + (weight * np.logaddexp(0, ours)).sum() / total,
            "discriminator_accuracy": 0.5 * ((theirs > 0).mean() + (weight * (ours <= 0)).sum() / total),
            "gradient_penalty": (weight * np.square(self.slope(points) - 1)).sum() / total,
        }

    def loss(self, *arguments: np.ndarray) -> float:
        found = self.metrics(*arguments)
        return found["discriminator_loss"] + self.penalty * found["gradient_penalty"]

    def descend(self, rate: float, *arguments: np.ndarray) -> None:
        """Make one step of gradient descent."""
        gradients, step = [], 1e-5
        for weight in self.weights:
            gradient = np.zeros_like(weight)
            for place in np.ndindex(weight.shape):
                value = weight[place]
                weight[place] = value + step
                above = self.loss(*arguments)
                weight[place] = value - step
                gradient[place] = (above - self.loss(*arguments)) / (2 * step)
                weight[place] = value
            gradients.append(gradient)
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight -= rate * gradient

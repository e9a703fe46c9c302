"""A simple, slow DQN in NumPy and float64: the reference for updates on every backend.

It shares no code with noterl. Gradients are written layer by layer, and the convolution is a loop over the pixels of
its output; `tests/integration/test_parity.py` checks the gradients against finite differences.

A network is a `Sequential` or a `Dueling` of the layers below. Weights are lists of float64 arrays in Keras's layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Array = np.ndarray


class Dense:
    """`x @ kernel + bias`; x `[B, I]`, kernel `[I, O]`."""

    count = 2

    def forward(self, x: Array, weights: list[Array]) -> Array:
        self.x = x
        return x @ weights[0] + weights[1]

    def backward(self, dy: Array, weights: list[Array]) -> tuple[Array, list[Array]]:
        return dy @ weights[0].T, [self.x.T @ dy, dy.sum(axis=0)]


class Convolution:
    """A valid convolution of images `[B, H, W, C]` with a kernel `[S, S, C, F]`."""

    count = 2

    def __init__(self, stride: int) -> None:
        self.stride = stride

    def _pixels(self, x: Array, kernel: Array):
        size = kernel.shape[0]
        for row in range((x.shape[1] - size) // self.stride + 1):
            for column in range((x.shape[2] - size) // self.stride + 1):
                top, left = row * self.stride, column * self.stride
                yield row, column, (slice(None), slice(top, top + size), slice(left, left + size))

    def forward(self, x: Array, weights: list[Array]) -> Array:
        self.x = x
        kernel, bias = weights
        rows, columns = ((length - kernel.shape[0]) // self.stride + 1 for length in x.shape[1:3])
        y = np.zeros((len(x), rows, columns, kernel.shape[3]))
        for row, column, window in self._pixels(x, kernel):
            y[:, row, column] = np.tensordot(x[window], kernel, axes=3) + bias
        return y

    def backward(self, dy: Array, weights: list[Array]) -> tuple[Array, list[Array]]:
        kernel, bias = weights
        dx, dkernel, dbias = np.zeros_like(self.x), np.zeros_like(kernel), np.zeros_like(bias)
        for row, column, window in self._pixels(self.x, kernel):
            pixel = dy[:, row, column]  # [B, F]
            dkernel += np.tensordot(self.x[window], pixel, axes=(0, 0))
            dbias += pixel.sum(axis=0)
            dx[window] += np.tensordot(pixel, kernel, axes=(1, 3))
        return dx, [dkernel, dbias]


class Relu:
    count = 0

    def forward(self, x: Array, weights: list[Array]) -> Array:
        self.positive = x > 0
        return np.where(self.positive, x, 0.0)

    def backward(self, dy: Array, weights: list[Array]) -> tuple[Array, list[Array]]:
        return np.where(self.positive, dy, 0.0), []


class Flatten:
    count = 0

    def forward(self, x: Array, weights: list[Array]) -> Array:
        self.shape = x.shape
        return x.reshape(len(x), -1)

    def backward(self, dy: Array, weights: list[Array]) -> tuple[Array, list[Array]]:
        return dy.reshape(self.shape), []


class Scale:
    count = 0

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def forward(self, x: Array, weights: list[Array]) -> Array:
        return x * self.factor

    def backward(self, dy: Array, weights: list[Array]) -> tuple[Array, list[Array]]:
        return dy * self.factor, []


class Sequential:
    def __init__(self, *layers: object) -> None:
        self.layers = layers
        self.count = sum(layer.count for layer in layers)

    def _with_weights(self, weights: list[Array]):
        start = 0
        for layer in self.layers:
            yield layer, weights[start : start + layer.count]
            start += layer.count

    def forward(self, x: Array, weights: list[Array]) -> Array:
        for layer, own in self._with_weights(weights):
            x = layer.forward(x, own)
        return x

    def backward(self, dy: Array, weights: list[Array]) -> tuple[Array, list[Array]]:
        gradients: list[Array] = []
        for layer, own in reversed(list(self._with_weights(weights))):
            dy, found = layer.backward(dy, own)
            gradients = found + gradients
        return dy, gradients


class Dueling:
    """value + advantage - mean(advantage), over a shared trunk; weights in this order: trunk, value, advantage."""

    def __init__(self, trunk: Sequential, value: Sequential, advantage: Sequential) -> None:
        self.trunk, self.value, self.advantage = trunk, value, advantage
        self.count = trunk.count + value.count + advantage.count

    def _split(self, weights: list[Array]) -> tuple[list[Array], list[Array], list[Array]]:
        first, second = self.trunk.count, self.trunk.count + self.value.count
        return weights[:first], weights[first:second], weights[second:]

    def forward(self, x: Array, weights: list[Array]) -> Array:
        trunk, value, advantage = self._split(weights)
        features = self.trunk.forward(x, trunk)
        advantages = self.advantage.forward(features, advantage)
        return self.value.forward(features, value) + advantages - advantages.mean(axis=1, keepdims=True)

    def backward(self, dy: Array, weights: list[Array]) -> tuple[Array, list[Array]]:
        trunk, value, advantage = self._split(weights)
        from_value, value_gradients = self.value.backward(dy.sum(axis=1, keepdims=True), value)
        centered = dy - dy.mean(axis=1, keepdims=True)
        from_advantage, advantage_gradients = self.advantage.backward(centered, advantage)
        dx, trunk_gradients = self.trunk.backward(from_value + from_advantage, trunk)
        return dx, trunk_gradients + value_gradients + advantage_gradients


def mlp(hidden: Sequence[int]) -> Sequential:
    layers: list[object] = []
    for _ in hidden:
        layers += [Dense(), Relu()]
    return Sequential(*layers, Dense())


def dueling_mlp(hidden: Sequence[int]) -> Dueling:
    trunk: list[object] = []
    for _ in hidden[:-1]:
        trunk += [Dense(), Relu()]
    return Dueling(Sequential(*trunk), Sequential(Dense(), Relu(), Dense()), Sequential(Dense(), Relu(), Dense()))


def nature_cnn(dueling: bool) -> Sequential | Dueling:
    convolutions = [Scale(1 / 255)]
    for stride in (4, 2, 1):
        convolutions += [Convolution(stride), Relu()]
    convolutions.append(Flatten())
    if dueling:
        streams = [Sequential(Dense(), Relu(), Dense()) for _ in range(2)]
        return Dueling(Sequential(*convolutions), *streams)
    return Sequential(*convolutions, Dense(), Relu(), Dense())


class Adam:
    """Kingma and Ba (2015). As in Keras, epsilon is added before the bias correction ("epsilon hat")."""

    def __init__(
        self,
        learning_rate: float = 1e-3,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        weight_decay: float = 0.0,
    ) -> None:
        self.learning_rate, self.beta_1, self.beta_2, self.epsilon = learning_rate, beta_1, beta_2, epsilon
        self.weight_decay, self.iterations = weight_decay, 0
        self.momentums: list[Array] = []
        self.velocities: list[Array] = []

    def apply(self, weights: list[Array], gradients: list[Array]) -> list[Array]:
        if not self.momentums:
            self.momentums = [np.zeros_like(weight) for weight in weights]
            self.velocities = [np.zeros_like(weight) for weight in weights]
        self.iterations += 1
        correction = np.sqrt(1 - self.beta_2**self.iterations) / (1 - self.beta_1**self.iterations)
        new = []
        for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            self.momentums[i] = self.beta_1 * self.momentums[i] + (1 - self.beta_1) * gradient
            self.velocities[i] = self.beta_2 * self.velocities[i] + (1 - self.beta_2) * gradient**2
            weight = weight - self.learning_rate * self.weight_decay * weight
            step = self.learning_rate * correction * self.momentums[i] / (np.sqrt(self.velocities[i]) + self.epsilon)
            new.append(weight - step)
        return new


class DQN:
    """Mnih et al. (2015), with `double` as in van Hasselt et al. (2016).

    Args:
        network: a network of this module.
        weights: weights of the online network.
        target: weights of the target network.
        optimizer: object with `apply(weights, gradients) -> weights`.
        double: whether the online network chooses the next action.
        loss: "huber" or "squared".
    """

    def __init__(self, network, weights, target, optimizer, *, double: bool, loss: str = "huber") -> None:
        self.network, self.optimizer, self.double, self.loss = network, optimizer, double, loss
        self.weights = [np.array(weight, np.float64) for weight in weights]
        self.target = [np.array(weight, np.float64) for weight in target]

    def td_errors(self, batch) -> Array:
        """Return `q(s, a) - (r + discount * q_target(s', a*))`, one for each row `[B]`."""
        observation, next_observation = (
            np.asarray(value, np.float64) for value in (batch.observation, batch.next_observation)
        )
        next_q = self.network.forward(next_observation, self.target)
        chooser = self.network.forward(next_observation, self.weights) if self.double else next_q
        q = self.network.forward(observation, self.weights)  # last, because `gradients` differentiates this pass
        errors = np.zeros(len(q))
        for row in range(len(q)):
            best = next_q[row, np.argmax(chooser[row])]
            target = float(batch.reward[row]) + float(batch.discount[row]) * best
            errors[row] = q[row, batch.action[row]] - target
        return errors

    def value(self, batch) -> float:
        """Return the weighted mean loss."""
        total = 0.0
        for error, weight in zip(self.td_errors(batch), batch.weight, strict=True):
            small = self.loss == "squared" or abs(error) <= 1
            total += float(weight) * (0.5 * error**2 if small else abs(error) - 0.5)
        return total / len(batch.weight)

    def gradients(self, batch) -> tuple[Array, list[Array]]:
        """Return the errors `[B]` and the gradients of the loss."""
        errors = self.td_errors(batch)
        actions = self.network.forward(np.asarray(batch.observation, np.float64), self.weights).shape[1]
        dq = np.zeros((len(errors), actions))
        for row, error in enumerate(errors):
            slope = error if self.loss == "squared" else np.clip(error, -1, 1)
            dq[row, batch.action[row]] = float(batch.weight[row]) * slope / len(errors)
        return errors, self.network.backward(dq, self.weights)[1]

    def update(self, batch) -> tuple[float, Array]:
        """Make one gradient update; return the loss and the errors `[B]` before it."""
        loss = self.value(batch)
        errors, gradients = self.gradients(batch)
        self.weights = self.optimizer.apply(self.weights, gradients)
        return loss, errors

    def move_target(self, tau: float) -> None:
        self.target = [tau * weight + (1 - tau) * old for weight, old in zip(self.weights, self.target, strict=True)]

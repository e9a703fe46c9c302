"""Networks whose dense layers have noise in their weights, for exploration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.backends import keras, ops
from noterl.networks.access import Composite, Network, get_weights, set_weights
from noterl.networks.builders import check_hidden, default_encoder, is_image_shape, mlp
from noterl.types import NOISE

Tensor = Any

# The standard deviation of a weight at the start, times the root of the inputs of the layer.
SIGMA = 0.5


class NoisyNetwork(Composite):
    """A network whose last two dense layers, of each stream, have factorized Gaussian noise.

    Fortunato et al., "Noisy networks for exploration" (2018), equations 9 to 11, with the noises i of the inputs and e
    of the outputs and `f(x) = sgn(x) sqrt(|x|)`: `y = (mu_w + sigma_w f(e) f(i)^T) x + mu_b + sigma_b f(e)`. The layer
    is computed as `mu(x) + sigma(x f(i)) f(e)` by two dense layers, mu and sigma.

    Args:
        space: of observations; see `default_network`.
        hidden: the units of each hidden layer; the last one is noisy. For images, 512 units follow the convolutions.
        outputs: the number of outputs.
        dueling: the number of values of the value stream; 0 for no value stream.

    Attributes:
        noise_size: the number of standard normal numbers for one noise of all layers.
    """

    def __init__(self, space: spaces.Space[Any], hidden: Sequence[int], outputs: int, dueling: int = 0) -> None:
        units = (512,) if is_image_shape(space.shape or ()) else check_hidden(hidden)
        trunk, size = default_encoder(space, None, units[:-1])
        self.parts: dict[str, Network] = {"trunk": trunk}
        self._sizes: list[tuple[int, int]] = []
        self.num_values: int = dueling
        for stream, width in [("value", dueling), ("advantage", outputs)] if dueling else [("advantage", outputs)]:
            for layer, sizes in enumerate(zip((size, *units[-1:]), (*units[-1:], width), strict=True)):
                self._add_layer(f"{stream}_{layer}", *sizes)
        self.noise_size: int = sum(map(sum, self._sizes))

    def _add_layer(self, name: str, inputs: int, outputs: int) -> None:
        """Add a noisy layer: the layers mu and sigma, and variables with the noise of acting."""
        sigma = mlp(inputs, [], outputs)
        set_weights(sigma, [np.full_like(weight, SIGMA / math.sqrt(inputs)) for weight in get_weights(sigma)])
        self.parts |= {f"{name}_mu": mlp(inputs, [], outputs), f"{name}_sigma": sigma}
        for side, size in (("inputs", inputs), ("outputs", outputs)):
            self.parts[f"{name}_{side}"] = keras.Variable(np.zeros(size, np.float32), trainable=False, name=NOISE)
        self._sizes.append((inputs, outputs))

    def clone_part(self, name: str) -> Network:
        """Return an untrainable copy of a part; a noise of acting is zero."""
        part = self.parts[name]
        if not isinstance(part, keras.Variable):
            return super().clone_part(name)
        return keras.Variable(np.zeros(part.shape, np.float32), trainable=False, name=NOISE)

    def streams(self) -> list[list[str]]:
        """Return the names of the layers of each stream."""
        return [[f"{stream}_{layer}" for layer in range(2)] for stream in ("value", "advantage")[not self.num_values :]]

    def __call__(self, observation: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the outputs `[B, outputs]`.

        Args:
            observation: `[B, ...]`.
            noise: standard normal numbers, `[noise_size]`; None for the noise of acting.
        """
        features = self.parts["trunk"](observation)
        results: list[Tensor] = []
        place = 0
        sizes = iter(self._sizes)
        for names in self.streams():
            row = features
            for layer, name in enumerate(names):
                inputs, outputs = next(sizes)
                if noise is None:
                    sides = [ops.convert_to_tensor(self.parts[f"{name}_{side}"]) for side in ("inputs", "outputs")]
                else:
                    sides = [_scaled(noise[place : place + inputs]), _scaled(noise[place + inputs :][:outputs])]
                place += inputs + outputs
                row = ops.relu(row) if layer else row
                row = self.parts[f"{name}_mu"](row) + self.parts[f"{name}_sigma"](row * sides[0]) * sides[1]
            results.append(row)
        if not self.num_values:
            return results[0]
        value, advantage = (ops.reshape(q, (-1, self.num_values, q.shape[-1] // self.num_values)) for q in results)
        centered = value + advantage - ops.mean(advantage, axis=-1, keepdims=True)
        return ops.reshape(centered, (-1, results[1].shape[-1]))


def _scaled(numbers: Tensor) -> Tensor:
    return ops.sign(numbers) * ops.sqrt(ops.abs(numbers))

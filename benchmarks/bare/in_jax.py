"""Bare programs on JAX: one jitted `lax.scan` over a group of updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.bare.functional import Functional


def _huber(values: Any, target: Any) -> Any:
    error = values - target
    size = jnp.abs(error)
    return jnp.mean(jnp.where(size <= 1.0, 0.5 * jnp.square(error), size - 0.5))


def _conv(images: Any, kernel: Any, bias: Any, stride: int) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    found = jax.lax.conv_general_dilated(images, kernel, (stride, stride), "VALID", dimension_numbers=numbers)
    return found + bias


class Ops:
    relu, tanh, exp, softplus = jax.nn.relu, jnp.tanh, jnp.exp, jax.nn.softplus
    square, sqrt, minimum, maximum, clip = jnp.square, jnp.sqrt, jnp.minimum, jnp.maximum, jnp.clip
    mean, sum, log_softmax, stop_gradient = jnp.mean, jnp.sum, jax.nn.log_softmax, jax.lax.stop_gradient
    huber, conv = staticmethod(_huber), staticmethod(_conv)
    dense = staticmethod(lambda inputs, kernel, bias: inputs @ kernel + bias)
    concat = staticmethod(lambda parts: jnp.concatenate(parts, -1))
    max_last = staticmethod(lambda values: jnp.max(values, -1))
    sum_last = staticmethod(lambda values: jnp.sum(values, -1))
    take = staticmethod(lambda values, action: jnp.take_along_axis(values, action[:, None], -1)[:, 0])
    image = staticmethod(lambda images: images.astype(jnp.float32) / 255)
    flatten = staticmethod(lambda images: images.reshape(images.shape[0], -1))


class Program(Functional):
    """Runs groups of updates; arguments as in `benchmarks.bare.in_torch`.

    With `separate`, each update is a call: XLA's convolutions are slow inside of loops on the CPU.
    """

    ops = Ops

    def _prepare(self, state: Any, data: Mapping[str, np.ndarray]) -> None:
        self._data = {name: jnp.asarray(array) for name, array in data.items()}
        self._state = jax.tree.map(jnp.array, state)
        self._run = jax.jit(self._one if self._separate else self._group, donate_argnums=0)

    def __call__(self, rows: Mapping[str, np.ndarray]) -> None:
        """Make the updates of batches `[K, B, ...]`."""
        if self._separate:
            for k in range(len(next(iter(rows.values())))):
                batch = {name: array[k : k + 1] for name, array in rows.items()}
                self._state, loss = self._run(self._state, batch, self._data)
        else:
            self._state, loss = self._run(self._state, dict(rows), self._data)
        jax.block_until_ready((self._state, loss))

    def read(self) -> dict[str, list[np.ndarray]]:
        """Return the weights in Keras's layout."""
        return {name: [np.asarray(each) for each in arrays] for name, arrays in self._state[0].items()}

    def gradients(self, loss: Callable[..., tuple[Any, Any]], weights: list[Any]) -> tuple[Any, Any, Any]:
        (value, aux), found = jax.value_and_grad(loss, has_aux=True)(weights)
        return value, aux, found

    def _one(self, state: Any, rows: Any, data: Any) -> tuple[Any, Any]:
        """Make the updates of one period, on batches `[period, B, ...]`."""
        self.weights, self.moments = ({**part} for part in state)
        batches = [{name: array[k] for name, array in rows.items()} for k in range(self.update.period)]
        if data:
            batches = [{name: array[each["indices"]] for name, array in data.items()} for each in batches]
        loss = self.update.run(self, batches)
        return (self.weights, self.moments), loss

    def _group(self, state: Any, rows: Any, data: Any) -> tuple[Any, Any]:
        period = self.update.period
        periods = {name: array.reshape(-1, period, *array.shape[1:]) for name, array in rows.items()}
        state, losses = jax.lax.scan(lambda carry, batch: self._one(carry, batch, data), state, periods)
        return state, losses[-1]


def product(size: int) -> Callable[[int], None]:
    """Return a function that multiplies two float32 matrices of this size a number of times."""
    matrices = jnp.asarray(np.random.default_rng(0).standard_normal((2, size, size), np.float32))
    left, right = matrices[0], matrices[1]
    compiled = jax.jit(lambda left, right: left @ right)

    def run(count: int) -> None:
        for _ in range(count):
            result = compiled(left, right)
        result.block_until_ready()

    return run

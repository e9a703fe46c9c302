"""Bare programs on TensorFlow: one `tf.function` under XLA for a group of updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.bare.functional import Functional


def _huber(values: Any, target: Any) -> Any:
    error = values - target
    size = tf.abs(error)
    return tf.reduce_mean(tf.where(size <= 1.0, 0.5 * tf.square(error), size - 0.5))


class Ops:
    relu, tanh, exp, softplus = tf.nn.relu, tf.tanh, tf.exp, tf.nn.softplus
    square, sqrt, minimum, maximum, clip = tf.square, tf.sqrt, tf.minimum, tf.maximum, tf.clip_by_value
    mean, sum, log_softmax, stop_gradient = tf.reduce_mean, tf.reduce_sum, tf.nn.log_softmax, tf.stop_gradient
    huber = staticmethod(_huber)
    conv = staticmethod(
        lambda images, kernel, bias, stride: tf.nn.conv2d(images, kernel, stride, "VALID") + bias  # NHWC
    )
    dense = staticmethod(lambda inputs, kernel, bias: inputs @ kernel + bias)
    concat = staticmethod(lambda parts: tf.concat(parts, -1))
    max_last = staticmethod(lambda values: tf.reduce_max(values, -1))
    sum_last = staticmethod(lambda values: tf.reduce_sum(values, -1))
    take = staticmethod(lambda values, action: tf.gather(values, action, batch_dims=1))
    image = staticmethod(lambda images: tf.cast(images, tf.float32) / 255)
    flatten = staticmethod(lambda images: tf.reshape(images, (images.shape[0], -1)))


class Program(Functional):
    """Runs groups of updates; arguments as in `benchmarks.bare.in_torch`.

    With `separate`, each update is a call: XLA's convolutions are slow inside of loops on the CPU.
    """

    ops = Ops

    def _prepare(self, state: Any, data: Mapping[str, np.ndarray]) -> None:
        self._data = {name: tf.constant(array) for name, array in data.items()}
        self._state = tf.nest.map_structure(lambda array: tf.Variable(tf.constant(array)), state)
        self._run = tf.function(self._group, jit_compile=True, autograph=False)

    def __call__(self, rows: Mapping[str, np.ndarray]) -> None:
        """Make the updates of batches `[K, B, ...]`."""
        count = len(next(iter(rows.values()))) if self._separate else 1
        for k in range(count):
            chosen = {name: array[k : k + 1] for name, array in rows.items()} if self._separate else rows
            loss = self._run({name: tf.convert_to_tensor(array) for name, array in chosen.items()}, self._data)
        loss.numpy()

    def read(self) -> dict[str, list[np.ndarray]]:
        """Return the weights in Keras's layout."""
        return {name: [each.numpy() for each in variables] for name, variables in self._state[0].items()}

    def gradients(self, loss: Callable[..., tuple[Any, Any]], weights: list[Any]) -> tuple[Any, Any, Any]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            value, aux = loss(weights)
        return value, aux, tape.gradient(value, weights)

    def _one(self, state: Any, batches: list[dict[str, Any]], data: Any) -> tuple[Any, Any]:
        self.weights, self.moments = ({**part} for part in state)
        if data:
            batches = [{name: tf.gather(array, each["indices"]) for name, array in data.items()} for each in batches]
        loss = self.update.run(self, batches)
        return (self.weights, self.moments), loss

    def _group(self, rows: Any, data: Any) -> Any:
        """Make all updates on the values of the variables, and assign them at the end."""
        period, variables = self.update.period, tf.nest.flatten(self._state)
        values = [variable.read_value() for variable in variables]
        periods = next(iter(rows.values())).shape[0] // period

        def body(number: Any, values: list[Any], loss: Any) -> tuple[Any, list[Any], Any]:
            batches = [{name: array[number * period + k] for name, array in rows.items()} for k in range(period)]
            state, loss = self._one(tf.nest.pack_sequence_as(self._state, values), batches, data)
            return number + 1, tf.nest.flatten(state), loss

        if periods == 1:
            _, values, loss = body(0, values, None)
        else:
            begin = (tf.constant(0), values, tf.constant(0.0))
            _, values, loss = tf.while_loop(lambda number, values, loss: number < periods, body, begin)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        return loss


def product(size: int) -> Callable[[int], None]:
    """Return a function that multiplies two float32 matrices of this size a number of times."""
    left, right = tf.unstack(tf.constant(np.random.default_rng(0).standard_normal((2, size, size), np.float32)))
    compiled = tf.function(tf.matmul, jit_compile=True, autograph=False)

    def run(count: int) -> None:
        for _ in range(count):
            result = compiled(left, right)
        result.numpy()

    return run

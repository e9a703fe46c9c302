"""Networks in NumPy: the operations of a graph, and running them. This module imports NumPy only, for worker processes.

A function has the name of the operation. Its parameters are the inputs, then the arrays, and the settings by name.
Exported NumPy files contain these functions, so a function uses only NumPy and functions above its own definition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# A network: a function of observations and weights.
Step = Callable[[Array, list[Array]], Array]

# The function of an operation, and what returns its operands from the list of all values.
Operation = tuple[Callable[..., Array], Callable[[list[Array]], Sequence[Array]]]


def run_program(program: Step, observations: Array, weights: list[Array]) -> Array:
    """Return the outputs `[N, ...]` of a function of `numpy_forward.describe` for observations `[N, ...]`."""
    if len(observations) == 1 and observations.ndim == 2:
        # A vector times a matrix takes half the time of a matrix with one row.
        return program(observations[0], weights)[None]
    return program(observations, weights)


def run_operations(
    constants: list[Array], operations: list[Operation], output: int, x: Array, weights: list[Array]
) -> Array:
    """Run operations, whose results follow the observations, constants and weights, and return one of these values."""
    values = [x, *constants, *weights]
    for function, operands in operations:
        values.append(function(*operands(values)))
    return values[output]


def as_float32(x: Array) -> Array:
    """Return the values as float32."""
    return x.astype(np.float32)


def one_hot(x: Array, sizes: tuple[int, ...]) -> Array:
    """Return one-hot vectors of ints, side by side."""
    columns = x.reshape(len(x), -1)
    vectors = [columns[:, index, None] == np.arange(size) for index, size in enumerate(sizes)]
    return np.concatenate(vectors, axis=-1).astype(np.float32)


def flatten(x: Array) -> Array:
    """Return each row as a vector."""
    return x.reshape(len(x), -1)


def reshape(x: Array, target_shape: tuple[int, ...]) -> Array:
    """Return each row in another shape."""
    return x.reshape(len(x), *target_shape)


def concatenate(*inputs: Array) -> Array:
    """Return the inputs side by side."""
    return np.concatenate(inputs, axis=-1)


def columns(x: Array, start: int, stop: int) -> Array:
    """Return some columns."""
    return x[..., start:stop]


def rearrange(x: Array, axes: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Transpose the axes of each row, and then reshape the row."""
    return x.transpose(0, *(axis + 1 for axis in axes)).reshape(-1, *shape)


def normalize(x: Array, mean: Array, mean_rest: Array, deviation: Array, bound: float) -> Array:
    """Return standardized and clipped values; the mean is a sum of two, which keeps the precision of float64."""
    return np.clip(((x - mean) - mean_rest) / deviation, -bound, bound)


def rescale(x: Array, scale: float, offset: float) -> Array:
    """Return `scale * x + offset` for numbers, in float32."""
    scaled = x * np.float32(scale)
    return scaled + np.float32(offset) if offset else scaled


def affine(x: Array, scale: Array, offset: Array) -> Array:
    """Return `scale * x + offset` for arrays."""
    return x * scale + offset


def dense(x: Array, kernel: Array, bias: Array) -> Array:
    """Return the outputs of a dense layer."""
    product = x @ kernel
    product += bias
    return product


def transposed_dense(x: Array, kernel: Array, bias: Array) -> Array:
    """Return the outputs of a dense layer whose kernel has the layout of torch."""
    product = x @ kernel.T
    product += bias
    return product


def convolution(x: Array, kernel: Array, bias: Array, strides: tuple[int, int]) -> Array:
    """Return the outputs of a convolution of images `[N, H, W, C]` without padding."""
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], axis=(1, 2))
    windows = windows[:, :: strides[0], :: strides[1]]
    return np.tensordot(windows, kernel, axes=((4, 5, 3), (0, 1, 2))) + bias


def layer_norm(x: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    """Return each row with the mean 0 and the variance 1, scaled and shifted (Ba et al., 2016)."""
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + epsilon)
    return (x - x.mean(axis=-1, keepdims=True)) / deviation * gamma + beta


def batch_norm(x: Array, gamma: Array, beta: Array, mean: Array, variance: Array, epsilon: float) -> Array:
    """Return the values standardized with stored statistics (Ioffe and Szegedy, 2015)."""
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def append(x: Array, values: Array) -> Array:
    """Append the same values to each row."""
    return np.concatenate([x, np.broadcast_to(values, x.shape)], axis=-1)


def fixed(x: Array, values: Array) -> Array:
    """Return the values, whatever the input."""
    return values


def split(x: Array, groups: int) -> Array:
    """Return each row as a matrix of so many rows."""
    return x.reshape(*x.shape[:-1], groups, -1)


def join(x: Array) -> Array:
    """Return each matrix as a row."""
    return x.reshape(*x.shape[:-2], -1)


def average(x: Array) -> Array:
    """Return the mean of the rows of each matrix."""
    return x.mean(axis=-2)


def expectation(x: Array, support: Array) -> Array:
    """Return the mean of the support under the softmax of each column of each matrix."""
    powers = np.exp(x - x.max(axis=-2, keepdims=True))
    return support @ powers / powers.sum(axis=-2)


def mean(x: Array) -> Array:
    """Return the mean of each row, `[N, 1]`."""
    return x.mean(axis=-1, keepdims=True)


def add(x: Array, y: Array) -> Array:
    """Return the sum of two inputs."""
    return x + y


def subtract(x: Array, y: Array) -> Array:
    """Return the difference of two inputs."""
    return x - y


def multiply(x: Array, y: Array) -> Array:
    """Return the product of two inputs."""
    return x * y


def maximum(x: Array, y: Array) -> Array:
    """Return the larger one of each pair of values."""
    return np.maximum(x, y)


def minimum(x: Array, y: Array) -> Array:
    """Return the smaller one of each pair of values."""
    return np.minimum(x, y)


def argmax(x: Array, sizes: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Return the index of the largest value in each group of columns."""
    parts = np.split(x, np.cumsum(sizes)[:-1], axis=-1)
    return np.stack([part.argmax(axis=-1) for part in parts], axis=-1).reshape(len(x), *shape)


def positive(x: Array, shape: tuple[int, ...]) -> Array:
    """Return 1 for values above 0, and 0 for others."""
    return (x > 0).reshape(len(x), *shape).astype(np.int8)


def clip(x: Array, low: Array, high: Array) -> Array:
    """Return the values within bounds."""
    return np.clip(x, low, high)


def relu(x: Array) -> Array:
    """Return max(x, 0)."""
    return np.maximum(x, 0)


def tanh(x: Array) -> Array:
    """Return the hyperbolic tangent."""
    return np.tanh(x)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), computed from tanh, which does not overflow."""
    return 0.5 * np.tanh(0.5 * x) + 0.5


def elu(x: Array) -> Array:
    """Return the exponential linear unit (Clevert et al., 2016)."""
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def silu(x: Array) -> Array:
    """Return x * sigmoid(x)."""
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """Return x times the standard normal distribution function of x (Hendrycks and Gimpel, 2016)."""
    # NumPy has no erf, and a loop over `math.erf` takes 40 times as long for 4,096 values. So the distribution function
    # is (1 + tanh(x * polynomial(x²))) / 2, with coefficients that were fitted to `math.erf`. The largest error of gelu
    # in float32 is 1.3e-7 |x|. From sqrt(32) on, the function is 1 in float32, and larger squares could overflow.
    bounded = np.minimum(np.abs(x), 32**0.5)
    square = bounded * bounded
    polynomial = 1.7562781e-9 * square
    for coefficient in (-1.322663e-7, 3.9647734e-6, -5.5306318e-5, -3.2594741e-5, 0.036333084):
        polynomial += coefficient
        polynomial *= square
    polynomial += 0.79788494
    half = 0.5 * x
    return half + half * np.tanh(polynomial * x)


def softmax(x: Array) -> Array:
    """Return the probabilities of each row of logits."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def softplus(x: Array) -> Array:
    """Return log(1 + exp(x))."""
    # 20 times faster than np.logaddexp for 16,384 values. The exponent is never positive, so nothing overflows.
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def softsign(x: Array) -> Array:
    """Return x / (1 + |x|)."""
    return x / (1.0 + np.abs(x))


def selu(x: Array) -> Array:
    """Return the scaled exponential linear unit (Klambauer et al., 2017)."""
    return 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))


def exponential(x: Array) -> Array:
    """Return exp(x)."""
    return np.exp(x)


def relu6(x: Array) -> Array:
    """Return x between 0 and 6."""
    return np.clip(x, 0, 6)


def mish(x: Array) -> Array:
    """Return x * tanh(softplus(x)) (Misra, 2019)."""
    return x * np.tanh(softplus(x))


def leaky_relu(x: Array, negative_slope: float) -> Array:
    """Return x, times a slope where x is negative."""
    return np.where(x > 0, x, negative_slope * x)

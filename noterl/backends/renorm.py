"""Batch renormalization (Ioffe, "Batch renormalization: towards reducing minibatch dependence", 2017, algorithm 1).

The layers of Keras and of torch share this formula. Momentum, epsilon, bounds and warm-up are those of CrossQ's code;
there is no gradual relaxation of the bounds. Variances of a batch divide by n - 1, as those of Stable-Baselines3
Contrib do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

Tensor = Any

# The share of a batch's statistics in the new running statistics.
MOMENTUM = 0.01
# Added to variances.
EPSILON = 1e-3
# Until a layer has made this many updates, batches are normalized with their own statistics only.
WARM_UP = 100_000
# The bounds of the paper's r and d.
LARGEST_SCALE = 3.0
LARGEST_OFFSET = 5.0
# The weights of a layer, with their initial values. `updates` stops at 2**24 in float32, far beyond the warm-up.
WEIGHTS = {"gamma": 1.0, "beta": 0.0, "mean": 0.0, "variance": 1.0, "updates": 0.0}
TRAINED = ("gamma", "beta")


def renormalize(rows: Tensor, weights: Sequence[Tensor], *, training: bool) -> tuple[Tensor, list[Tensor]]:
    """Return rows `[B, D]`, normalized, scaled and shifted.

    Args:
        rows: `[B, D]`, float32.
        weights: the values of `WEIGHTS`, `[D]` each, except `updates`.
        training: whether to use the statistics of these rows; otherwise those of the layer are used alone.

    Returns:
        The rows, and the next values of mean, variance and updates; [] unless `training`.
    """
    gamma, beta, mean, variance, updates = weights
    running_deviation = ops.sqrt(variance + EPSILON)
    if not training:
        return (rows - mean) / running_deviation * gamma + beta, []
    batch_mean = ops.mean(rows, axis=0)
    others = ops.maximum(ops.cast(ops.shape(rows)[0], "float32") - 1.0, 1.0)
    batch_variance = ops.sum(ops.square(rows - batch_mean), axis=0) / others
    deviation = ops.sqrt(batch_variance + EPSILON)
    is_warm = updates > WARM_UP
    scale = ops.clip(ops.stop_gradient(deviation) / running_deviation, 1 / LARGEST_SCALE, LARGEST_SCALE)
    offset = ops.clip((ops.stop_gradient(batch_mean) - mean) / running_deviation, -LARGEST_OFFSET, LARGEST_OFFSET)
    normalized = (rows - batch_mean) / deviation * ops.where(is_warm, scale, 1.0) + ops.where(is_warm, offset, 0.0)
    next_mean = mean + MOMENTUM * (ops.stop_gradient(batch_mean) - mean)
    next_variance = variance + MOMENTUM * (ops.stop_gradient(batch_variance) - variance)
    return normalized * gamma + beta, [next_mean, next_variance, updates + 1.0]

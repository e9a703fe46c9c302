"""Pure maths of the losses, on `keras.ops`: exact on every backend, inside a compiled update or outside."""

from __future__ import annotations

from typing import Any

from noterl import backends

backends.choose()

from keras import ops  # noqa: E402  (the backend is chosen first)

Tensor = Any


def take(values: Tensor, action: Tensor) -> Tensor:
    """Return the values of the actions taken.

    Args:
        values: `[B, A]`.
        action: `[B]`, ints.

    Returns:
        `[B]`.

    Example:
    >>> import numpy as np
    >>> from noterl import losses
    >>> [float(value) for value in losses.take(np.array([[1.0, 2.0], [3.0, 4.0]], "float32"), np.array([1, 0]))]
    [2.0, 3.0]
    """
    # A select and a sum: the gradient of a gather is a scatter, which costs more on every backend.
    index = ops.expand_dims(ops.cast(action, "int32"), axis=-1)
    taken = ops.equal(index, ops.arange(values.shape[-1], dtype="int32"))  # [B, A]
    return ops.sum(ops.where(taken, values, ops.zeros_like(values)), axis=-1)


def td_target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """Return `reward + discount * next_value`, which takes no gradient; all `[B]`.

    `discount` is gamma^n * (1 - terminated), as batches hold it.
    """
    return ops.stop_gradient(reward + discount * next_value)


def huber(error: Tensor, delta: float = 1.0) -> Tensor:
    """Return the Huber loss of each error (Huber, 1964): quadratic up to `delta`, linear beyond.

    `0.5 e^2` where `|e| <= delta`, else `delta (|e| - 0.5 delta)`. Value and gradient are exact; a second derivative is
    not.
    """
    # c e - c^2 / 2 with c = clip(e) held fixed has this value and c, Huber's derivative, as its gradient.
    clipped = ops.stop_gradient(ops.clip(error, -delta, delta))
    return clipped * (error - 0.5 * clipped)


def squared(error: Tensor) -> Tensor:
    """Return `0.5 e^2` of each error: its gradient is that of `huber` near zero."""
    return 0.5 * ops.square(error)


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return the mean over the batch of `weight * values`, as importance sampling wants it."""
    return ops.mean(weight * values)

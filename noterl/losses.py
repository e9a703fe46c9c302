"""Pure maths of the losses, on `keras.ops`: exact on every backend, inside a compiled update or outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noterl.backends import ops

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


def by_rows(function: Callable[..., Tensor], *arrays: Tensor) -> Tensor:
    """Return what a function of rows, such as a network, gives for arrays `[T, N, ...]`: `[T, N, ...]`."""
    steps, lanes = arrays[0].shape[:2]
    rows = function(*(ops.reshape(array, (steps * lanes, *array.shape[2:])) for array in arrays))
    return ops.reshape(rows, (steps, lanes, *rows.shape[1:]))


def masked_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return `sum(weight * values) / sum(weight)`: the mean over the rows that count."""
    return ops.sum(weight * values) / ops.maximum(ops.sum(weight), 1e-8)


def normalized(values: Tensor, weight: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Return the values `[B]` shifted and scaled to a mean of 0 and a standard deviation of 1, over rows that count.

    One row has no deviation and is returned as it is, as in Stable-Baselines3.
    """
    if values.shape[0] == 1:
        return values
    centred = values - masked_mean(values, weight)
    return centred / (ops.sqrt(masked_mean(ops.square(centred), weight)) + epsilon)


def gae(reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, decay: Tensor) -> Tensor:
    """Return the generalised advantages of a rollout.

    Schulman et al., "High-dimensional continuous control using generalized advantage estimation", 2016, equation 16:
    `A_t = delta_t + decay_t A_{t+1}` with `delta_t = reward_t + discount_t V(s_{t+1}) - V(s_t)`. With lambda = 1 and
    the value added this is the n-step return of the rest of the rollout.

    Args:
        reward: `[T, N]`.
        discount: `[T, N]`, gamma * (1 - terminated).
        value: `[T, N]`, of the observations.
        next_value: `[T, N]`, of the true next observations: what a truncated episode is bootstrapped from.
        decay: `[T, N]`, gamma * lambda where the lane's next row follows from this one, else 0.

    Returns:
        `[T, N]`; takes no gradient.
    """
    delta = reward + discount * next_value - value

    # A_t summed up over 1, 2, 4, ... steps: log(T) vector operations, where a loop would take T.
    advantage, span, length = delta, 1, reward.shape[0]
    while span < length:
        none = ops.zeros_like(delta[:span])
        advantage = advantage + decay * ops.concatenate([advantage[span:], none])
        decay = decay * ops.concatenate([decay[span:], none])
        span *= 2
    return ops.stop_gradient(advantage)


def clipped_surrogate(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: Tensor) -> Tensor:
    """Return the clipped surrogate loss of each row; all `[B]`.

    `-min(r A, clip(r, 1 - clip, 1 + clip) A)` with `r = exp(log_prob - old_log_prob)`: Schulman et al., "Proximal
    policy optimization algorithms", 2017, equation 7.
    """
    ratio = ops.exp(log_prob - old_log_prob)
    return -ops.minimum(ratio * advantage, ops.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def value_error(value: Tensor, target: Tensor, old_value: Tensor | None = None, clip: Tensor | None = None) -> Tensor:
    """Return the squared error of each value; all `[B]`.

    With `clip` that of OpenAI's baselines: the larger of this and of the error of the value clipped to
    `old_value ± clip`, so that values move no further than that from where they were.
    """
    plain = ops.square(value - target)
    if old_value is None or clip is None:
        return plain
    bound = ops.convert_to_tensor(clip)
    clipped = old_value + ops.clip(value - old_value, -bound, bound)
    return ops.maximum(plain, ops.square(clipped - target))


def approximate_kl(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """Return an estimate of KL(old, new) for each row, `(r - 1) - log r`, unbiased and never negative.

    Schulman, "Approximating KL divergence", 2020.
    """
    log_ratio = log_prob - old_log_prob
    return ops.exp(log_ratio) - 1.0 - log_ratio

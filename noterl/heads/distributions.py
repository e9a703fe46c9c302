"""The functions of heads that losses use, on `keras.ops`; the heads import this module when they first call one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from noterl import losses
from noterl.backends import ops
from noterl.heads.base import split

Tensor = Any

_HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)

# Uniform numbers are kept this far from 0 and 1, so that -log(-log(u)) is finite in float32.
_TINY = 1e-7

# The float32 next to 1.
_BELOW_ONE = 1.0 - float(np.finfo(np.float32).epsneg)


def categorical_log_prob(logits: Tensor, action: Tensor, counts: Sequence[int]) -> Tensor:
    """Return the log-probability `[B]` of actions `[B, ...]` under logits `[B, A]`; `counts` are choices per part."""
    action = ops.reshape(ops.cast(action, "int32"), (-1, len(counts)))
    parts = [ops.log_softmax(part, axis=-1) for part in split(logits, counts)]
    return sum(losses.take(part, action[:, column]) for column, part in enumerate(parts))


def categorical_entropy(logits: Tensor, counts: Sequence[int]) -> Tensor:
    """Return the entropy `[B]` of the softmax of logits `[B, A]`, in nats."""
    parts = [ops.log_softmax(part, axis=-1) for part in split(logits, counts)]
    return sum(-ops.sum(ops.exp(part) * part, axis=-1) for part in parts)


def one_hot(action: Tensor, counts: Sequence[int]) -> Tensor:
    """Return actions `[B, ...]` as float32 one-hot vectors `[B, A]`."""
    choices = ops.reshape(ops.cast(action, "int32"), (-1, len(counts)))
    return ops.concatenate([_one_hot(choices[:, column], count) for column, count in enumerate(counts)], axis=-1)


def greedy(logits: Tensor, counts: Sequence[int]) -> Tensor:
    """Return the most probable actions `[B, A]`, one-hot, without a gradient."""
    parts = zip(split(logits, counts), counts, strict=True)
    return ops.concatenate([_one_hot(ops.argmax(part, axis=-1), count) for part, count in parts], axis=-1)


def straight_through(logits: Tensor, uniform: Tensor, temperature: Any, counts: Sequence[int]) -> Tensor:
    """Return one-hot samples `[B, A]` with the gradient of the Gumbel-softmax (Jang, Gu and Poole, 2017)."""
    gumbel = -ops.log(-ops.log(ops.clip(uniform, _TINY, 1.0 - _TINY)))
    samples = []
    for part, count in zip(split(logits + gumbel, counts), counts, strict=True):
        soft = ops.softmax(part / temperature, axis=-1)
        hard = _one_hot(ops.argmax(part, axis=-1), count)
        samples.append(ops.stop_gradient(hard - soft) + soft)
    return ops.concatenate(samples, axis=-1)


def _one_hot(index: Tensor, count: int) -> Tensor:
    """Return float32 `[B, count]`; `ops.one_hot` reads the values on torch, which prevents tracing the loss."""
    return ops.cast(ops.equal(ops.cast(index, "int32")[:, None], np.arange(count, dtype=np.int32)), "float32")


def gaussian_log_prob(values: Tensor, action: Tensor) -> Tensor:
    """Return the log-density `[B]` of actions `[B, ...]` under means and log standard deviations `[B, 2 A]`."""
    mean, log_std = _halves(values)
    error = (ops.reshape(action, (-1, mean.shape[-1])) - mean) * ops.exp(-log_std)
    return -ops.sum(0.5 * ops.square(error) + log_std + _HALF_LOG_2_PI, axis=-1)


def gaussian_entropy(values: Tensor) -> Tensor:
    """Return the differential entropy `[B]` of outputs `[B, 2 A]`, in nats."""
    return ops.sum(_halves(values)[1] + 0.5 * math.log(2 * math.pi * math.e), axis=-1)


def scale(action: Tensor, center: np.ndarray, divisor: np.ndarray) -> Tensor:
    """Return actions `[B, ...]` scaled to [-1, 1], `[B, A]`."""
    flat = ops.reshape(ops.cast(action, "float32"), (-1, len(center)))
    return ops.divide(ops.subtract(flat, center), divisor)


def squashed_sample(values: Tensor, noise: Tensor, log_std_range: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Return `tanh(mean + std * noise)` `[B, A]` and its log-density `[B]`."""
    mean, log_std = _clipped_halves(values, log_std_range)
    unsquashed = mean + ops.exp(log_std) * noise
    return ops.tanh(unsquashed), _squashed_log_density(noise, log_std, unsquashed)


def squashed_log_prob(values: Tensor, action: Tensor, log_std_range: tuple[float, float]) -> Tensor:
    """Return the log-density `[B]` of `tanh` of a Gaussian sample at actions `[B, A]` in [-1, 1]."""
    mean, log_std = _clipped_halves(values, log_std_range)
    unsquashed = ops.arctanh(ops.clip(ops.reshape(action, (-1, mean.shape[-1])), -_BELOW_ONE, _BELOW_ONE))
    return _squashed_log_density((unsquashed - mean) * ops.exp(-log_std), log_std, unsquashed)


def _squashed_log_density(noise: Tensor, log_std: Tensor, unsquashed: Tensor) -> Tensor:
    """Return the log-density `[B]` of `tanh(unsquashed)`, which lies `noise` standard deviations from the mean."""
    gaussian = -0.5 * ops.square(noise) - log_std - _HALF_LOG_2_PI
    # log(1 - tanh(u)^2), exact where 1 - tanh(u)^2 would round to 0.
    log_slope = 2.0 * (math.log(2.0) - unsquashed - ops.softplus(-2.0 * unsquashed))
    return ops.sum(gaussian - log_slope, axis=-1)


def _halves(values: Tensor) -> tuple[Tensor, Tensor]:
    size = values.shape[-1] // 2
    return values[:, :size], values[:, size:]


def _clipped_halves(values: Tensor, log_std_range: tuple[float, float]) -> tuple[Tensor, Tensor]:
    mean, log_std = _halves(values)
    return mean, ops.clip(log_std, *log_std_range)

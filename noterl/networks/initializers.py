"""Initial weights, sampled in NumPy: the same numbers on every backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from noterl.networks.layers import PLAN_LAYERS, stacks


def initial_weights(
    plan: tuple[Any, ...], weights: Sequence[np.ndarray], generator: np.random.Generator
) -> list[np.ndarray]:
    """Return initial weights for the network of a plan, with the shapes of `weights`.

    A kernel with a gain is orthogonal, and the bias of the layer is zero. The gain "glorot_uniform" names Keras's
    default. Other kernels and biases are uniform. Log standard deviations have the value in the plan. A layer
    normalization changes nothing at first but the mean and the variance.
    """
    gains = iter([gain for stack in stacks(plan) for gain in _gains(stack)])
    initial: list[np.ndarray] = []
    gain: Any = None
    fan_in = 1
    for weight in weights:
        if weight.ndim > 1:  # a kernel; the bias of its layer follows
            gain = next(gains, None)
            fan_in = int(np.prod(weight.shape[:-1]))
        if gain is None:
            initial.append(fan_in_uniform(weight.shape, fan_in, generator))
        elif weight.ndim == 1:
            initial.append(np.zeros_like(weight))
        else:
            is_glorot = gain == "glorot_uniform"
            initial.append(
                glorot_uniform(weight.shape, generator) if is_glorot else orthogonal(weight.shape, gain, generator)
            )
    *_, last = stacks(plan)
    if last and last[-1][0] == "log_std":
        initial[-1] = np.full_like(initial[-1], last[-1][1])
    elif last and last[-1][0] == "layer_norm":
        initial[-2:] = np.ones_like(weights[-2]), np.zeros_like(weights[-1])
    return initial


def _gains(layers: Sequence[tuple]) -> list[Any]:
    """Return the gain of each kernel in the layers of a plan; None for uniform kernels."""
    gains: list[Any] = []
    for layer, *values in layers:
        arguments = dict(zip(PLAN_LAYERS[layer], values, strict=False))
        if layer == "encoders":
            gains += [gain for _, _, inner in arguments["plans"] for gain in _gains(inner)]
        elif "gain" in PLAN_LAYERS[layer]:
            gains.append(arguments.get("gain"))
    return gains


def orthogonal(shape: tuple[int, ...], gain: float, generator: np.random.Generator) -> np.ndarray:
    """Sample a kernel with orthogonal columns or rows of length `gain` (Saxe et al., 2014)."""
    rows = int(np.prod(shape[:-1]))
    columns = shape[-1]
    basis, triangle = np.linalg.qr(generator.standard_normal((max(rows, columns), min(rows, columns))))
    basis = basis * np.sign(np.diag(triangle))  # otherwise the distribution over orthogonal matrices is not uniform
    return (gain * (basis if rows >= columns else basis.T)).reshape(shape).astype("float32")


def glorot_uniform(shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Sample a kernel uniformly from ±sqrt(6 / (inputs + outputs)) (Glorot and Bengio, 2010, equation 16)."""
    window = int(np.prod(shape[:-2]))
    limit = np.sqrt(6.0 / (window * (shape[-2] + shape[-1])))
    return generator.uniform(-limit, limit, shape).astype("float32")


def fan_in_uniform(shape: tuple[int, ...], fan_in: int, generator: np.random.Generator) -> np.ndarray:
    """Sample a kernel or bias uniformly from ±1/sqrt(fan_in) (Lillicrap et al., 2016, section 7)."""
    limit = 1.0 / np.sqrt(fan_in)
    return generator.uniform(-limit, limit, shape).astype("float32")

"""Initial weights, sampled in NumPy: the same numbers on every backend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from noterl.networks.size_limit import PlanWeight


def initial_weights(
    plan: Iterable[PlanWeight], weights: Sequence[np.ndarray], generator: np.random.Generator
) -> list[np.ndarray]:
    """Return initial weights for the network of a plan, with the shapes of `weights`.

    A kernel with a gain is orthogonal, and the bias of the layer is zero. The gain `("gates", N)` makes the kernel of
    each of N gates side by side orthogonal, with a gain of 1; "glorot_uniform" names Keras's default. Other kernels and
    biases are uniform. Log standard deviations have the value in the plan. A layer normalization starts with the scale
    1 and the offset 0, and a batch renormalization with `backends.renorm.WEIGHTS`.
    """
    initial: list[np.ndarray] = []
    fan_in = 1
    for weight, (_, role, value) in zip(weights, plan, strict=True):
        if role == "constant":
            initial.append(np.full_like(weight, value))
            continue
        if role == "kernel":
            fan_in = int(np.prod(weight.shape[:-1]))
        if value is None:
            initial.append(fan_in_uniform(weight.shape, fan_in, generator))
        elif role == "bias":
            initial.append(np.zeros_like(weight))
        elif value == "glorot_uniform":
            initial.append(glorot_uniform(weight.shape, generator))
        elif isinstance(value, tuple):
            _, gates = value
            shape = *weight.shape[:-1], weight.shape[-1] // gates
            initial.append(np.concatenate([orthogonal(shape, 1.0, generator) for _ in range(gates)], axis=-1))
        else:
            initial.append(orthogonal(weight.shape, value, generator))
    return initial


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

"""Initial weights, sampled in NumPy so that they are the same on every backend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def initial_weights(plan: tuple, weights: Sequence[np.ndarray], generator: np.random.Generator) -> list[np.ndarray]:
    """Return initial weights for the network of a plan, with the shapes of `weights`.

    A kernel with a gain is orthogonal, and its bias is zero. Other kernels and biases are uniform. Log standard
    deviations have the value in the plan.
    """
    layers = plan[1] if plan[0] == "sequential" else []
    gains = iter(_gains(layers))
    initial: list[np.ndarray] = []
    gain, fan_in = None, 1
    for weight in weights:
        if weight.ndim > 1:  # a kernel; the bias of its layer follows
            gain, fan_in = next(gains, None), int(np.prod(weight.shape[:-1]))
        if gain is None:
            initial.append(fan_in_uniform(weight.shape, fan_in, generator))
        else:
            initial.append(orthogonal(weight.shape, gain, generator) if weight.ndim > 1 else np.zeros_like(weight))
    if layers and layers[-1][0] == "log_std":
        initial[-1] = np.full_like(initial[-1], layers[-1][1])
    return initial


def _gains(layers: Sequence[tuple]) -> list[float | None]:
    """Return the gain of each kernel in the layers of a plan; None for uniform kernels."""
    found: list[float | None] = []
    for kind, *rest in layers:
        if kind == "encoders":
            found += [gain for _, _, inner in rest[0] for gain in _gains(inner)]
        elif kind in ("dense", "convolution"):
            found.append(rest[-1])
    return found


def orthogonal(shape: tuple[int, ...], gain: float, generator: np.random.Generator) -> np.ndarray:
    """Sample a kernel with orthogonal columns or rows of length `gain` (Saxe et al., 2014)."""
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    basis, triangle = np.linalg.qr(generator.standard_normal((max(rows, columns), min(rows, columns))))
    basis = basis * np.sign(np.diag(triangle))  # otherwise the distribution over orthogonal matrices is not uniform
    return (gain * (basis if rows >= columns else basis.T)).reshape(shape).astype("float32")


def fan_in_uniform(shape: tuple[int, ...], fan_in: int, generator: np.random.Generator) -> np.ndarray:
    """Sample a kernel or bias uniformly from ±1/sqrt(fan_in) (Lillicrap et al., 2016, section 7)."""
    limit = 1.0 / np.sqrt(fan_in)
    return generator.uniform(-limit, limit, shape).astype("float32")

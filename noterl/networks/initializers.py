"""The first weights of the networks that noterl builds, drawn in NumPy so that every backend begins alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def initial_weights(plan: tuple, weights: Sequence[np.ndarray], generator: np.random.Generator) -> list[np.ndarray]:
    """Draw the first weights of the network that `plan` describes, in the place of `weights`."""
    layers = plan[1] if plan[0] == "sequential" else []
    gains = iter([layer[-1] for layer in layers if layer[0] in ("dense", "convolution")])
    drawn: list[np.ndarray] = []
    gain, fan_in = None, 1
    for weight in weights:
        if weight.ndim > 1:  # a kernel; the bias of its layer follows
            gain, fan_in = next(gains, None), int(np.prod(weight.shape[:-1]))
        if gain is None:
            drawn.append(fan_in_uniform(weight.shape, fan_in, generator))
        else:
            drawn.append(orthogonal(weight.shape, gain, generator) if weight.ndim > 1 else np.zeros_like(weight))
    if layers and layers[-1][0] == "log_std":
        drawn[-1] = np.full_like(drawn[-1], layers[-1][1])
    return drawn


def orthogonal(shape: tuple[int, ...], gain: float, generator: np.random.Generator) -> np.ndarray:
    """Draw a kernel whose columns or rows are orthogonal and of length `gain` (Saxe et al., 2014)."""
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    basis, triangle = np.linalg.qr(generator.standard_normal((max(rows, columns), min(rows, columns))))
    basis = basis * np.sign(np.diag(triangle))  # or the draw would not be uniform
    return (gain * (basis if rows >= columns else basis.T)).reshape(shape).astype("float32")


def fan_in_uniform(shape: tuple[int, ...], fan_in: int, generator: np.random.Generator) -> np.ndarray:
    """Draw a layer's kernel or bias uniformly from ±1/sqrt(fan_in) (Lillicrap et al., 2016, section 7)."""
    limit = 1.0 / np.sqrt(fan_in)
    return generator.uniform(-limit, limit, shape).astype("float32")

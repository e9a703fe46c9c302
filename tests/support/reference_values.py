"""Losses of the agents with distributions of values, in NumPy and float64, written as the papers' loops.

They share no code with noterl. `gradients` differentiates any of them by central differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Array = np.ndarray
Weights = Sequence[Array]


def gradients(loss: Callable[[list[Array]], float], weights: Weights, step: float = 1e-6) -> list[Array]:
    """Return the gradient of a loss by central differences."""
    weights = [np.array(weight, np.float64) for weight in weights]
    slopes = [np.zeros_like(weight) for weight in weights]
    for weight, slope in zip(weights, slopes, strict=True):
        for place in np.ndindex(weight.shape):
            before, ends = weight[place], []
            for change in (step, -step):
                weight[place] = before + change
                ends.append(loss(weights))
            weight[place] = before
            slope[place] = (ends[0] - ends[1]) / (2 * step)
    return slopes


def relu(x: Array) -> Array:
    return np.maximum(x, 0.0)


def mlp(x: Array, weights: Weights) -> Array:
    """Return the outputs of dense layers with ReLUs between them."""
    for layer in range(0, len(weights), 2):
        x = (relu(x) if layer else x) @ weights[layer] + weights[layer + 1]
    return x


def huber(error: float) -> float:
    return 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5


def quantile_loss(own: Array, target: Array, fractions: Array) -> float:
    """Return Dabney et al. (2018a), algorithm 1: the sum over own quantiles of the mean over those of the target."""
    total = 0.0
    for theta, tau in zip(own, fractions, strict=True):
        total += np.mean([abs(tau - (value - theta < 0)) * huber(value - theta) for value in target])
    return total


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max())
    return powers / powers.sum()


def projection(probability: Array, reward: float, discount: float, support: Array) -> Array:
    """Return Bellemare et al. (2017), algorithm 1."""
    low, high = support[0], support[-1]
    step = (high - low) / (len(support) - 1)
    target = np.zeros(len(support))
    for share, atom in zip(probability, support, strict=True):
        place = (min(high, max(low, reward + discount * atom)) - low) / step
        place = min(place, len(support) - 1.0)  # rounding
        lower, upper = int(np.floor(place)), int(np.ceil(place))
        if lower == upper:
            target[lower] += share
        else:
            target[lower] += share * (upper - place)
            target[upper] += share * (place - lower)
    return target


def implicit_quantiles(observation: Array, fractions: Array, weights: Weights) -> Array:
    """Return Dabney et al. (2018b), equation 4, `[Z, A]`, for one observation; the first layers are psi's and phi's."""
    features = relu(mlp(observation[None], weights[:2]))[0]
    rows = []
    for tau in fractions:
        cosines = np.array([np.cos(np.pi * i * tau) for i in range(64)])
        embedding = relu(cosines @ weights[2] + weights[3])
        rows.append(mlp((features * embedding)[None], weights[4:])[0])
    return np.array(rows)

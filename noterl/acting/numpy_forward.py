"""A network as a NumPy function: dense layers, activations and dueling streams.

The function can be pickled, so worker processes use it too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

Step = Callable[[np.ndarray, list[np.ndarray]], np.ndarray]


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0, out=x)


def _tanh(x: np.ndarray) -> np.ndarray:
    return np.tanh(x, out=x)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)), computed from tanh, which does not overflow."""
    half: np.ndarray = np.tanh(0.5 * x)
    return 0.5 * half + 0.5


def _elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def _silu(x: np.ndarray) -> np.ndarray:
    return x * _sigmoid(x)


def _linear(x: np.ndarray) -> np.ndarray:
    return x


_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": _relu,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "elu": _elu,
    "silu": _silu,
    "linear": _linear,
}


def run_program(program: Step, observations: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    """Return the outputs `[N, ...]` of a function of `describe` for observations `[N, ...]`."""
    if len(observations) == 1 and observations.ndim == 2:
        # A vector times a matrix takes half the time of a matrix with one row.
        return program(observations[0], weights)[None]
    return program(observations, weights)


def describe(network: Any) -> tuple[Step, list[Any]] | None:
    """Return a network as a NumPy function of `(observations, weights)`, and the variables that hold these weights.

    Supports Keras Sequential models and `torch.nn.Sequential` of dense layers, activations and Flatten, and the dueling
    networks of `noterl.networks`. Returns None for any other network.
    """
    variables: list[Any] = []
    program = _describe(network, variables)
    return None if program is None else (program, variables)


def _describe(network: Any, variables: list[Any]) -> Step | None:
    from noterl import networks

    if type(network).__name__ == "Dueling" and type(network).__module__.startswith("noterl."):
        trunk, value, advantage = (
            _describe(part, variables) for part in (network.trunk, network.value, network.advantage)
        )
        return (
            None if trunk is None or value is None or advantage is None else partial(_dueling, trunk, value, advantage)
        )
    layers = networks.stacked_layers(network)
    if not layers:
        return None
    flat: list[Step] = []
    for layer in layers:
        steps = _layer(layer, variables)
        if steps is None:
            return None
        flat += steps
    return partial(_run, flat)


def _run(steps: list[Step], x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    for step in steps:
        x = step(x, weights)
    return x


def _dueling(trunk: Step, value: Step, advantage: Step, x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    features = trunk(x, weights)
    advantages = advantage(features, weights)
    return value(features, weights) + advantages - advantages.mean(-1, keepdims=True)


def _flatten(x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    return x if x.ndim == 1 else x.reshape(len(x), -1)


def _scale(factor: np.float32, x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    return x.astype(np.float32) * factor


def _append_log_std(position: int, x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([x, np.broadcast_to(weights[position], x.shape)], axis=-1)


def _activate(activation: Callable[[np.ndarray], np.ndarray], x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    return activation(x.copy())  # without the copy, it could change the observations


def _layer(layer: Any, variables: list[Any]) -> list[Step] | None:
    """Return one layer as steps and append the variables that it reads; None for a layer without a NumPy form."""
    from noterl import networks

    if not type(layer).__module__.startswith(("keras.", "torch.nn.", "noterl.")):
        return None
    kind = type(layer).__name__
    if kind == "Flatten":
        return [_flatten]
    if kind in ("Identity", "InputLayer", "Float"):  # NumPy computes bytes times float32 in float32
        return []
    if kind in ("Scale", "Rescaling"):
        factor = np.float32(layer.factor if kind == "Scale" else layer.scale)
        return None if getattr(layer, "offset", 0) else [partial(_scale, factor)]
    if kind in ("Dense", "Linear"):
        return _dense(layer, variables)
    if kind == "LogStd":
        position = len(variables)
        variables += networks.variables(layer)
        return [partial(_append_log_std, position)]
    if kind == "Activation":
        kind = layer.activation.__name__
    parameters = [getattr(layer, name, default) for name, default in (("negative_slope", 0.0), ("max_value", None))]
    if kind.lower() in ("relu", "tanh", "sigmoid", "silu") and parameters in ([0.0, None], [0, None]):
        return [partial(_activate, _ACTIVATIONS[kind.lower()])]
    return None


def _dense(layer: Any, variables: list[Any]) -> list[Step] | None:
    from noterl import networks
    from noterl.backends import keras

    first = len(variables)
    found = networks.variables(layer)
    if len(found) != 2:
        return None
    variables += found
    if networks.is_module(layer):
        return [partial(_linear_module, first)]
    activation = getattr(layer.activation, "__name__", "")
    if activation not in _ACTIVATIONS or layer.activation is not getattr(keras.activations, activation, None):
        return None
    return [partial(_dense_layer, first, _ACTIVATIONS[activation])]


def _linear_module(first: int, x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    return _affine(x, weights[first].T, weights[first + 1])


def _dense_layer(
    first: int, activation: Callable[[np.ndarray], np.ndarray], x: np.ndarray, weights: list[np.ndarray]
) -> np.ndarray:
    return activation(_affine(x, weights[first], weights[first + 1]))


def _affine(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
    product = x @ kernel
    product += bias
    return product

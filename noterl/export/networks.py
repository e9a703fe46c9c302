"""Networks as operations: those of noterl's builders, Keras models, and stacks of torch modules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from noterl import networks
from noterl.export.graph import Array, Graph
from noterl.networks.config import describe, operations_of

_MERGES = ("Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract")
_MODULES = {
    "ReLU": "relu",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "ELU": "elu",
    "SiLU": "silu",
    "GELU": "gelu",
    "Softplus": "softplus",
}


class UnsupportedNetworkError(ValueError):
    """A network cannot be written as operations."""


def add_network(graph: Graph, network: Any, inputs: int, shape: tuple[int, ...]) -> int:
    """Add the operations of a network and return the position of its output.

    Args:
        graph: receives the operations.
        network: a Keras model or a torch module. Of several outputs, the first is used.
        inputs: the position of the encoded observations.
        shape: the shape of one encoded observation.

    Raises:
        UnsupportedNetworkError: if an operation is not supported.
    """
    plan, _ = getattr(network, "noterl_recipe", (None, ()))
    if plan is not None:
        weights = networks.get_weights(network)
        if sorted(networks.plan_sizes(plan, shape)) == sorted(map(np.size, weights)):
            return _add_plan(graph, plan, inputs, iter(weights))
    if networks.is_module(network):
        return _add_modules(graph, networks.stacked_layers(network), inputs, network)
    stored = describe(network)
    if stored is None:
        raise UnsupportedNetworkError(
            f"{type(network).__name__} is not a Sequential or Functional model of known layers"
        )
    return _add_keras(graph, network, stored, inputs)


def _add_plan(graph: Graph, plan: tuple, x: int, weights: Iterator[Array]) -> int:
    if plan[0] == "sequential":
        return _add_stack(graph, plan[1], x, weights)
    _, trunk, stream, outputs = plan
    x = _add_stack(graph, trunk, x, weights)
    value = _add_stack(graph, [*stream, ("dense", 1, "linear")], x, weights)
    advantage = _add_stack(graph, [*stream, ("dense", outputs, "linear")], x, weights)
    return graph.add("add", (value, graph.add("center", advantage)))


def _add_stack(graph: Graph, layers: Sequence[tuple], x: int, weights: Iterator[Array]) -> int:
    for kind, *rest in layers:
        if kind == "dense":
            x = _add_dense(graph, x, next(weights), next(weights), rest[1])
        elif kind == "convolution":
            x = graph.add("convolution", x, kernel=next(weights), bias=next(weights), strides=(rest[2], rest[2]))
            x = _add_activation(graph, x, rest[3])
        elif kind == "encoders":
            columns = [(graph.add("columns", x, start=start, stop=stop), inner) for start, stop, inner in rest[0]]
            x = graph.add("concatenate", [_add_stack(graph, inner, part, weights) for part, inner in columns])
        elif kind == "scale":
            x = graph.add("scale", x, factor=float(rest[0]), offset=0.0)
        elif kind == "rearrange":
            x = graph.add("rearrange", x, axes=tuple(rest[0]), shape=tuple(rest[1]))
        elif kind == "log_std":
            x = graph.add("append", x, values=next(weights))
        else:
            x = graph.add("flatten", x)
    return x


def _add_dense(graph: Graph, x: int, kernel: Array, bias: Array | None, activation: str = "linear") -> int:
    bias = np.zeros(kernel.shape[1], np.float32) if bias is None else bias
    return _add_activation(graph, graph.add("dense", x, kernel=kernel, bias=bias), activation)


def _add_activation(graph: Graph, x: int, name: str) -> int:
    if name == "leaky_relu":
        return graph.add("leaky_relu", x, slope=0.2)  # the default of keras.activations.leaky_relu
    return x if name == "linear" else graph.add("activation", x, name=name)


def _add_modules(graph: Graph, layers: Sequence[Any], x: int, network: Any) -> int:
    if not layers:
        raise UnsupportedNetworkError(f"{type(network).__name__} is not a torch.nn.Sequential")
    for layer in layers:
        kind, weights = type(layer).__name__, networks.get_weights(layer)
        if not type(layer).__module__.startswith("torch.nn."):
            raise UnsupportedNetworkError(f"the module {kind} is not one of torch.nn")
        if kind == "Linear":
            x = _add_dense(graph, x, weights[0], weights[1] if len(weights) > 1 else None)
        elif kind == "Flatten" and layer.start_dim == 1 and layer.end_dim == -1:
            x = graph.add("flatten", x)
        elif kind in _MODULES and _has_defaults(layer):
            x = graph.add("activation", x, name=_MODULES[kind])
        elif kind not in ("Identity", "Dropout"):
            raise UnsupportedNetworkError(f"the module {kind} is not supported")
    return x


def _has_defaults(layer: Any) -> bool:
    """Return whether an activation of torch has the default arguments that change its results."""
    defaults = {"alpha": 1.0, "approximate": "none", "beta": 1.0, "threshold": 20.0}
    return all(getattr(layer, name, value) == value for name, value in defaults.items())


def _add_keras(graph: Graph, network: Any, stored: Any, x: int) -> int:
    places = {-1: x}
    for index, ((name, arguments, inputs), layer) in enumerate(zip(stored.layers, operations_of(network), strict=True)):
        received = [places[place] for place in inputs]
        weights = networks.get_weights(layer) if hasattr(layer, "variables") else []
        places[index] = _add_layer(graph, name, arguments, received, weights)
    return places[stored.outputs[0] if stored.outputs else len(stored.layers) - 1]


def _add_layer(graph: Graph, name: str, settings: dict[str, Any], received: list[int], weights: list[Array]) -> int:
    """Add a Keras layer."""
    x = received[0]
    if name in _MERGES:
        return graph.add(name.lower(), received)
    if name == "Concatenate" and settings["axis"] in (-1, [-1]):
        return graph.add("concatenate", received)
    if name == "Dense":
        bias = weights[1] if settings["use_bias"] else None
        return _add_dense(graph, x, weights[0], bias, settings["activation"])
    if name == "Conv2D" and _is_plain_convolution(settings):
        bias = weights[1] if settings["use_bias"] else np.zeros(weights[0].shape[-1], np.float32)
        strides = tuple(settings["strides"])
        return _add_activation(
            graph, graph.add("convolution", x, kernel=weights[0], bias=bias, strides=strides), settings["activation"]
        )
    if name in ("LayerNormalization", "BatchNormalization") and settings["axis"] in (-1, [-1]):
        return _add_normalization(graph, name, settings, x, weights)
    return _add_simple_layer(graph, name, settings, x)


def _add_simple_layer(graph: Graph, name: str, settings: dict[str, Any], x: int) -> int:
    """Add a Keras layer without weights."""
    if name == "Activation":
        return _add_activation(graph, x, settings["activation"])
    if name == "Dropout":
        return x
    if name == "Flatten" and settings["data_format"] == "channels_last":
        return graph.add("flatten", x)
    if name == "Reshape" and -1 not in settings["target_shape"]:
        return graph.add("reshape", x, shape=tuple(settings["target_shape"]))
    if name == "Rescaling" and all(isinstance(settings[key], int | float) for key in ("scale", "offset")):
        return graph.add("scale", x, factor=float(settings["scale"]), offset=float(settings["offset"]))
    if (
        name == "ReLU"
        and not settings["negative_slope"]
        and not settings["threshold"]
        and settings["max_value"] is None
    ):
        return graph.add("activation", x, name="relu")
    if name == "LeakyReLU":
        return graph.add("leaky_relu", x, slope=float(settings["negative_slope"]))
    if name == "ELU" and settings["alpha"] == 1:
        return graph.add("activation", x, name="elu")
    if name == "Softmax" and settings["axis"] == -1:
        return graph.add("activation", x, name="softmax")
    raise UnsupportedNetworkError(f"the layer {name} is not supported with the arguments {settings}")


def _is_plain_convolution(settings: dict[str, Any]) -> bool:
    last, valid = settings["data_format"] == "channels_last", settings["padding"] == "valid"
    return last and valid and settings["groups"] == 1 and math.prod(settings["dilation_rate"]) == 1


def _add_normalization(graph: Graph, name: str, settings: dict[str, Any], x: int, weights: list[Array]) -> int:
    held = iter(weights)
    size = weights[-1].shape if weights else ()
    gamma = next(held) if settings["scale"] else np.ones(size, np.float32)
    beta = next(held) if settings["center"] else np.zeros(size, np.float32)
    if name == "LayerNormalization":
        return graph.add("layer_norm", x, gamma=gamma, beta=beta, epsilon=float(settings["epsilon"]))
    mean, variance = next(held), next(held)
    factor = gamma / np.sqrt(variance + settings["epsilon"], dtype=np.float32)
    return graph.add("affine", x, factor=factor, offset=beta - mean * factor)

"""A Keras model of a policy, made of Keras's own layers and operations only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from noterl.backends import keras, ops
from noterl.export.graph import Graph, Node

Tensor = Any

_MERGES = {"add": "Add", "subtract": "Subtract", "multiply": "Multiply", "average": "Average"} | {
    "maximum": "Maximum",
    "minimum": "Minimum",
}


def keras_model(graph: Graph, name: str) -> Any:
    """Return the model: a dict of results by name for one tensor, or for a dict of tensors by the inputs' names."""
    tensors: list[Tensor] = []
    inputs: dict[str, Tensor] = {}
    for node in graph.nodes:
        received = [tensors[each] for each in node.inputs]
        if node.kind == "input":
            settings = node.settings
            tensors.append(keras.Input(settings["shape"], name=settings["name"], dtype=settings["dtype"]))
            inputs[settings["name"]] = tensors[-1]
        elif node.kind in _MERGES:
            tensors.append(getattr(keras.layers, _MERGES[node.kind])()(received))
        elif node.kind == "concatenate":
            tensors.append(keras.layers.Concatenate(axis=-1)(received))
        else:
            tensors.append(_BUILDERS[node.kind](node, received[0]))
    outputs = {key: tensors[position] for key, position in graph.outputs.items()}
    return keras.Model(next(iter(inputs.values())) if len(inputs) == 1 else inputs, outputs, name=name)


def _with_weights(layer: Any, x: Tensor, weights: list[np.ndarray]) -> Tensor:
    y = layer(x)
    layer.set_weights(weights)
    return y


# Initial weights are zeros, because Keras's initializers would be compiled on JAX.
def _dense(node: Node, x: Tensor) -> Tensor:
    kernel, bias = node.arrays["kernel"], node.arrays["bias"]
    return _with_weights(keras.layers.Dense(kernel.shape[1], kernel_initializer="zeros"), x, [kernel, bias])


def _convolution(node: Node, x: Tensor) -> Tensor:
    kernel, bias = node.arrays["kernel"], node.arrays["bias"]
    strides = tuple(node.settings["strides"])
    layer = keras.layers.Conv2D(
        kernel.shape[-1], kernel.shape[:2], strides, data_format="channels_last", kernel_initializer="zeros"
    )
    return _with_weights(layer, x, [kernel, bias])


def _layer_norm(node: Node, x: Tensor) -> Tensor:
    layer = keras.layers.LayerNormalization(epsilon=node.settings["epsilon"])
    return _with_weights(layer, x, [node.arrays["gamma"], node.arrays["beta"]])


def _one_hot(node: Node, x: Tensor) -> Tensor:
    sizes = node.settings["sizes"]
    flat = ops.reshape(x, (-1, len(sizes)))
    return ops.concatenate([ops.one_hot(flat[:, i], size, dtype="float32") for i, size in enumerate(sizes)], axis=-1)


def _rearrange(node: Node, x: Tensor) -> Tensor:
    axes = (0, *(axis + 1 for axis in node.settings["axes"]))
    return ops.reshape(ops.transpose(x, axes), (-1, *node.settings["shape"]))


def _normalize(node: Node, x: Tensor) -> Tensor:
    arrays, bound = node.arrays, node.settings["bound"]
    shifted = ops.subtract(ops.subtract(x, arrays["mean"]), arrays["mean_rest"])
    return ops.clip(ops.divide(shifted, arrays["deviation"]), -bound, bound)


def _affine(node: Node, x: Tensor) -> Tensor:
    return ops.add(ops.multiply(x, node.arrays["factor"]), node.arrays["offset"])


def _append(node: Node, x: Tensor) -> Tensor:
    return ops.concatenate([x, ops.add(ops.multiply(x, 0.0), node.arrays["values"])], axis=-1)


def _argmax(node: Node, x: Tensor) -> Tensor:
    parts, start = [], 0
    for size in node.settings["sizes"]:
        parts.append(_first_largest(x[:, start : start + size], size))
        start += size
    return ops.reshape(ops.stack(parts, axis=-1), (-1, *node.settings["shape"]))


def _first_largest(x: Tensor, size: int) -> Tensor:
    """Return the first index of the largest value of each row. tf2onnx cannot convert `keras.ops.argmax`."""
    smaller = ops.cast(ops.less(x, ops.max(x, axis=-1, keepdims=True)), "float32")
    index = np.arange(size, dtype=np.float32)
    return ops.cast(ops.min(ops.add(ops.multiply(smaller, float(size)), index), axis=-1), "int32")


def _positive(node: Node, x: Tensor) -> Tensor:
    return ops.cast(ops.reshape(ops.greater(x, 0.0), (-1, *node.settings["shape"])), "int8")


def _clip(node: Node, x: Tensor) -> Tensor:
    return ops.minimum(ops.maximum(x, node.arrays["low"]), node.arrays["high"])


_BUILDERS: dict[str, Callable[[Node, Tensor], Tensor]] = {
    "float": lambda node, x: ops.cast(x, "float32"),
    "one_hot": _one_hot,
    "flatten": lambda node, x: keras.layers.Flatten(data_format="channels_last")(x),
    "reshape": lambda node, x: ops.reshape(x, (-1, *node.settings["shape"])),
    "columns": lambda node, x: x[:, node.settings["start"] : node.settings["stop"]],
    "rearrange": _rearrange,
    "normalize": _normalize,
    "scale": lambda node, x: keras.layers.Rescaling(node.settings["factor"], node.settings["offset"])(x),
    "affine": _affine,
    "dense": _dense,
    "convolution": _convolution,
    "activation": lambda node, x: keras.layers.Activation(node.settings["name"])(x),
    "leaky_relu": lambda node, x: keras.layers.LeakyReLU(negative_slope=node.settings["slope"])(x),
    "layer_norm": _layer_norm,
    "center": lambda node, x: ops.subtract(x, ops.mean(x, axis=-1, keepdims=True)),
    "append": _append,
    "argmax": _argmax,
    "positive": _positive,
    "clip": _clip,
}

"""A Keras model of a policy, made of Keras's own layers and operations only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from noterl.backends import keras, ops
from noterl.networks.graph import Graph, Node
from noterl.networks.layers import ACTIVATION_TABLE

Tensor = Any


def keras_model(graph: Graph, name: str) -> Any:
    """Return the model: a dict of results by name for one tensor, or for a dict of tensors by the inputs' names."""
    tensors: list[Tensor] = []
    inputs: dict[str, Tensor] = {}
    for node in graph.nodes:
        received = [tensors[place] for place in node.inputs]
        if node.kind == "input":
            settings = node.settings
            tensors.append(keras.Input(settings["shape"], name=settings["name"], dtype=settings["dtype"]))
            inputs[settings["name"]] = tensors[-1]
        elif node.kind == "concatenate":
            tensors.append(ops.concatenate(received, axis=-1))
        elif node.kind in ACTIVATION_TABLE and not node.settings:
            tensors.append(keras.layers.Activation(node.kind)(received[0]))
        elif node.kind in _BUILDERS:
            tensors.append(_BUILDERS[node.kind](node, received[0]))
        else:  # operations of two inputs, such as add
            tensors.append(getattr(ops, node.kind)(*received))
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


def _normalization(kind: Any) -> Callable[[Node, Tensor], Tensor]:
    return lambda node, x: _with_weights(kind(epsilon=node.settings["epsilon"]), x, list(node.arrays.values()))


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
    return ops.add(ops.multiply(x, node.arrays["scale"]), node.arrays["offset"])


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
    "as_float32": lambda node, x: ops.cast(x, "float32"),
    "one_hot": _one_hot,
    "flatten": lambda node, x: keras.layers.Flatten(data_format="channels_last")(x),
    "reshape": lambda node, x: ops.reshape(x, (-1, *node.settings["target_shape"])),
    "columns": lambda node, x: x[:, node.settings["start"] : node.settings["stop"]],
    "rearrange": _rearrange,
    "normalize": _normalize,
    "rescale": lambda node, x: keras.layers.Rescaling(**node.settings)(x),
    "affine": _affine,
    "dense": _dense,
    "convolution": _convolution,
    "leaky_relu": lambda node, x: keras.layers.LeakyReLU(**node.settings)(x),
    "layer_norm": _normalization(keras.layers.LayerNormalization),
    "batch_norm": _normalization(keras.layers.BatchNormalization),
    "mean": lambda node, x: ops.mean(x, axis=-1, keepdims=True),
    "append": _append,
    "argmax": _argmax,
    "positive": _positive,
    "clip": _clip,
}

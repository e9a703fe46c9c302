"""A Keras model of a policy, made of Keras's own layers and operations only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from noterl.backends import keras, ops
from noterl.heads.base import split
from noterl.networks.graph import Graph, Node
from noterl.networks.layers import ACTIVATION_TABLE

Tensor = Any


def keras_model(graph: Graph, name: str) -> Any:
    """Return the model: a dict of results by name for one tensor, or for a dict of tensors by the inputs' names."""
    tensors: list[Tensor] = []
    for node in graph.nodes:
        tensors.append(_apply(node, [tensors[place] for place in node.inputs]))
    starts = [tensor for node, tensor in zip(graph.nodes, tensors, strict=True) if node.kind == "input"]
    inputs = dict(zip(graph.inputs(), starts, strict=True))
    outputs = {key: tensors[position] for key, position in graph.outputs.items()}
    return keras.Model(next(iter(inputs.values())) if len(inputs) == 1 else inputs, outputs, name=name)


def _apply(node: Node, inputs: list[Tensor]) -> Tensor:
    """Return the result of an operation."""
    if node.kind == "input":
        return keras.Input(**node.settings)
    arrays = list(node.arrays.values())
    if node.kind in _LAYERS:
        layer = _LAYERS[node.kind](node)
        output = layer(*inputs)
        layer.set_weights(arrays)
        return output
    if node.kind in ACTIVATION_TABLE:
        return keras.layers.Activation(node.kind)(*inputs)
    # The other operations of two inputs have the names of Keras's operations.
    function = _OPERATIONS.get(node.kind) or getattr(ops, node.kind)
    return function(*inputs, *arrays, **node.settings)


def _convolution(node: Node) -> Any:
    *size, _, filters = node.arrays["kernel"].shape
    strides = node.settings["strides"]
    return keras.layers.Conv2D(filters, size, strides, data_format="channels_last", kernel_initializer="zeros")


# The weights of a layer are the arrays of the operation. Kernels start with zeros, because JAX would compile Keras's
# initializers.
_LAYERS: dict[str, Callable[[Node], Any]] = {
    "dense": lambda node: keras.layers.Dense(node.arrays["kernel"].shape[1], kernel_initializer="zeros"),
    "convolution": _convolution,
    "flatten": lambda node: keras.layers.Flatten(data_format="channels_last"),
    "rescale": lambda node: keras.layers.Rescaling(**node.settings),
    "batch_norm": lambda node: keras.layers.BatchNormalization(**node.settings),
    "leaky_relu": lambda node: keras.layers.LeakyReLU(**node.settings),
}


def _one_hot(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    flat = ops.reshape(x, (-1, len(sizes)))
    return ops.concatenate([ops.one_hot(flat[:, i], size, dtype="float32") for i, size in enumerate(sizes)], axis=-1)


def _normalize(x: Tensor, mean: np.ndarray, mean_rest: np.ndarray, deviation: np.ndarray, bound: float) -> Tensor:
    shifted = ops.subtract(ops.subtract(x, mean), mean_rest)
    return ops.clip(ops.divide(shifted, deviation), -bound, bound)


def _layer_norm(x: Tensor, gamma: np.ndarray, beta: np.ndarray, epsilon: float) -> Tensor:
    """Return the normalized rows. torch's ONNX exporter cannot convert `keras.layers.LayerNormalization`."""
    shifted = ops.subtract(x, ops.mean(x, axis=-1, keepdims=True))
    variance = ops.mean(ops.square(shifted), axis=-1, keepdims=True)
    return ops.add(ops.multiply(ops.divide(shifted, ops.sqrt(ops.add(variance, epsilon))), gamma), beta)


def _argmax(x: Tensor, sizes: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    groups = [_first_largest(part) for part in split(x, sizes)]
    return ops.reshape(ops.stack(groups, axis=-1), (-1, *shape))


def _first_largest(x: Tensor) -> Tensor:
    """Return the first index of the largest value of each row. tf2onnx cannot convert `keras.ops.argmax`."""
    smaller = ops.cast(ops.less(x, ops.max(x, axis=-1, keepdims=True)), "float32")
    size = x.shape[-1]
    index = np.arange(size, dtype=np.float32)
    return ops.cast(ops.min(ops.add(ops.multiply(smaller, float(size)), index), axis=-1), "int32")


# Functions of the inputs, the arrays and the settings, as in `noterl.acting.numpy_layers`.
_OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "as_float32": lambda x: ops.cast(x, "float32"),
    "one_hot": _one_hot,
    "reshape": lambda x, target_shape: ops.reshape(x, (-1, *target_shape)),
    "concatenate": lambda *inputs: ops.concatenate(inputs, axis=-1),
    "columns": lambda x, start, stop: x[:, start:stop],
    "rearrange": lambda x, axes, shape: ops.reshape(ops.transpose(x, (0, *(axis + 1 for axis in axes))), (-1, *shape)),
    "normalize": _normalize,
    "affine": lambda x, scale, offset: ops.add(ops.multiply(x, scale), offset),
    "mean": lambda x: ops.mean(x, axis=-1, keepdims=True),
    "layer_norm": _layer_norm,
    "append": lambda x, values: ops.concatenate([x, ops.add(ops.multiply(x, 0.0), values)], axis=-1),
    # A sum of all inputs, because results that do not depend on the inputs are not part of a model.
    "fixed": lambda x, values: ops.add(ops.multiply(ops.sum(x), 0.0), values),
    "split": lambda x, groups: ops.reshape(x, (-1, groups, x.shape[-1] // groups)),
    "join": lambda x: ops.reshape(x, (-1, x.shape[-2] * x.shape[-1])),
    "average": lambda x: ops.mean(x, axis=-2),
    "expectation": lambda x, support: ops.sum(ops.multiply(ops.softmax(x, axis=-2), support[:, None]), axis=-2),
    "argmax": _argmax,
    "positive": lambda x, shape: ops.cast(ops.reshape(ops.greater(x, 0.0), (-1, *shape)), "int8"),
    "clip": lambda x, low, high: ops.minimum(ops.maximum(x, low), high),
}

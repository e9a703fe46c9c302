"""Each row of the tables of layers and activations is resolved on all sides, and the sides compute the same numbers."""

from __future__ import annotations

import inspect
import io
import math
import types
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from noterl.acting import numpy_layers
from noterl.acting.numpy_forward import run_graph
from noterl.export.keras_model import keras_model
from noterl.export.torch_file import _CODE, torch_source, torch_weights
from noterl.networks.config import StoredNetwork, stored
from noterl.networks.graph import Graph, UnsupportedNetworkError, add_network
from noterl.networks.layers import ACTIVATION_TABLE, LAYER_TABLE
from tests.support.keras_version import has_keras

# All sides compute on this backend, and Keras gives the same numbers on the others.
pytestmark = pytest.mark.backends("torch")

VALUES = np.linspace(-8, 8, 60, dtype=np.float32).reshape(12, 5)
LAST = {"data_format": "channels_last"}

# For each row: the layer, the shape of its input, and the number of its inputs.
CASES: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "Activation": (lambda: layers.Activation("selu"), (5,), 1),
    "Add": (layers.Add, (5,), 3),
    "Average": (layers.Average, (5,), 3),
    "AveragePooling1D": (lambda: layers.AveragePooling1D(2, **LAST), (6, 2), 1),
    "AveragePooling2D": (lambda: layers.AveragePooling2D(2, **LAST), (6, 6, 2), 1),
    "BatchNormalization": (layers.BatchNormalization, (5,), 1),
    "Concatenate": (layers.Concatenate, (5,), 3),
    "Conv1D": (lambda: layers.Conv1D(3, 2, **LAST), (6, 2), 1),
    "Conv2D": (lambda: layers.Conv2D(3, (2, 3), strides=2, activation="elu", **LAST), (6, 7, 2), 1),
    "Dense": (lambda: layers.Dense(4, activation="gelu", use_bias=False), (5,), 1),
    "Dropout": (lambda: layers.Dropout(0.5), (5,), 1),
    "ELU": (layers.ELU, (5,), 1),
    "Flatten": (lambda: layers.Flatten(**LAST), (2, 3), 1),
    "GlobalAveragePooling1D": (lambda: layers.GlobalAveragePooling1D(**LAST), (6, 2), 1),
    "GlobalAveragePooling2D": (lambda: layers.GlobalAveragePooling2D(**LAST), (6, 6, 2), 1),
    "GlobalMaxPooling1D": (lambda: layers.GlobalMaxPooling1D(**LAST), (6, 2), 1),
    "GlobalMaxPooling2D": (lambda: layers.GlobalMaxPooling2D(**LAST), (6, 6, 2), 1),
    "LayerNormalization": (lambda: layers.LayerNormalization(epsilon=0.1, center=False), (5,), 1),
    "LeakyReLU": (lambda: layers.LeakyReLU(0.1), (5,), 1),
    "Maximum": (layers.Maximum, (5,), 3),
    "MaxPooling1D": (lambda: layers.MaxPooling1D(2, **LAST), (6, 2), 1),
    "MaxPooling2D": (lambda: layers.MaxPooling2D(2, **LAST), (6, 6, 2), 1),
    "Minimum": (layers.Minimum, (5,), 3),
    "Multiply": (layers.Multiply, (5,), 3),
    "Permute": (lambda: layers.Permute((2, 1)), (2, 3), 1),
    "ReLU": (layers.ReLU, (5,), 1),
    "Rescaling": (lambda: layers.Rescaling(0.5, 1.0), (5,), 1),
    "Reshape": (lambda: layers.Reshape((3, 2)), (6,), 1),
    "Softmax": (layers.Softmax, (5,), 1),
    "Subtract": (layers.Subtract, (5,), 2),
}


def torch_results(graph: Graph, inputs: np.ndarray) -> np.ndarray:
    """Return the outputs of the exported file for torch."""
    import torch

    module: Any = types.ModuleType("policy")
    vars(module)["__file__"] = "policy.py"
    exec(torch_source(graph, "policy"), vars(module))
    policy = module.Policy()
    policy.load_state_dict(torch.load(io.BytesIO(torch_weights(graph)), weights_only=True)["state"])
    return policy.eval()(torch.as_tensor(inputs))["outputs"].detach().numpy()


def assert_all_sides_equal(graph: Graph, inputs: np.ndarray, expected: np.ndarray) -> None:
    results = {
        "NumPy": run_graph(graph, {"observation": inputs})["outputs"],
        "torch": torch_results(graph, inputs),
        "Keras": ops.convert_to_numpy(keras_model(graph, "policy")(inputs)["outputs"]),
    }
    for side, result in results.items():
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6, err_msg=side)
        assert result.dtype == np.float32, side


def graph_of(shape: tuple[int, ...]) -> tuple[Graph, int]:
    graph = Graph()
    return graph, graph.add("input", name="observation", shape=shape, dtype="float32")


def skip_if_keras_drops(name: str) -> None:
    if name in ("linear", "Dropout") and not has_keras(3, 14):
        pytest.skip("before Keras 3.14, torch has no model of a layer that returns its input")


@pytest.mark.parametrize("name", ACTIVATION_TABLE)
def test_activation_is_the_same_on_all_sides(name: str) -> None:
    from torch import as_tensor, nn

    skip_if_keras_drops(name)
    expected = ops.convert_to_numpy(getattr(keras.activations, name)(ops.convert_to_tensor(VALUES)))
    graph, start = graph_of((5,))
    graph.outputs["outputs"] = graph.activate(name, start)
    assert_all_sides_equal(graph, VALUES, expected)
    module = ACTIVATION_TABLE[name].torch
    if module:
        np.testing.assert_allclose(getattr(nn, module)()(as_tensor(VALUES)).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_every_row_has_a_case() -> None:
    assert set(CASES) == set(LAYER_TABLE)


@pytest.mark.parametrize("name", LAYER_TABLE)
def test_layer_is_the_same_on_all_sides(name: str) -> None:
    skip_if_keras_drops(name)
    build, shape, count = CASES[name]
    start = keras.Input(shape)
    tensors = [start, layers.Rescaling(-2.0)(start), layers.Rescaling(0.5, 3.0)(start)][:count]
    model = keras.Model(start, build()(tensors if LAYER_TABLE[name].merges else start))
    rng = np.random.default_rng(0)
    model.set_weights([rng.uniform(0.5, 1.5, weight.shape) for weight in model.get_weights()])
    inputs = rng.normal(size=(3, *shape)).astype(np.float32)
    expected = ops.convert_to_numpy(model(inputs))

    again = StoredNetwork.from_config(stored({"network": model})["network"].get_config())
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(ops.convert_to_numpy(again(inputs)), expected)

    graph, start = graph_of(shape)
    if not LAYER_TABLE[name].kind:
        with pytest.raises(UnsupportedNetworkError, match=name):
            add_network(graph, model, start)
        return
    graph.outputs["outputs"] = add_network(graph, model, start)
    assert_all_sides_equal(graph.with_values(), inputs, expected)


@pytest.mark.parametrize(
    "build",
    [
        lambda: layers.Conv2D(3, 2, padding="same", **LAST),
        lambda: layers.Conv2D(3, 2, dilation_rate=2, **LAST),
        lambda: layers.LayerNormalization(axis=1),
        lambda: layers.BatchNormalization(axis=1),
        lambda: layers.ReLU(max_value=1.0),
        lambda: layers.ELU(alpha=2.0),
        lambda: layers.Softmax(axis=1),
        lambda: layers.Reshape((-1, 2)),
        lambda: layers.Rescaling([1.0, 2.0]),
        lambda: layers.Rescaling(2.0, offset=[1.0, 2.0]),
    ],
)
def test_arguments_that_an_operation_does_not_support_are_refused(build: Any) -> None:
    layer = build()
    graph, start = graph_of((6, 6, 2))
    with pytest.raises(UnsupportedNetworkError, match=type(layer).__name__):
        add_network(graph, keras.Sequential([keras.Input((6, 6, 2)), layer]), start)


def test_each_operation_has_a_function_and_code() -> None:
    functions = {name for name, value in vars(numpy_layers).items() if inspect.isfunction(value)}
    assert functions - {"run_program", "run_operations", "transposed_dense"} == {*_CODE, *ACTIVATION_TABLE} - {"linear"}


def test_gelu_is_exact_in_float32() -> None:
    x = np.append(np.linspace(-9, 9, 10_001), [1e30, -1e30]).astype(np.float32)
    expected = [0.5 * value * (1 + math.erf(value / math.sqrt(2))) for value in x.tolist()]
    assert (np.abs(numpy_layers.gelu(x) - expected) <= 1.3e-7 * np.abs(x)).all()

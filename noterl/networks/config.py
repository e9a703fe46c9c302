"""Networks in files: the plans of noterl's builders, and Keras models of layers that are known to be harmless.

Keras's own configurations are not used: they name modules to import, and making them imports TensorFlow. Layers are
read from their attributes instead, and built by calling their constructors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from noterl.backends import keras
from noterl.networks.access import is_module, is_network, recipe, variables
from noterl.networks.builders import build_plan
from noterl.networks.layers import ACTIVATION_TABLE, LAYER_TABLE
from noterl.networks.size_limit import NetworkSizeError, claim
from noterl.registry import Configurable, register
from noterl.utils.budget import LIMITS, Budget


@register
class StoredNetwork(Configurable):
    """The configuration of a network in a file; `from_config` returns the network itself.

    Args:
        kind: "plan" for a network of noterl's builders; "Sequential" or "Functional" for a Keras model.
        shape: of the inputs.
        layers: of a plan: the plan. Otherwise a list of `(class, arguments, positions of the inputs in this list)`; the
            inputs of the model have the position -1.
        outputs: positions of the outputs of a Functional model.
    """

    def __init__(self, kind: str, shape: Sequence[int], layers: Any, outputs: Sequence[int] = ()) -> None:
        self.kind: str = kind
        self.shape: tuple[int, ...] = tuple(shape)
        self.layers: Any = layers
        self.outputs: list[int] = list(outputs)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Build the network.

        Raises:
            ValueError: if the configuration is not one that `stored` returns.
            FileError: if the network is larger than a limit; see `size_limit`.
        """
        stored = cls(**config)
        if not all(type(length) is int and length > 0 for length in stored.shape):
            raise ValueError(f"shape must hold positive ints, got {stored.shape!r:.80}")
        return build_plan(stored.layers, stored.shape) if stored.kind == "plan" else build_model(stored)


def stored(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with each network replaced by its `StoredNetwork`, also in lists and tuples.

    A network that cannot be stored stays: a module of torch that noterl has not built, or a Keras model with other
    layers, several inputs, layers that are called twice, or more layers or outputs than a file may have. Networks that
    share weights stay too, because they would not share them after loading.
    """
    found = list(_networks_in(list(arguments.values())))
    held = [id(variable) for network in found for variable in variables(network)]
    if not found or len(set(held)) < len(held):
        return arguments
    return {name: _stored(value) for name, value in arguments.items()}


def _networks_in(value: Any) -> Iterator[Any]:
    """Yield the networks in nested lists and tuples."""
    if is_network(value):
        yield value
    elif type(value) in (list, tuple):
        for element in value:
            yield from _networks_in(element)


def _stored(value: Any) -> Any:
    """Return a value of `stored`; a network that cannot be stored, and any other value, stays."""
    if type(value) in (list, tuple):
        return type(value)(map(_stored, value))
    if not is_network(value):
        return value
    built = recipe(value)
    if built is not None:
        plan, shape = built
        return StoredNetwork("plan", [int(length) for length in shape], _untracked(plan))
    return (None if is_module(value) else describe(value)) or value


def _untracked(value: Any) -> Any:
    """Return nested tuples and lists without the list class of Keras, which attributes of models get."""
    if isinstance(value, tuple | list):
        return (tuple if isinstance(value, tuple) else list)(map(_untracked, value))
    return value


def connections(network: Any) -> tuple[list[Any], list[list[int]], list[int]] | None:
    """Return how the layers of a Sequential or Functional Keras model with one input are connected.

    Returns:
        None for another model, and for a model that calls a layer twice or has a layer with several outputs. Otherwise:

        - the layers, without the input;
        - for each layer, the positions of the layer's inputs in the first list;
        - the positions of the layers that return the outputs of the model.

        The input of the model has the position -1.
    """
    if isinstance(network, keras.Sequential):
        layers = list(network.layers)
        return layers, [[index - 1] for index in range(len(layers))], [len(layers) - 1]
    is_functional = isinstance(network, keras.Model) and type(network).__name__ == "Functional"
    if not is_functional or isinstance(network.output, dict) or isinstance(network.input, dict | list):
        return None
    layers = [operation for operation in network.operations if type(operation) is not keras.layers.InputLayer]
    positions = {id(layer): position for position, layer in enumerate(layers)}
    if any(len(layer._inbound_nodes) != 1 or len(layer._inbound_nodes[0].outputs) != 1 for layer in layers):
        return None

    def positions_of(tensors: Any) -> list[int]:
        return [positions.get(id(tensor._keras_history.operation), -1) for tensor in tensors]

    inputs = [positions_of(layer._inbound_nodes[0].input_tensors) for layer in layers]
    return layers, inputs, positions_of(network.outputs)


def describe(network: Any) -> StoredNetwork | None:
    """Return the configuration of a Keras model; None if it cannot be stored."""
    is_sequential = type(network) is keras.Sequential
    connected = connections(network) if is_sequential or type(network).__name__ == "Functional" else None
    if connected is None or not network.built or len(network.inputs) != 1:
        return None
    layers, places, outputs = connected
    arguments = [None if _is_restricted(layer) else layer_arguments(layer) for layer in layers]
    outputs_of_layers = sum(math.prod(layer.output.shape[1:]) for layer in layers)
    if None in arguments or len(layers) > LIMITS["layers"] or outputs_of_layers > LIMITS["outputs of layers"]:
        return None
    rows = [[type(layer).__name__, *row] for layer, *row in zip(layers, arguments, places, strict=True)]
    shape = tuple(network.inputs[0].shape[1:])
    return StoredNetwork(type(network).__name__, shape, rows, [] if is_sequential else outputs)


def _is_restricted(layer: Any) -> bool:
    """Return whether a layer has a regularizer or a constraint, which a file cannot hold."""
    return any(value is not None for key, value in vars(layer).items() if key.endswith(("_regularizer", "_constraint")))


def layer_arguments(layer: Any) -> dict[str, Any] | None:
    """Return the arguments of a Keras layer; None if it is not in the table of layers, or has other arguments."""
    name = type(layer).__name__
    is_known = name in LAYER_TABLE and type(layer) is getattr(keras.layers, name)
    has_others = getattr(layer, "renorm", False) or getattr(layer, "noise_shape", None)
    if not is_known or has_others or layer.dtype_policy.name != "float32":
        return None
    arguments = {argument: _plain(getattr(layer, argument)) for argument in LAYER_TABLE[name].arguments}
    if LAYER_TABLE[name].has_activation:
        activation = "linear" if layer.activation is None else getattr(layer.activation, "__name__", "")
        is_of_keras = layer.activation in (None, getattr(keras.activations, activation, None))
        if activation not in ACTIVATION_TABLE or not is_of_keras:
            return None
        arguments["activation"] = activation
    if not all(_is_plain(value) for value in arguments.values()):
        return None
    return arguments if layer.trainable else {**arguments, "trainable": False}


def _plain(value: Any) -> Any:
    if isinstance(value, keras.random.SeedGenerator):
        return value._initial_seed
    return [_plain(element) for element in value] if isinstance(value, list | tuple) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(type(element) in (int, float) for element in value)
    return value is None or type(value) in (bool, int, float, str)


def build_model(stored: StoredNetwork, initializers: Mapping[int, Mapping[str, Any]] | None = None) -> Any:
    """Build a Keras model.

    Args:
        stored: its configuration.
        initializers: the initializers of some layers, as attributes by the positions of the layers.

    Raises:
        ValueError: if the configuration is not one that `stored` returns.
        FileError: as `StoredNetwork.from_config`.
        NetworkSizeError: if the model has too many weights or layers, or its layers return too much.
    """
    if stored.kind not in ("Sequential", "Functional"):
        raise ValueError(f"there is no network of the kind {stored.kind!r:.40}")
    start = keras.Input(stored.shape)
    layers: list[Any] = []
    tensors: list[Any] = []
    budget = Budget("the model in a file", NetworkSizeError)
    for position, (name, arguments, places) in enumerate(stored.layers):
        budget.spend("layers")
        layer = _make_layer(name, arguments)
        for attribute, initializer in (initializers or {}).get(position, {}).items():
            setattr(layer, attribute, initializer)
        if not places or not all(type(place) is int and -1 <= place < len(tensors) for place in places):
            raise ValueError(f"{name!r:.40} has the inputs {places!r:.80}, which do not precede it")
        inputs = [start if place == -1 else tensors[place] for place in places]
        claim(_weights(layer, tuple(inputs[0].shape[1:])), budget)
        tensors.append(layer(inputs) if LAYER_TABLE[name].merges else layer(*inputs))
        budget.spend("outputs of layers", math.prod(tensors[-1].shape[1:]))
        layers.append(layer)
    if stored.kind == "Sequential":
        return keras.Sequential([keras.Input(stored.shape), *layers])
    ends = [start if place == -1 else tensors[place] for place in stored.outputs]
    return keras.Model(start, ends[0] if len(ends) == 1 else ends)


def _make_layer(name: Any, arguments: Any) -> Any:
    """Return a layer of the allow-list, not built yet."""
    if name not in LAYER_TABLE:
        raise ValueError(f"a file cannot hold the layer {name!r:.40}")
    allowed = LAYER_TABLE[name].stored
    if (
        not isinstance(arguments, dict)
        or not arguments.keys() <= allowed
        or not all(map(_is_plain, arguments.values()))
    ):
        raise ValueError(f"{name} has the arguments {arguments!r:.120}; a file may hold {sorted(allowed)}")
    if arguments.get("activation", "linear") not in ACTIVATION_TABLE:
        raise ValueError(f"{name} has the activation {arguments['activation']!r:.40}")
    seed = arguments.get("seed")
    if seed is not None and not (type(seed) is int and 0 <= seed < 2**32):
        raise ValueError(f"{name} has the seed {seed!r:.40}; it must be an int of at least 0 and below 2**32")
    named = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
    if name in ("LayerNormalization",) and isinstance(named.get("axis"), tuple):
        named["axis"] = list(named["axis"])
    return getattr(keras.layers, name)(**named)


def _weights(layer: Any, shape: tuple[int, ...]) -> list[int]:
    """Return the number of values in each weight that a layer adds for inputs of this shape."""
    name = type(layer).__name__
    if name == "Dense":
        return [shape[-1] * layer.units, layer.units]
    if name in ("Conv1D", "Conv2D"):
        channels = shape[-1] if layer.data_format == "channels_last" else shape[0]
        return [math.prod(layer.kernel_size) * channels * layer.filters, layer.filters]
    return [4 * math.prod(shape)] if name in ("BatchNormalization", "LayerNormalization") else []

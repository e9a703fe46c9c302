"""The computation of a network as a list of operations, for NumPy acting and for exported files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from noterl import backends
from noterl.backends import renorm
from noterl.networks.access import is_module, keras_layout, recipe, stacked_layers, weight_variables
from noterl.networks.config import connections, layer_arguments
from noterl.networks.distributions import Distribution, ImplicitQuantiles
from noterl.networks.layers import ACTIVATION_TABLE, LAYER_TABLE, NORM_EPSILON, TORCH_DEFAULTS, num_values, stacks
from noterl.networks.noisy import NoisyNetwork
from noterl.networks.recurrent import Cell, RecurrentNetwork

Array = np.ndarray[Any, Any]

_TORCH_ACTIVATIONS = {activation.torch: name for name, activation in ACTIVATION_TABLE.items() if activation.torch}


class UnsupportedNetworkError(ValueError):
    """A network cannot be written as operations."""


class Weight(NamedTuple):
    """A weight of a network.

    Attributes:
        variable: the variable that holds the weight.
        axes: the axes that transpose the value of the variable to Keras's layout.
    """

    variable: Any
    axes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in Keras's layout."""
        return tuple(self.variable.shape[axis] for axis in self.axes)

    def value(self) -> Array:
        """Return the current value in Keras's layout."""
        return np.ascontiguousarray(backends.current().fetch(self.variable).transpose(self.axes))


@dataclass(frozen=True)
class Node:
    """One operation on batches `[N, ...]`.

    The kinds, except for "input", are functions of `noterl.acting.numpy_layers`, which compute the operations:

    - input: an input of the policy, with `name`, `shape` and `dtype`;
    - as_float32; one_hot, with `sizes`; flatten; reshape, with `target_shape`;
    - concatenate: of all inputs; columns, with `start` and `stop`;
    - rearrange: transposes the axes of each row, then reshapes the row, with `axes` and `shape`;
    - normalize: `clip((x - mean - mean_rest) / deviation)`, with these arrays and `bound`;
    - rescale: `scale * x + offset`, with numbers; affine: the same with arrays;
    - dense and convolution: with the arrays `kernel` and `bias`, a convolution also with `strides`;
    - layer_norm: with `epsilon` and the arrays `gamma` and `beta`; batch_norm: also with `mean` and `variance`;
    - the names of `noterl.networks.layers.ACTIVATION_TABLE` except linear; leaky_relu with `negative_slope`;
    - add, subtract, multiply, maximum, minimum: of two inputs; mean: of each row;
    - append: appends the array `values` to each row; fixed: the array `values`, whatever the input;
    - split: each row as a matrix of `groups` rows; join: the reverse;
    - average: of the rows of each matrix; expectation: of the array `support`, whose probabilities are the softmax of
      each column;
    - argmax: of each part of `sizes`, as an action of `shape`; positive: whether values are above 0, with `shape`;
    - clip: with the arrays `low` and `high`.

    Attributes:
        kind: the kind.
        inputs: the positions of the operations whose results this operation receives.
        settings: numbers, strings and tuples.
        arrays: constants and weights, in the order of the function's parameters.
    """

    kind: str
    inputs: tuple[int, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)


class Graph:
    """Operations in the order of their execution.

    Attributes:
        nodes: the operations.
        outputs: name -> position of the operation whose result is this output.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.outputs: dict[str, int] = {}

    def add(self, kind: str, inputs: int | Sequence[int] = (), **values: Any) -> int:
        """Add an operation, whose arrays and settings are the values, and return its position."""
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray | Weight)}
        settings = {name: value for name, value in values.items() if name not in arrays}
        places = (inputs,) if isinstance(inputs, int) else tuple(inputs)
        self.nodes.append(Node(kind, places, settings, arrays))
        return len(self.nodes) - 1

    def activate(self, name: str, inputs: int) -> int:
        """Add an activation of Keras, with its default arguments, and return its position."""
        if name == "linear":
            return inputs
        # The slope of keras.activations.leaky_relu.
        return self.add(name, inputs, negative_slope=0.2) if name == "leaky_relu" else self.add(name, inputs)

    def inputs(self) -> dict[str, Node]:
        """Return the inputs by name."""
        return {node.settings["name"]: node for node in self.nodes if node.kind == "input"}

    def with_values(self) -> Graph:
        """Return a graph with the current values in place of the weights."""
        graph = Graph()
        graph.outputs = self.outputs
        for node in self.nodes:
            arrays = node.arrays.items()
            values = {name: array.value() if isinstance(array, Weight) else array for name, array in arrays}
            graph.nodes.append(replace(node, arrays=values))
        return graph._folded()

    def _folded(self) -> Graph:
        """Return a graph of values, in which a batch normalization is part of the dense layers that follow."""
        graph = Graph()
        places: list[int] = []
        norms: dict[int, tuple[Array, Array]] = {}
        for position, node in enumerate(self.nodes):
            arrays = node.arrays
            users = {other.kind for other in self.nodes if position in other.inputs}
            if node.kind == "batch_norm" and users == {"dense"} and (norm := _scale_and_offset(node)):
                norms[position] = norm
                places.append(places[node.inputs[0]])
                continue
            if node.kind == "dense" and node.inputs[0] in norms:
                scale, offset = norms[node.inputs[0]]
                kernel = arrays["kernel"].astype(np.float64)
                bias = arrays["bias"] + offset @ kernel
                arrays = {"kernel": (scale[:, None] * kernel).astype("float32"), "bias": bias.astype("float32")}
            places.append(len(graph.nodes))
            graph.nodes.append(replace(node, inputs=tuple(places[place] for place in node.inputs), arrays=arrays))
        graph.outputs = {name: places[position] for name, position in self.outputs.items()}
        return graph

    def arrays(self) -> dict[str, Array]:
        """Return all arrays, by names such as "dense_3_kernel"."""
        return {
            array_name(node, position, name): array
            for position, node in enumerate(self.nodes)
            for name, array in node.arrays.items()
        }


# A batch normalization stays an operation if a mean is larger than so many standard deviations, because digits would
# cancel in a dense layer.
_FOLDED_DEVIATIONS = 8.0


def _scale_and_offset(node: Node) -> tuple[Array, Array] | None:
    """Return the numbers of a batch normalization `scale * x + offset`, in float64; None for a separate operation."""
    gamma, beta, mean, variance = (array.astype(np.float64) for array in node.arrays.values())
    deviation = np.sqrt(variance + node.settings["epsilon"])
    scale = gamma / deviation
    return None if (np.abs(mean) > _FOLDED_DEVIATIONS * deviation).any() else (scale, beta - scale * mean)


def array_name(node: Node, position: int, name: str) -> str:
    """Return the name of an array in a file."""
    return f"{node.kind}_{position}_{name}"


def add_network(graph: Graph, network: Any, inputs: int) -> int:
    """Add the operations of a network and return the position of its output.

    Args:
        graph: receives the operations.
        network: a Keras model or a torch module. Of several outputs, the first is used.
        inputs: the position of the encoded observations.

    Raises:
        UnsupportedNetworkError: if an operation is not supported.
    """
    built = recipe(network)
    if built is not None:
        return _add_plan(graph, built[0], inputs, iter(_weights_of(network)))
    if isinstance(network, NoisyNetwork):
        return _add_noisy(graph, network, inputs)
    if isinstance(network, Distribution | ImplicitQuantiles):
        return _add_distribution(graph, network, inputs)
    if is_module(network):
        return _add_modules(graph, network, inputs)
    connected = connections(network)
    if connected is None:
        raise UnsupportedNetworkError(f"{type(network).__name__} is not a Sequential or Functional model")
    layers, places, outputs = connected
    positions = {-1: inputs}
    for index, layer in enumerate(layers):
        positions[index] = _add_keras_layer(graph, layer, [positions[place] for place in places[index]])
    return positions[outputs[0]]


def _add_distribution(graph: Graph, network: Any, inputs: int) -> int:
    """Add the operations of a network of distributions; returns the position of the action values."""
    if isinstance(network, Distribution):
        atoms = graph.add("split", add_network(graph, network.parts["network"], inputs), groups=network.num_atoms)
        if network.support is not None:
            return graph.add("expectation", atoms, support=network.support)
    else:
        encoder, fractions, output = network.parts.values()
        features = graph.activate("relu", add_network(graph, encoder, inputs))
        cosines = graph.add("fixed", features, values=network.cosines)
        embedding = graph.activate("relu", add_network(graph, fractions, cosines))
        product = graph.add("multiply", (graph.add("split", features, groups=1), embedding))
        atoms = add_network(graph, output, product)
    return graph.add("average", atoms)


def add_recurrent(graph: Graph, network: Any, inputs: int, state: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """Add the operations of a network with a memory.

    Args:
        graph: receives the operations.
        network: a `RecurrentNetwork`.
        inputs: the position of the encoded observations.
        state: the positions of the parts of the state, by name.

    Returns:
        the position of the output, and the positions of the parts of the next state, by name.

    Raises:
        UnsupportedNetworkError: if an operation is not supported, such as the cell of a user.
    """
    if not isinstance(network, RecurrentNetwork) or not isinstance(network.parts["cell"], Cell):
        raise UnsupportedNetworkError(f"{network!r:.80} has no cell of noterl.networks.recurrent")
    encoder, cell, output = network.parts.values()
    features = add_network(graph, cell.parts["inputs"], add_network(graph, encoder, inputs))
    recurrent = add_network(graph, cell.parts["hidden"], state["hidden"])
    if cell.kind == "lstm":
        after = _add_lstm(graph, features, recurrent, state, cell)
    else:
        after = _add_gru(graph, features, recurrent, state, cell.units)
    return add_network(graph, output, after["hidden"]), after


def _add_gru(graph: Graph, inputs: int, recurrent: int, state: Mapping[str, int], units: int) -> dict[str, int]:
    """Add the operations of `Cell.advance` for "gru"; returns the positions of the next state."""

    def columns(place: int, first: int, last: int) -> int:
        """Add the columns of these gates, of the three gates reset, update and candidate."""
        return graph.add("columns", place, start=first * units, stop=last * units)

    gates = graph.add("sigmoid", graph.add("add", (columns(inputs, 0, 2), columns(recurrent, 0, 2))))
    reset = columns(gates, 0, 1)
    update = columns(gates, 1, 2)
    candidate = columns(inputs, 2, 3)
    gated = graph.add("multiply", (reset, columns(recurrent, 2, 3)))
    new = graph.add("tanh", graph.add("add", (candidate, gated)))
    difference = graph.add("subtract", (state["hidden"], new))
    return {"hidden": graph.add("add", (new, graph.add("multiply", (update, difference))))}


def _add_lstm(graph: Graph, inputs: int, recurrent: int, state: Mapping[str, int], layer: Cell) -> dict[str, int]:
    """Add the operations of `Cell.advance` for "lstm"; returns the positions of the next state."""
    gates = graph.add("add", (inputs, recurrent))
    units = layer.units

    def gate(function: str, first: int) -> int:
        return graph.add(function, graph.add("columns", gates, start=first * units, stop=(first + 1) * units))

    kept = graph.add("multiply", (gate("sigmoid", 1), state["cell"]))
    added = graph.add("multiply", (gate("sigmoid", 0), gate("tanh", 2)))
    cell = graph.add("add", (kept, added))
    shown = add_network(graph, layer.parts["cell"], cell) if layer.layer_norm else cell
    return {"hidden": graph.add("multiply", (gate("sigmoid", 3), graph.add("tanh", shown))), "cell": cell}


def _weights_of(network: Any) -> list[Weight]:
    layout = keras_layout([network])
    return [
        Weight(variable, tuple(layout.get(id(variable), range(len(variable.shape)))))
        for variable in weight_variables(network)
    ]


def _add_noisy(graph: Graph, network: NoisyNetwork, inputs: int) -> int:
    """Add the operations of a noisy network, whose noise is in arrays."""
    features = add_network(graph, network.parts["trunk"], inputs)
    results = []
    for names in network.streams():
        node = features
        for layer, name in enumerate(names):
            mu, sigma, *noise = (network.parts[f"{name}_{part}"] for part in ("mu", "sigma", "inputs", "outputs"))
            node = graph.activate("relu", node) if layer else node
            before, after = (graph.add("fixed", node, values=Weight(variable, (0,))) for variable in noise)
            deviation = add_network(graph, sigma, graph.add("multiply", (node, before)))
            node = graph.add("add", (add_network(graph, mu, node), graph.add("multiply", (deviation, after))))
        results.append(node)
    if len(results) == 1:
        return results[0]
    value, advantage = results
    return _add_centered(graph, value, advantage, network.num_values)


def _add_centered(graph: Graph, value: int, advantage: int, count: int) -> int:
    """Add the operations that join the streams of a dueling network, whose value stream has `count` values."""
    if count > 1:
        value, advantage = (graph.add("split", stream, groups=count) for stream in (value, advantage))
    # The order of the networks, so that the results are equal bit for bit.
    centered = graph.add("subtract", (graph.add("add", (value, advantage)), graph.add("mean", advantage)))
    return graph.add("join", centered) if count > 1 else centered


def _add_plan(graph: Graph, plan: tuple, inputs: int, weights: Iterator[Weight]) -> int:
    """Add the operations of a plan, whose weights are taken in order; return the position of the output."""
    trunk, *streams = stacks(plan)
    features = _add_stack(graph, trunk, inputs, weights)
    if not streams:
        return features
    value, advantage = (_add_stack(graph, stream, features, weights) for stream in streams)
    return _add_centered(graph, value, advantage, num_values(plan))


def _add_stack(graph: Graph, layers: Sequence[tuple], node: int, weights: Iterator[Weight]) -> int:
    """Add the operations of a stack of layers, and return the position of the last operation.

    Args:
        graph: receives the operations.
        layers: the layers of a plan; `noterl.networks.builders` lists the kinds.
        node: the position of the input.
        weights: of the network, in the order of the plan. Each layer takes its weights, so the order must not change.
    """
    for layer in layers:
        match layer:
            case ("dense", _, activation, *_):
                dense = graph.add("dense", node, kernel=next(weights), bias=next(weights))
                node = graph.activate(activation, dense)
            case ("convolution", _, _, stride, activation, *_):
                strides = (stride, stride)
                convolution = graph.add("convolution", node, kernel=next(weights), bias=next(weights), strides=strides)
                node = graph.activate(activation, convolution)
            case ("encoders", plans):
                # The order matters: `array_name` contains positions.
                inputs = [(graph.add("columns", node, start=start, stop=stop), inner) for start, stop, inner in plans]
                encoded = [_add_stack(graph, inner, columns, weights) for columns, inner in inputs]
                node = graph.add("concatenate", encoded)
            case ("scale", factor):
                node = graph.add("rescale", node, scale=float(factor), offset=0.0)
            case ("rearrange", axes, shape):
                node = graph.add("rearrange", node, axes=tuple(axes), shape=tuple(shape))
            case ("log_std", _):
                node = graph.add("append", node, values=next(weights))
            case ("flatten",):
                node = graph.add("flatten", node)
            case _:
                node = _add_between(graph, layer, node, weights)
    return node


def _add_between(graph: Graph, layer: tuple, x: int, weights: Iterator[Weight]) -> int:
    """Add a layer of a plan that has no dense or convolutional weights; a dropout adds no operation."""
    match layer:
        case ("layer_norm",):
            return graph.add("layer_norm", x, gamma=next(weights), beta=next(weights), epsilon=NORM_EPSILON)
        case ("batch_renorm",):
            arrays = dict(zip(renorm.WEIGHTS, weights, strict=False))
            del arrays["updates"]
            return graph.add("batch_norm", x, **arrays, epsilon=renorm.EPSILON)
        case ("activation", name):
            return graph.activate(name, x)
        case ("residual", inner):
            return graph.add("add", (x, _add_stack(graph, inner, x, weights)))
    return x  # the policy acts without dropout


def _add_modules(graph: Graph, network: Any, position: int) -> int:
    """Add a stack of torch modules."""
    layers = stacked_layers(network)
    if not layers:
        raise UnsupportedNetworkError(f"{type(network).__name__} is not a torch.nn.Sequential")
    for layer in layers:
        name = type(layer).__name__
        if not type(layer).__module__.startswith("torch.nn."):
            raise UnsupportedNetworkError(f"the module {name} is not one of torch.nn")
        if name == "Linear":
            position = graph.add("dense", position, **_kernel_and_bias(_weights_of(layer)))
        elif name == "Flatten" and layer.start_dim == 1 and layer.end_dim == -1:
            position = graph.add("flatten", position)
        elif name in _TORCH_ACTIVATIONS and all(getattr(layer, key, value) == value for key, value in TORCH_DEFAULTS):
            position = graph.activate(_TORCH_ACTIVATIONS[name], position)
        elif name != "Dropout":
            raise UnsupportedNetworkError(f"the module {name} is not supported")
    return position


def _add_keras_layer(graph: Graph, layer: Any, inputs: list[int]) -> int:
    """Add the operations of a layer of a Keras model by `LAYER_TABLE`, and return the position of the output."""
    name = type(layer).__name__
    arguments = layer_arguments(layer)
    if arguments is None:
        raise UnsupportedNetworkError(f"the layer {name} is not supported")
    row = LAYER_TABLE[name]
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
    is_fixed = all(arguments[argument] in (value, [value]) for argument, value in row.fixed.items())
    # A Reshape may infer a length, and a Rescaling may have numbers for each channel.
    has_numbers = not any(isinstance(settings.get(argument), tuple) for argument in ("scale", "offset"))
    is_plain = has_numbers and -1 not in settings.get("target_shape", ())
    if not row.kind or not is_fixed or not is_plain:
        raise UnsupportedNetworkError(f"the layer {name} is not supported with the arguments {arguments}")
    if row.kind == "linear":
        return graph.activate(arguments.get("activation", "linear"), inputs[0])
    values: dict[str, Any] = {setting: settings[setting] for setting in row.settings}
    values |= _arrays(row.kind, arguments, _weights_of(layer) if layer.weights else [])
    if row.merges and row.kind != "concatenate":
        position = reduce(lambda left, right: graph.add(row.kind, (left, right)), inputs)
    else:
        position = graph.add(row.kind, inputs, **values)
    if name == "Average":
        position = graph.add("rescale", position, scale=1 / len(inputs), offset=0.0)
    return graph.activate(arguments.get("activation", "linear"), position)


def _arrays(kind: str, arguments: Mapping[str, Any], weights: Sequence[Weight]) -> dict[str, Weight | Array]:
    """Return the arrays of an operation: the weights of a Keras layer, and constants for missing weights."""
    if kind in ("dense", "convolution"):
        return _kernel_and_bias(weights)
    if kind not in ("layer_norm", "batch_norm"):
        return {}
    remaining = iter(weights)
    shape = weights[0].shape if weights else ()
    gamma = next(remaining) if arguments["scale"] else np.ones(shape, np.float32)
    beta = next(remaining) if arguments["center"] else np.zeros(shape, np.float32)
    return {"gamma": gamma, "beta": beta, **dict(zip(("mean", "variance"), remaining, strict=False))}


def _kernel_and_bias(weights: Sequence[Weight]) -> dict[str, Weight | Array]:
    kernel, *bias = weights
    return {"kernel": kernel, "bias": bias[0] if bias else np.zeros(kernel.shape[-1], np.float32)}

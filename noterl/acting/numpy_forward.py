"""A network as a NumPy function, compiled from the graph of the network.

The function can be pickled for worker processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl.acting import numpy_layers
from noterl.acting.numpy_layers import Operation, Step, run_operations, transposed_dense
from noterl.acting.policy_state import State

if TYPE_CHECKING:
    from noterl.networks.graph import Graph

# Left to the compiled forward pass: for one image of 84x84 pixels, `nature_cnn` takes 1.7 ms on torch, and over 100 ms
# in NumPy (both on one busy core).
_IMAGE_KINDS = ("convolution", "rearrange", "reshape")


def describe(
    networks: Sequence[Any], shape: tuple[int, ...], dtype: Any, columns: Sequence[slice] = ()
) -> tuple[Step, list[Any]] | None:
    """Return networks as a NumPy function of `(observations, weights)`, and the variables that hold these weights.

    Args:
        networks: the network; or the networks of the first agents, whose outputs the function returns side by side.
        shape: the shape of one observation.
        dtype: the dtype of observations.
        columns: the columns of each agent in observations; empty for one agent.

    Returns:
        The function and the variables; None if an operation of a network is not supported.
    """
    from noterl.networks.graph import Graph, UnsupportedNetworkError, add_network

    graph = Graph()
    whole = graph.add("input", name="observation", shape=shape, dtype=dtype)
    if dtype != np.float32:
        whole = graph.add("as_float32", whole)
    inputs = [graph.add("columns", whole, start=part.start, stop=part.stop) for part in columns[: len(networks)]]
    try:
        outputs = [add_network(graph, *pair) for pair in zip(networks, inputs or [whole], strict=True)]
    except UnsupportedNetworkError:
        return None
    output = outputs[0] if len(outputs) == 1 else graph.add("concatenate", outputs)
    return _compile(graph, output, is_vector=len(shape) == 1)


def describe_recurrent(network: Any, shape: tuple[int, ...], dtype: Any, state: State) -> tuple[Step, list[Any]] | None:
    """Return a network with a memory as a function of rows, and the variables of the weights; None as in `describe`.

    A row holds the values of an observation and then of the state. The function returns rows of the output and then of
    the next state.

    Args:
        network: the network, a `RecurrentNetwork`.
        shape: the shape of one observation.
        dtype: the dtype of observations.
        state: the state before the first step of an episode, `[...]` by name.
    """
    from noterl.networks.graph import Graph, UnsupportedNetworkError, add_recurrent

    if dtype != np.float32 or any(value.dtype != np.float32 or value.ndim != 1 for value in state.values()):
        return None
    graph = Graph()
    size = math.prod(shape)
    whole = graph.add("input", name="observation", shape=(size,), dtype=dtype)
    ends = np.cumsum([size, *(value.size for value in state.values())]).tolist()
    places = [graph.add("columns", whole, start=a, stop=b) for a, b in zip([0, *ends], ends, strict=False)]
    try:
        output, after = add_recurrent(graph, network, places[0], dict(zip(state, places[1:], strict=True)))
    except UnsupportedNetworkError:
        return None
    return _compile(graph, graph.add("concatenate", [output, *(after[name] for name in state)]), is_vector=True)


def run_graph(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of a graph without variables, by name, for inputs by name."""
    results: list[np.ndarray] = []
    for node in graph.nodes:
        if node.kind == "input":
            results.append(inputs[node.settings["name"]])
            continue
        operands = [*(results[place] for place in node.inputs), *node.arrays.values()]
        results.append(getattr(numpy_layers, node.kind)(*operands, **node.settings))
    return {name: results[position] for name, position in graph.outputs.items()}


def _compile(graph: Graph, output: int, is_vector: bool) -> tuple[Step, list[Any]] | None:
    """Return the operations up to `output` as a function, and the variables of the weights; None with convolutions.

    Args:
        graph: the operations; the first is the input.
        output: the position of the operation whose result the function returns.
        is_vector: whether observations have one axis; only then may the function receive one without an axis for N.
    """
    if any(node.kind in _IMAGE_KINDS for node in graph.nodes):
        return None
    nodes = graph.nodes[: output + 1]
    arrays = [array for node in nodes for array in node.arrays.values()]
    constants = [array for array in arrays if isinstance(array, np.ndarray)]
    weights = [array for array in arrays if not isinstance(array, np.ndarray)]
    # All values are in one list: the observations, the constants, the weights, and the results so far.
    places = {id(array): place for place, array in enumerate([*constants, *weights], start=1)}
    results = {0: 0}
    operations: list[Operation] = []
    for position, node in enumerate(nodes[1:], start=1):
        operands = [*(results[place] for place in node.inputs), *(places[id(array)] for array in node.arrays.values())]
        if node.kind == "flatten" and is_vector:
            results[position] = operands[0]
            continue
        results[position] = 1 + len(arrays) + len(operations)
        operations.append((_function(node), _getter(operands)))
    return partial(run_operations, constants, operations, results[output]), [weight.variable for weight in weights]


def _function(node: Any) -> Callable[..., np.ndarray]:
    """Return the function of an operation."""
    kernel = node.arrays.get("kernel")
    if kernel is not None and kernel.axes == (1, 0):
        return transposed_dense
    function: Callable[..., np.ndarray] = getattr(numpy_layers, node.kind)
    return partial(function, **node.settings) if node.settings else function


def _getter(operands: list[int]) -> Callable[[list[np.ndarray]], Sequence[np.ndarray]]:
    # itemgetter is the fastest way to take values from a list. For one index, only a slice gives a sequence.
    return itemgetter(*operands) if len(operands) > 1 else itemgetter(slice(operands[0], operands[0] + 1))

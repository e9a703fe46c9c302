"""The computation of a policy as a list of operations, which each format writes in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Node:
    """One operation on batches `[N, ...]`.

    The kinds are

    - input: an input of the policy, with `name`, `shape` and `dtype`;
    - float: converts to float32;
    - one_hot: one-hot vectors of ints, side by side, with `sizes`;
    - flatten, concatenate; reshape, with `shape`; columns, with `start` and `stop`;
    - rearrange: transposes the axes of each row, then reshapes it, with `axes` and `shape`;
    - normalize: `clip((x - mean - mean_rest) / deviation)`, with `bound` and these arrays;
    - scale: `factor * x + offset`, with numbers; affine: the same with the arrays `factor` and `offset`;
    - dense and convolution: with the arrays `kernel` and `bias`, a convolution also with `strides`;
    - activation, with `name`; leaky_relu, with `slope`; layer_norm, with `epsilon` and the arrays `gamma` and `beta`;
    - add, subtract, multiply, average, maximum, minimum: of all inputs;
    - center: subtracts the mean of each row;
    - append: appends the array `values` to each row;
    - argmax: of each part of `sizes`, as an action of `shape`; positive: whether values are above 0;
    - unscale: `clip(center + half * x, low, high)` with arrays; clip: with the arrays `low` and `high`.

    Attributes:
        kind: the kind.
        inputs: the positions of the operations whose results it receives.
        settings: numbers, strings and tuples.
        arrays: constants and weights.
    """

    kind: str
    inputs: tuple[int, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)


class Graph:
    """Operations in the order in which they run.

    Attributes:
        nodes: the operations.
        outputs: name -> position of the operation whose result is this output.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.outputs: dict[str, int] = {}

    def add(self, kind: str, inputs: int | Sequence[int] = (), **values: Any) -> int:
        """Add an operation and return its position; arrays among the values are constants or weights."""
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        settings = {name: value for name, value in values.items() if name not in arrays}
        places = (inputs,) if isinstance(inputs, int) else tuple(inputs)
        self.nodes.append(Node(kind, places, settings, arrays))
        return len(self.nodes) - 1

    def inputs(self) -> dict[str, Node]:
        """Return the inputs by name."""
        return {node.settings["name"]: node for node in self.nodes if node.kind == "input"}

    def arrays(self) -> dict[str, Array]:
        """Return all arrays, by names such as "dense_3_kernel"."""
        return {
            array_name(node, position, name): array
            for position, node in enumerate(self.nodes)
            for name, array in node.arrays.items()
        }


def array_name(node: Node, position: int, name: str) -> str:
    """Return the name of an array in a file."""
    return f"{node.kind}_{position}_{name}"

"""Python code for the operations of a graph, which the formats numpy and torch share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from noterl.networks.graph import Graph, Node

# Writes the right side of an assignment, for an operation, its position and the variables of its inputs.
Writer = Callable[[Node, int, list[str]], str]


def statements(graph: Graph, write: Writer) -> list[str]:
    """Return an assignment for each operation, such as "x3 = x2 + 1"."""
    return [
        f"x{position} = {write(node, position, [f'x{place}' for place in node.inputs])}"
        for position, node in enumerate(graph.nodes)
    ]


def described_inputs(graph: Graph) -> list[str]:
    """Return a line about each input, for the docstring of a file."""
    return [
        f"    {plain_text(name)}: {node.settings['dtype']} {_lengths(node.settings['shape'])}"
        for name, node in graph.inputs().items()
    ]


def identifier(name: str) -> str:
    """Return a name of an input as a Python identifier."""
    return re.sub(r"\W", "_", name)


def plain_text(text: str) -> str:
    """Return a text that cannot end a docstring."""
    return re.sub(r"[^\w .,:()=+-]", "_", text)


def _lengths(shape: Any) -> str:
    return f"[{', '.join(['N', *map(str, shape)])}]"

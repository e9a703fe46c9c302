"""Python code for the operations of a graph, which the formats numpy and torch share."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import numpy as np

from noterl.networks.graph import Graph, Node
from noterl.types import STATE

# Writes the right side of an assignment, for an operation, its position and the variables of its inputs.
Writer = Callable[[Node, int, list[str]], str]


# The docstring that both formats begin with.
DOCSTRING = '''"""The policy of {name}, exported by noterl. It needs {library} only.

Inputs of {function}:
{inputs}

Results, by name:
    action: the best action of each row, as the environment receives it
    outputs: the outputs of the network, from which the action follows
{states}
'''


_STATES = """    next_state.<name>: the inputs state.<name> of the episode's next step

At the first step of an episode, the state is the agent's initial state, usually zeros.
"""


def common_code(graph: Graph, name: str, write: Writer, indent: str) -> dict[str, str]:
    """Return what both formats write: `name`, `identity`, `inputs`, `body`, `states` and `results`.

    Args:
        graph: the operations.
        name: of the agent.
        write: writes the right side of an assignment, such as "x3 = x2 + 1".
        indent: the indent of the body, which has an assignment for each operation.
    """
    assignments = [
        f"{indent}x{position} = {write(node, position, [f'x{place}' for place in node.inputs])}"
        for position, node in enumerate(graph.nodes)
    ]
    inputs = [
        f"    {plain_text(key)}: {node.settings['dtype']} [{', '.join(map(str, ('N', *node.settings['shape'])))}]"
        for key, node in graph.inputs().items()
    ]
    return {
        "name": plain_text(name),
        "identity": identity(graph),
        "inputs": "\n".join(inputs),
        "body": "\n".join(assignments),
        "states": _STATES if any(key.startswith(STATE) for key in graph.inputs()) else "",
        "results": ", ".join(f'"{key}": x{position}' for key, position in graph.outputs.items()),
    }


def identity(graph: Graph) -> str:
    """Return a text by which both files of a policy are recognized."""
    operations = [(node.kind, node.inputs, node.settings) for node in graph.nodes]
    digest = hashlib.sha256(repr(operations).encode())
    for array in graph.arrays().values():
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def identifier(name: str) -> str:
    """Return a name of an input as a Python identifier that the code of an exported file does not use."""
    return re.sub(r"^(self|torch|functional|x\d+)$", r"\1_", re.sub(r"\W", "_", name))


def plain_text(text: str) -> str:
    """Return a text that cannot end a docstring."""
    return re.sub(r"[^\w .,:()=+-]", "_", text)

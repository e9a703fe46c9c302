"""The format "numpy": a Python file that needs NumPy only, and a `.npz` file with the weights."""

from __future__ import annotations

import dis
import inspect
import io
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from noterl.acting import numpy_layers
from noterl.export.code import DOCSTRING, common_code, identity
from noterl.networks.graph import Graph, Node, array_name
from noterl.types import STATE

_TEMPLATE = '''`act(observation)` returns the action for one observation of the environment, or the actions for a batch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

IDENTITY = {identity!r}
INPUTS = {input_specs!r}
KEYS = {keys!r}

with np.load(Path(__file__).with_suffix(".npz"), allow_pickle=False) as _file:
    _w = {{name: _file[name] for name in _file.files}}
if str(_w.pop("identity")) != IDENTITY:
    raise ValueError("the .npz file beside this file belongs to another policy")

{functions}

def run(inputs):
    """Return the results, by name, for a batch of each input, by name."""
{body}
    return {{{results}}}


{act}'''

_ACT = '''def act(observation):
    """Return the action for one observation, or the actions for a batch of observations."""
    inputs = {}
    for name, (shape, dtype) in INPUTS.items():
        value = observation
        for key in KEYS.get(name, ()):
            value = value[key]
        inputs[name] = np.asarray(value, dtype)
    single = all(inputs[name].ndim == len(shape) for name, (shape, _) in INPUTS.items())
    if single:
        inputs = {name: value[None] for name, value in inputs.items()}
    action = run(inputs)["action"]
    return action[0] if single else action
'''

_ACT_WITH_STATE = '''def act(observation, state=None):
    """Return the action and the next state for one observation, or for a batch of observations.

    At the first step of an episode, the state is None; afterwards it is the one of the step before.
    """
    inputs = {}
    for name, (shape, dtype) in INPUTS.items():
        value = observation
        for key in KEYS.get(name, ()):
            value = value[key]
        if not name.startswith("state."):
            inputs[name] = np.asarray(value, dtype)
            single = inputs[name].ndim == len(shape)
            inputs[name] = inputs[name][None] if single else inputs[name]
    count = len(next(iter(inputs.values())))
    for name, (shape, dtype) in INPUTS.items():
        if name.startswith("state."):
            value = np.stack([_w["start." + name[6:]]] * count) if state is None else state[name[6:]]
            inputs[name] = np.asarray(value, dtype).reshape(count, *shape)
    results = run(inputs)
    after = {name[11:]: value[0] if single else value for name, value in results.items() if name[:11] == "next_state."}
    return (results["action"][0] if single else results["action"]), after
'''


def numpy_source(graph: Graph, name: str, keys: Mapping[str, tuple[str, ...]]) -> str:
    """Return the Python file of a policy.

    Args:
        graph: the operations.
        name: of the agent.
        keys: the keys of each input in an observation of a Dict space.
    """
    specs = {key: (node.settings["shape"], node.settings["dtype"]) for key, node in graph.inputs().items()}
    return (DOCSTRING + _TEMPLATE).format(
        **common_code(graph, name, _write, " " * 4),
        library="NumPy",
        function="`run`, by name",
        input_specs=specs,
        keys=dict(keys),
        functions="\n" + _sources({node.kind for node in graph.nodes}),
        act=_ACT_WITH_STATE if any(key.startswith(STATE) for key in specs) else _ACT,
    )


def numpy_weights(graph: Graph, start: Mapping[str, np.ndarray]) -> bytes:
    """Return the `.npz` file of a policy, with the state before the first step of an episode."""
    buffer = io.BytesIO()
    starts = {f"start.{name}": value for name, value in start.items()}
    arrays: dict[str, Any] = {"identity": np.array(identity(graph)), **graph.arrays(), **starts}
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _sources(kinds: Iterable[str]) -> str:
    """Return the source of the functions of operations, and of the functions that these call."""
    functions = {name: value for name, value in vars(numpy_layers).items() if inspect.isfunction(value)}
    names = set(kinds)
    # A function calls functions that precede it, so one pass from the end finds all of them.
    for name in reversed(functions):
        if name in names:
            names |= {step.argval for step in dis.get_instructions(functions[name]) if step.opname == "LOAD_GLOBAL"}
    return "\n\n".join(inspect.getsource(function) for name, function in functions.items() if name in names)


def _write(node: Node, position: int, inputs: list[str]) -> str:
    """Return the call of an operation's function."""
    if node.kind == "input":
        return f"inputs[{node.settings['name']!r}]"
    arrays = [f'_w["{array_name(node, position, name)}"]' for name in node.arrays]
    settings = [f"{name}={value!r}" for name, value in node.settings.items()]
    return f"{node.kind}({', '.join([*inputs, *arrays, *settings])})"

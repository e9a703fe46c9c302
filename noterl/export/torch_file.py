"""The format "torch": a Python file with a `torch.nn.Module`, and a `.pt` file with its weights."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from noterl.export.code import Writer, described_inputs, identifier, plain_text, statements
from noterl.export.graph import Graph, Node, array_name
from noterl.utils.optional import require

_TEMPLATE = '''"""The policy of {name}, exported by noterl. It needs torch only.

Inputs of the module, in this order:
{inputs}

Results, by name:
    action: the best action of each row, as the environment receives it
    outputs: the outputs of the network, from which the action follows

`load()` returns the module with its weights.
"""

import functools
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

IDENTITY = {identity!r}


def _one_hot(x, sizes):
    x = x.reshape(x.shape[0], -1).long()
    return torch.cat([functional.one_hot(x[:, i], size) for i, size in enumerate(sizes)], dim=-1).float()


def _argmax(x, sizes, shape):
    return torch.stack([part.argmax(dim=-1) for part in x.split(list(sizes), dim=-1)], dim=-1).reshape(-1, *shape)


def _convolution(layer, x):
    return layer(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class Policy(nn.Module):
    """The acting function for batches of observations."""

    def __init__(self):
        super().__init__()
{parts}

    def forward(self, {arguments}):
        """Return the results, by name."""
{body}
        return {{{results}}}


def load(path=None):
    """Return the policy with the weights in a file, by default in the `.pt` file beside this file."""
    stored = torch.load(path or Path(__file__).with_suffix(".pt"), weights_only=True)
    if stored["identity"] != IDENTITY:
        raise ValueError("the .pt file belongs to another policy")
    policy = Policy()
    policy.load_state_dict(stored["state"])
    return policy.eval()
'''

_ACTIVATIONS = {
    "relu": "torch.relu({0})",
    "tanh": "torch.tanh({0})",
    "sigmoid": "torch.sigmoid({0})",
    "elu": "functional.elu({0})",
    "silu": "functional.silu({0})",
    "gelu": "functional.gelu({0})",
    "softmax": "torch.softmax({0}, dim=-1)",
    "softplus": "functional.softplus({0})",
    "softsign": "functional.softsign({0})",
    "selu": "torch.selu({0})",
    "exponential": "torch.exp({0})",
    "relu6": "functional.relu6({0})",
    "mish": "functional.mish({0})",
}


def torch_source(graph: Graph, name: str, identity: str) -> str:
    """Return the Python file of a policy.

    Args:
        graph: the operations.
        name: of the agent.
        identity: a text that the file of the weights holds too.
    """
    parts = [line for position, node in enumerate(graph.nodes) for line in _parts(node, position)]
    results = ", ".join(f'"{key}": x{position}' for key, position in graph.outputs.items())
    return _TEMPLATE.format(
        name=plain_text(name),
        inputs="\n".join(described_inputs(graph)),
        identity=identity,
        arguments=", ".join(map(identifier, graph.inputs())),
        parts="\n".join(f"        {line}" for line in parts) or "        pass",
        body="\n".join(f"        {line}" for line in statements(graph, _WRITERS)),
        results=results,
    )


def torch_weights(graph: Graph, identity: str) -> bytes:
    """Return the `.pt` file of a policy.

    Raises:
        ImportError: if torch is not installed.
    """
    torch = require("torch", "torch", "the format 'torch'")
    state = {}
    for position, node in enumerate(graph.nodes):
        for name, array in node.arrays.items():
            state[_state_name(node, position, name)] = torch.as_tensor(np.array(_torch_layout(node, name, array)))
    buffer = io.BytesIO()
    torch.save({"identity": identity, "state": state}, buffer)
    return buffer.getvalue()


def _parts(node: Node, position: int) -> list[str]:
    """Return the lines of the constructor that make the layer or the buffers of an operation."""
    if node.kind == "dense":
        inputs, outputs = node.arrays["kernel"].shape
        return [f"self.dense_{position} = nn.Linear({inputs}, {outputs})"]
    if node.kind == "convolution":
        height, width, inputs, outputs = node.arrays["kernel"].shape
        strides = node.settings["strides"]
        return [f"self.convolution_{position} = nn.Conv2d({inputs}, {outputs}, ({height}, {width}), {strides!r})"]
    return [
        f'self.register_buffer("{array_name(node, position, name)}", torch.zeros({array.shape!r}))'
        for name, array in node.arrays.items()
    ]


def _state_name(node: Node, position: int, name: str) -> str:
    if node.kind in ("dense", "convolution"):
        return f"{node.kind}_{position}.{'weight' if name == 'kernel' else 'bias'}"
    return array_name(node, position, name)


def _torch_layout(node: Node, name: str, array: Any) -> Any:
    if name != "kernel":
        return array
    return array.T if node.kind == "dense" else array.transpose(3, 2, 0, 1)


def _array(node: Node, position: int, name: str) -> str:
    return f"self.{array_name(node, position, name)}"


def _joined(operator: str) -> Writer:
    return lambda node, position, x: f" {operator} ".join(x)


def _write_normalize(node: Node, position: int, x: list[str]) -> str:
    mean, rest, deviation = (_array(node, position, name) for name in ("mean", "mean_rest", "deviation"))
    bound = node.settings["bound"]
    return f"torch.clamp((({x[0]} - {mean}) - {rest}) / {deviation}, -{bound}, {bound})"


def _write_rearrange(node: Node, position: int, x: list[str]) -> str:
    axes = (0, *(axis + 1 for axis in node.settings["axes"]))
    return f"{x[0]}.permute({axes}).reshape(-1, *{node.settings['shape']!r})"


def _write_append(node: Node, position: int, x: list[str]) -> str:
    return f"torch.cat([{x[0]}, {_array(node, position, 'values')}.expand_as({x[0]})], dim=-1)"


def _write_layer_norm(node: Node, position: int, x: list[str]) -> str:
    gamma, beta = _array(node, position, "gamma"), _array(node, position, "beta")
    return f"functional.layer_norm({x[0]}, {x[0]}.shape[-1:], {gamma}, {beta}, {node.settings['epsilon']!r})"


def _reduced(function: str) -> Writer:
    return lambda node, position, x: f"functools.reduce({function}, [{', '.join(x)}])"


_WRITERS: dict[str, Writer] = {
    "input": lambda node, position, x: identifier(node.settings["name"]),
    "float": lambda node, position, x: f"{x[0]}.float()",
    "one_hot": lambda node, position, x: f"_one_hot({x[0]}, {node.settings['sizes']!r})",
    "flatten": lambda node, position, x: f"{x[0]}.reshape({x[0]}.shape[0], -1)",
    "reshape": lambda node, position, x: f"{x[0]}.reshape(-1, *{node.settings['shape']!r})",
    "concatenate": lambda node, position, x: f"torch.cat([{', '.join(x)}], dim=-1)",
    "columns": lambda node, position, x: f"{x[0]}[:, {node.settings['start']}:{node.settings['stop']}]",
    "rearrange": _write_rearrange,
    "normalize": _write_normalize,
    "scale": lambda n, p, x: f"{x[0]} * {n.settings['factor']!r} + {n.settings['offset']!r}",
    "affine": lambda n, p, x: f"{x[0]} * {_array(n, p, 'factor')} + {_array(n, p, 'offset')}",
    "dense": lambda node, position, x: f"self.dense_{position}({x[0]})",
    "convolution": lambda node, position, x: f"_convolution(self.convolution_{position}, {x[0]})",
    "activation": lambda node, position, x: _ACTIVATIONS[node.settings["name"]].format(x[0]),
    "leaky_relu": lambda node, position, x: f"functional.leaky_relu({x[0]}, {node.settings['slope']!r})",
    "layer_norm": _write_layer_norm,
    "add": _joined("+"),
    "subtract": _joined("-"),
    "multiply": _joined("*"),
    "average": lambda node, position, x: f"({' + '.join(x)}) / {len(x)}",
    "maximum": _reduced("torch.maximum"),
    "minimum": _reduced("torch.minimum"),
    "center": lambda node, position, x: f"{x[0]} - {x[0]}.mean(dim=-1, keepdim=True)",
    "append": _write_append,
    "argmax": lambda n, p, x: f"_argmax({x[0]}, {n.settings['sizes']!r}, {n.settings['shape']!r})",
    "positive": lambda n, p, x: f"({x[0]} > 0).reshape(-1, *{n.settings['shape']!r}).to(torch.int8)",
    "clip": lambda n, p, x: f"torch.clamp({x[0]}, {_array(n, p, 'low')}, {_array(n, p, 'high')})",
}

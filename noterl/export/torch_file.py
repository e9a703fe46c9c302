"""The format "torch": a Python file with a `torch.nn.Module`, and a `.pt` file with the weights."""

from __future__ import annotations

import io

import numpy as np

from noterl.export.code import DOCSTRING, common_code, identifier, identity
from noterl.networks.graph import Graph, Node, array_name
from noterl.networks.layers import ACTIVATION_TABLE
from noterl.utils.optional import require

_TEMPLATE = '''`load()` returns the module with its weights.
"""

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
{members}

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


def torch_source(graph: Graph, name: str) -> str:
    """Return the Python file of a policy.

    Args:
        graph: the operations.
        name: of the agent.
    """
    lines = [line for position, node in enumerate(graph.nodes) for line in _members(node, position)]
    return (DOCSTRING + _TEMPLATE).format(
        **common_code(graph, name, _write, " " * 8),
        library="torch",
        function="the module, in this order",
        arguments=", ".join(map(identifier, graph.inputs())),
        members="\n".join(f"        {line}" for line in lines) or "        pass",
    )


def torch_weights(graph: Graph) -> bytes:
    """Return the `.pt` file of a policy.

    Raises:
        ImportError: if torch is not installed.
    """
    torch = require("torch", "torch", "the format 'torch'")
    state = {}
    for position, node in enumerate(graph.nodes):
        for name, array in node.arrays.items():
            axes = _KERNEL_AXES[node.kind] if name == "kernel" else range(array.ndim)
            state[_state_name(node, position, name)] = torch.as_tensor(np.array(array.transpose(*axes)))
    buffer = io.BytesIO()
    torch.save({"identity": identity(graph), "state": state}, buffer)
    return buffer.getvalue()


# The modules of operations that have a kernel, with the lengths of the kernel by number.
_MODULES = {"dense": "nn.Linear({0}, {1})", "convolution": "nn.Conv2d({2}, {3}, ({0}, {1}), {strides!r})"}

# The axes that transpose a kernel to torch's layout.
_KERNEL_AXES = {"dense": (1, 0), "convolution": (3, 2, 0, 1)}


def _members(node: Node, position: int) -> list[str]:
    """Return the lines of the constructor that make the module or the buffers of an operation."""
    if node.kind in _MODULES:
        module = _MODULES[node.kind].format(*node.arrays["kernel"].shape, **node.settings)
        return [f"self.{node.kind}_{position} = {module}"]
    return [
        f'self.register_buffer("{array_name(node, position, name)}", torch.zeros({array.shape!r}))'
        for name, array in node.arrays.items()
    ]


def _state_name(node: Node, position: int, name: str) -> str:
    if node.kind in _MODULES:
        return f"{node.kind}_{position}.{'weight' if name == 'kernel' else 'bias'}"
    return array_name(node, position, name)


def _write(node: Node, position: int, inputs: list[str]) -> str:
    """Return the expression of an operation."""
    if node.kind == "input":
        return identifier(node.settings["name"])
    arrays = {name: f"self.{array_name(node, position, name)}" for name in node.arrays}
    code = ACTIVATION_TABLE[node.kind].torch_code if node.kind in ACTIVATION_TABLE else _CODE[node.kind]
    return code.format(*inputs, inputs=", ".join(inputs), position=position, **arrays, **node.settings)


# Templates of the expression of each operation, with its inputs by number, and its arrays and settings by name.
_CODE = {
    "as_float32": "{0}.float()",
    "one_hot": "_one_hot({0}, {sizes!r})",
    "flatten": "{0}.reshape({0}.shape[0], -1)",
    "reshape": "{0}.reshape(-1, *{target_shape!r})",
    "concatenate": "torch.cat([{inputs}], dim=-1)",
    "columns": "{0}[:, {start}:{stop}]",
    "rearrange": "{0}.permute(0, *(axis + 1 for axis in {axes!r})).reshape(-1, *{shape!r})",
    "normalize": "torch.clamp((({0} - {mean}) - {mean_rest}) / {deviation}, -{bound}, {bound})",
    "rescale": "{0} * {scale!r} + {offset!r}",
    "affine": "{0} * {scale} + {offset}",
    "dense": "self.dense_{position}({0})",
    "convolution": "_convolution(self.convolution_{position}, {0})",
    "layer_norm": "functional.layer_norm({0}, {0}.shape[-1:], {gamma}, {beta}, {epsilon!r})",
    "batch_norm": "({0} - {mean}) / torch.sqrt({variance} + {epsilon!r}) * {gamma} + {beta}",
    "add": "{0} + {1}",
    "subtract": "{0} - {1}",
    "multiply": "{0} * {1}",
    "maximum": "torch.maximum({0}, {1})",
    "minimum": "torch.minimum({0}, {1})",
    "mean": "{0}.mean(dim=-1, keepdim=True)",
    "append": "torch.cat([{0}, {values}.expand_as({0})], dim=-1)",
    "fixed": "{values}",
    "split": "{0}.reshape(*{0}.shape[:-1], {groups}, -1)",
    "join": "{0}.flatten(-2)",
    "average": "{0}.mean(dim=-2)",
    "expectation": "{support} @ torch.softmax({0}, dim=-2)",
    "argmax": "_argmax({0}, {sizes!r}, {shape!r})",
    "positive": "({0} > 0).reshape(-1, *{shape!r}).to(torch.int8)",
    "clip": "torch.clamp({0}, {low}, {high})",
}

"""The format "numpy": a Python file that needs NumPy only, and a `.npz` file with the weights."""

from __future__ import annotations

import io
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from noterl.export.code import Writer, described_inputs, plain_text, statements
from noterl.export.graph import Array, Graph, Node, array_name

_HELPERS = """
def _sigmoid(x):
    return 0.5 * np.tanh(0.5 * x) + 0.5


def _softplus(x):
    return np.logaddexp(x, np.float32(0))


def _gelu(x):
    return (0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))).astype(np.float32)


def _softmax(x):
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


def _one_hot(x, sizes):
    x = x.reshape(len(x), -1)
    parts = [x[:, i, None] == np.arange(size) for i, size in enumerate(sizes)]
    return np.concatenate(parts, axis=-1).astype(np.float32)


def _convolution(x, kernel, bias, strides):
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], axis=(1, 2))
    windows = windows[:, :: strides[0], :: strides[1]]
    return np.tensordot(windows, kernel, axes=((4, 5, 3), (0, 1, 2))) + bias


def _layer_norm(x, gamma, beta, epsilon):
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + epsilon)
    return (x - x.mean(axis=-1, keepdims=True)) / deviation * gamma + beta


def _argmax(x, sizes, shape):
    ends = np.cumsum(sizes)
    parts = [x[:, end - size : end].argmax(axis=-1) for end, size in zip(ends, sizes)]
    return np.stack(parts, axis=-1).reshape(len(x), *shape)
"""

_ACTIVATIONS = {
    "relu": "np.maximum({0}, 0)",
    "tanh": "np.tanh({0})",
    "sigmoid": "_sigmoid({0})",
    "elu": "np.where({0} > 0, {0}, np.expm1(np.minimum({0}, 0)))",
    "silu": "{0} * _sigmoid({0})",
    "gelu": "_gelu({0})",
    "softmax": "_softmax({0})",
    "softplus": "_softplus({0})",
    "softsign": "{0} / (1.0 + np.abs({0}))",
    "selu": "1.0507009873554805 * np.where({0} > 0, {0}, 1.6732632423543772 * np.expm1(np.minimum({0}, 0)))",
    "exponential": "np.exp({0})",
    "relu6": "np.clip({0}, 0, 6)",
    "mish": "{0} * np.tanh(_softplus({0}))",
}

_TEMPLATE = '''"""The policy of {name}, exported by noterl. It needs NumPy only.

Inputs of `run`, by name:
{inputs}

Results, by name:
    action: the best action of each row, as the environment receives it
    outputs: the outputs of the network, from which the action follows

`act(observation)` returns the action for one observation of the environment, or the actions for a batch.
"""

import math
from pathlib import Path

import numpy as np

IDENTITY = {identity!r}
INPUTS = {input_specs!r}
KEYS = {keys!r}

with np.load(Path(__file__).with_suffix(".npz"), allow_pickle=False) as _file:
    _w = {{name: _file[name] for name in _file.files}}
if str(_w.pop("identity")) != IDENTITY:
    raise ValueError("the .npz file beside this file belongs to another policy")

{helpers}

def run(inputs):
    """Return the results, by name, for a batch of each input, by name."""
{body}
    return {{{results}}}


def act(observation):
    """Return the action for one observation, or the actions for a batch of observations."""
    inputs = {{}}
    for name, (shape, dtype) in INPUTS.items():
        value = observation
        for key in KEYS.get(name, ()):
            value = value[key]
        inputs[name] = np.asarray(value, dtype)
    single = all(inputs[name].ndim == len(shape) for name, (shape, _) in INPUTS.items())
    if single:
        inputs = {{name: value[None] for name, value in inputs.items()}}
    action = run(inputs)["action"]
    return action[0] if single else action
'''


def numpy_source(graph: Graph, name: str, identity: str, keys: Mapping[str, tuple[str, ...]]) -> str:
    """Return the Python file of a policy.

    Args:
        graph: the operations.
        name: of the agent.
        identity: a text that the file of the weights holds too.
        keys: the keys of each input in an observation of a Dict space.
    """
    specs = {key: (node.settings["shape"], node.settings["dtype"]) for key, node in graph.inputs().items()}
    body = "\n".join(f"    {line}" for line in statements(graph, _WRITERS))
    results = ", ".join(f'"{key}": x{position}' for key, position in graph.outputs.items())
    return _TEMPLATE.format(
        name=plain_text(name),
        inputs="\n".join(described_inputs(graph)),
        identity=identity,
        input_specs=specs,
        keys=dict(keys),
        helpers=_HELPERS,
        body=body,
        results=results,
    )


def numpy_weights(graph: Graph, identity: str) -> bytes:
    """Return the `.npz` file of a policy."""
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {"identity": np.array(identity), **graph.arrays()}
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def graph_function(graph: Graph) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Return the function `run` of the Python file, without files."""
    body = "\n".join(f"    {line}" for line in statements(graph, _WRITERS))
    results = ", ".join(f'"{key}": x{position}' for key, position in graph.outputs.items())
    source = f"import math\nimport numpy as np\n{_HELPERS}\ndef run(inputs):\n{body}\n    return {{{results}}}\n"
    module = types.ModuleType("policy")
    vars(module)["_w"] = graph.arrays()
    exec(compile(source, "policy.py", "exec"), vars(module))
    function: Callable[[Mapping[str, Array]], dict[str, Array]] = module.run
    return function


def _array(node: Node, position: int, name: str) -> str:
    return f'_w["{array_name(node, position, name)}"]'


def _joined(operator: str) -> Writer:
    return lambda node, position, x: f" {operator} ".join(x)


def _call(function: str, *names: str) -> Writer:
    """Return the writer of a call with the input, arrays and settings of these names."""

    def write(node: Node, position: int, x: list[str]) -> str:
        values = [_array(node, position, name) if name in node.arrays else repr(node.settings[name]) for name in names]
        return f"{function}({', '.join([*x, *values])})"

    return write


def _write_normalize(node: Node, position: int, x: list[str]) -> str:
    mean, rest, deviation = (_array(node, position, name) for name in ("mean", "mean_rest", "deviation"))
    bound = node.settings["bound"]
    return f"np.clip((({x[0]} - {mean}) - {rest}) / {deviation}, -{bound}, {bound})"


def _write_scale(node: Node, position: int, x: list[str]) -> str:
    factor, offset = node.settings["factor"], node.settings["offset"]
    scaled = f"{x[0]} * np.float32({factor!r})"
    return scaled if offset == 0 else f"{scaled} + np.float32({offset!r})"


def _write_append(node: Node, position: int, x: list[str]) -> str:
    values = _array(node, position, "values")
    return f"np.concatenate([{x[0]}, np.broadcast_to({values}, {x[0]}.shape)], axis=-1)"


def _write_rearrange(node: Node, position: int, x: list[str]) -> str:
    axes = (0, *(axis + 1 for axis in node.settings["axes"]))
    return f"{x[0]}.transpose({axes}).reshape(-1, *{node.settings['shape']!r})"


def _affine(node: Node, position: int, x: list[str]) -> str:
    return f"{x[0]} * {_array(node, position, 'factor')} + {_array(node, position, 'offset')}"


_WRITERS: dict[str, Writer] = {
    "input": lambda node, position, x: f"inputs[{node.settings['name']!r}]",
    "float": lambda node, position, x: f"{x[0]}.astype(np.float32)",
    "one_hot": _call("_one_hot", "sizes"),
    "flatten": lambda node, position, x: f"{x[0]}.reshape(len({x[0]}), -1)",
    "reshape": lambda node, position, x: f"{x[0]}.reshape(len({x[0]}), *{node.settings['shape']!r})",
    "concatenate": lambda node, position, x: f"np.concatenate([{', '.join(x)}], axis=-1)",
    "columns": lambda node, position, x: f"{x[0]}[:, {node.settings['start']}:{node.settings['stop']}]",
    "rearrange": _write_rearrange,
    "normalize": _write_normalize,
    "scale": _write_scale,
    "affine": _affine,
    "dense": lambda n, p, x: f"{x[0]} @ {_array(n, p, 'kernel')} + {_array(n, p, 'bias')}",
    "convolution": _call("_convolution", "kernel", "bias", "strides"),
    "activation": lambda node, position, x: _ACTIVATIONS[node.settings["name"]].format(x[0]),
    "leaky_relu": lambda node, position, x: f"np.where({x[0]} > 0, {x[0]}, {node.settings['slope']!r} * {x[0]})",
    "layer_norm": _call("_layer_norm", "gamma", "beta", "epsilon"),
    "add": _joined("+"),
    "subtract": _joined("-"),
    "multiply": _joined("*"),
    "average": lambda node, position, x: f"({' + '.join(x)}) / {len(x)}",
    "maximum": lambda node, position, x: f"np.maximum.reduce([{', '.join(x)}])",
    "minimum": lambda node, position, x: f"np.minimum.reduce([{', '.join(x)}])",
    "center": lambda node, position, x: f"{x[0]} - {x[0]}.mean(axis=-1, keepdims=True)",
    "append": _write_append,
    "argmax": _call("_argmax", "sizes", "shape"),
    "positive": lambda n, p, x: f"({x[0]} > 0).reshape(len({x[0]}), *{n.settings['shape']!r}).astype(np.int8)",
    "clip": _call("np.clip", "low", "high"),
}

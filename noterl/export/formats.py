"""Writing a policy in a format: into a temporary folder, comparing it with the agent, and then moving the files."""

from __future__ import annotations

import contextlib
import os
import runpy
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from noterl import backends
from noterl.acting.actor import Actor
from noterl.algorithm import Algorithm, composites
from noterl.backends import keras, ops
from noterl.export.keras_model import keras_model
from noterl.export.names import ENDINGS, export_path
from noterl.export.numpy_file import numpy_source, numpy_weights
from noterl.export.policy import Policy, inputs_of, make_policy, on_cpu
from noterl.export.torch_file import torch_source, torch_weights
from noterl.networks.graph import Array
from noterl.utils.files import write_bytes
from noterl.utils.optional import require

# What TensorFlow writes into the folder of a SavedModel.
_SAVED_MODEL = {"assets", "assets.extra", "fingerprint.pb", "keras_metadata.pb", "saved_model.pb", "variables"}

# Computes the results, by name, for inputs by name.
Function = Callable[[Mapping[str, Array]], dict[str, Array]]


class _Format(NamedTuple):
    """One format.

    Attributes:
        write: writes a policy to a path, and returns the function that runs what was written.
        backends: the backends that can write the format.
        on_cpu: whether the function runs on the CPU, whatever device the backend uses.
    """

    write: Callable[[Policy, Path], Function]
    backends: tuple[str, ...]
    on_cpu: bool = False


def export_agent(algorithm: Algorithm, actor: Actor, path: str | Path, format: str) -> Path:
    """Write the acting function of an agent, return the path; `Agent.export` documents the arguments and errors."""
    target = export_path(path, format)
    algorithm._reads.check()
    actor.mark_stale()
    name = type(algorithm).__name__
    if type(actor) is not Actor or algorithm.multi_agent:
        raise ValueError(f"the agent must act by one network to be exported, and {name} does not")
    networks = [*composites(algorithm), *([] if algorithm.state_spec else algorithm.networks().values())]
    export_policy(make_policy(name, networks, actor, algorithm.spaces.encoder), target, format)
    return target


def export_policy(policy: Policy, target: Path, format: str) -> None:
    """Write a policy to files, which replace older ones.

    Args:
        policy: the policy.
        target: what `export_path` returned.
        format: one of `FORMAT_NAMES`.

    Raises:
        ValueError: if this backend cannot write the format, or the result differs from the agent.
        ImportError: if an extra is missing.
        OSError: if a file cannot be written; older files are then unchanged.
    """
    chosen = FORMATS[format]
    endings = ENDINGS[format]
    if backends.name() not in chosen.backends:
        raise ValueError(
            f"format {format!r} cannot be written on {backends.name()}, only on {' and '.join(chosen.backends)}: use "
            "'keras', 'torch' or 'numpy', or load the agent's file on another backend"
        )
    with tempfile.TemporaryDirectory(prefix="noterl-export-") as folder:
        written = Path(folder, target.name)
        function = chosen.write(policy, written)
        policy.check(function(policy.inputs), format, exact=chosen.on_cpu or on_cpu())
        if not endings:
            _replace_folder(written, target)
            return
        for ending in reversed(endings):
            write_bytes(target.with_suffix(ending), written.with_suffix(ending).read_bytes())


def _replace_folder(written: Path, target: Path) -> None:
    """Copy a folder to `target`; an older SavedModel there is removed when the new one is in place."""
    names = set(os.listdir(target)) if target.is_dir() else set()
    if target.exists() and not {"saved_model.pb"} <= names <= _SAVED_MODEL:
        raise ValueError(f"path must be a new folder, or hold nothing but a SavedModel, got {str(target)!r}")
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
    try:
        shutil.copytree(written, beside / "new")
        if target.exists():
            os.replace(target, beside / "old")
        try:
            os.replace(beside / "new", target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.replace(beside / "old", target)
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _write_numpy(policy: Policy, path: Path) -> Function:
    keys = {name: keys for name, keys, _ in inputs_of(policy.encoder) if keys}
    path.write_text(numpy_source(policy.graph, policy.name, keys), encoding="utf-8")
    path.with_suffix(".npz").write_bytes(numpy_weights(policy.graph, policy.start))
    return cast(Function, runpy.run_path(str(path))["run"])


def _write_torch(policy: Policy, path: Path) -> Function:
    """Write the Python file and the weights; return a function that runs the module of these files on the CPU."""
    torch = require("torch", "torch", "the format 'torch'")
    path.write_text(torch_source(policy.graph, policy.name), encoding="utf-8")
    path.with_suffix(".pt").write_bytes(torch_weights(policy.graph))
    # On a device of Keras, its default device would receive the weights.
    with torch.device("cpu"):
        module = runpy.run_path(str(path))["load"]()

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        with torch.no_grad(), torch.device("cpu"):
            results = module(*(torch.from_numpy(array) for array in inputs.values()))
        return {name: np.asarray(tensor) for name, tensor in results.items()}

    return run


def _write_keras(policy: Policy, path: Path) -> Function:
    keras_model(policy.graph, "policy").save(path)
    model = keras.models.load_model(path)
    return lambda inputs: _run_keras(model, inputs)


def _run_keras(model: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
    results = model(next(iter(inputs.values())) if len(inputs) == 1 else dict(inputs))
    return {name: keras.ops.convert_to_numpy(ops.stop_gradient(tensor)) for name, tensor in results.items()}


def _called_model(policy: Policy) -> Any:
    """Return the Keras model of a policy; Keras exports only models that were called."""
    model = keras_model(policy.graph, "policy")
    _run_keras(model, policy.inputs)
    return model


def _write_saved_model(policy: Policy, path: Path) -> Function:
    """Write a folder of TensorFlow; return a function that runs the model of this folder."""
    tensorflow = require("tensorflow", "tensorflow", "the format 'saved_model'")
    _called_model(policy).export(path, format="tf_saved_model", verbose=False)
    loaded = tensorflow.saved_model.load(str(path))

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        results = loaded.serve(next(iter(inputs.values())) if len(inputs) == 1 else dict(inputs))
        return {name: np.asarray(tensor) for name, tensor in results.items()}

    return run


def _write_onnx(policy: Policy, path: Path) -> Function:
    """Write an ONNX file with the names of the policy's inputs and outputs; return a function that runs the file."""
    onnx = require("onnx", "onnx", "the format 'onnx'")
    runtime = require("onnxruntime", "onnx", "the format 'onnx'")
    if backends.name() == "tensorflow":
        require("tf2onnx", "onnx", "the format 'onnx' on TensorFlow")
    elif tuple(map(int, keras.__version__.split(".")[:2])) < (3, 15):
        raise ImportError(f"the format 'onnx' on torch needs Keras 3.15 or newer, got Keras {keras.__version__}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters trace Keras's code, about which they warn
        _called_model(policy).export(path, format="onnx", verbose=False)
    _rename(onnx, path, list(policy.graph.inputs()), sorted(policy.graph.outputs))
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _rename(onnx: Any, path: Path, inputs: list[str], outputs: list[str]) -> None:
    """Rename the inputs and outputs of an ONNX file, because exporters number the names or add a suffix."""
    model = onnx.load(str(path))
    graph = model.graph
    held = {node.name for node in graph.initializer}
    free_inputs = [value for value in graph.input if value.name not in held]
    # Exporters write the inputs of a dict in the order of their names.
    for value, name in [*zip(free_inputs, sorted(inputs), strict=True), *zip(graph.output, outputs, strict=True)]:
        _rename_value(graph, value.name, name)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _rename_value(graph: Any, old: str, new: str) -> None:
    """Rename a value of an ONNX graph wherever the graph names the value."""
    for value in [*graph.input, *graph.output, *graph.value_info]:
        if value.name == old:
            value.name = new
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == old:
                    names[index] = new


_ALL = ("tensorflow", "jax", "torch")
FORMATS: dict[str, _Format] = {
    "keras": _Format(_write_keras, _ALL),
    "saved_model": _Format(_write_saved_model, ("tensorflow", "jax")),
    "onnx": _Format(_write_onnx, ("tensorflow", "torch"), on_cpu=True),
    "torch": _Format(_write_torch, _ALL, on_cpu=True),
    "numpy": _Format(_write_numpy, _ALL, on_cpu=True),
}

"""Exports of normalized PPO and SAC and of DQN: every format, read as a user would, acts like the agent."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import backends, networks
from noterl.export import formats
from tests.support.keras_version import has_keras
from tests.support.representatives import representatives

FORMATS = {
    "tensorflow": ("keras", "saved_model", "onnx", "torch", "numpy"),
    "jax": ("keras", "saved_model", "torch", "numpy"),
    "torch": ("keras", "onnx", "torch", "numpy"),
}
# SavedModels are written and read with TensorFlow, also on JAX.
NEEDS = {"saved_model": "tensorflow", "onnx": "onnxruntime", "torch": "torch"}
ENDINGS = {"keras": ".keras", "saved_model": "", "onnx": ".onnx", "torch": ".py", "numpy": ".py"}

Inputs = Mapping[str, np.ndarray]
Function = Callable[[Inputs], dict[str, np.ndarray]]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@cache
def agent(name: str) -> Any:
    """Return an agent whose normalizer has seen observations."""
    if name == "DQN":
        made = noterl.DQN("CartPole-v1", dueling=True, hidden=(16, 16), seed=3)
        made.build()
        return made
    made = getattr(noterl, name)("Pendulum-v1", normalize_observation=True, hidden=(16, 16), seed=3)
    return with_statistics(made)


def with_statistics(made: Any) -> Any:
    """Build an agent whose normalizer has seen observations, without training."""
    made.build()
    made.spaces.normalizers.observation.update(np.random.default_rng(3).normal(0.5, 2.0, (64, 3)))
    return made


def module_of(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("policy", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path: Path, format: str) -> Function:
    """Return the function in an exported file, with the framework that it is for."""
    if format == "numpy":
        run: Function = module_of(path).run
        return run
    if format == "torch":
        import torch

        policy = module_of(path).load()

        def run_torch(inputs: Inputs) -> dict[str, np.ndarray]:
            with torch.no_grad():
                return {name: value.numpy() for name, value in policy(*map(torch.as_tensor, inputs.values())).items()}

        return run_torch
    if format == "keras":
        model = keras.models.load_model(path)
        return lambda inputs: dict(model.predict(inputs if len(inputs) > 1 else inputs["observation"], verbose=0))
    if format == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path))
        assert {each.name for each in session.get_inputs()} == {"observation"}
        return lambda inputs: dict(zip(("action", "outputs"), session.run(["action", "outputs"], inputs), strict=True))
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    return lambda inputs: {name: value.numpy() for name, value in loaded.serve(inputs["observation"]).items()}


def skip_unless_installed(format: str) -> None:
    if module := NEEDS.get(format):
        pytest.importorskip(module)
    if format == "onnx" and backends.name() == "torch" and not has_keras(3, 15):
        pytest.skip("needs Keras 3.15")


@pytest.mark.backends("torch")
def test_onnx_on_torch_needs_a_new_keras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(keras, "__version__", "3.14.1")
    with pytest.raises(ImportError, match=r"'onnx' on torch needs Keras 3\.15 .*3\.14\.1"):
        agent("PPO").export(tmp_path / "policy.onnx", "onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["keras", "saved_model", "onnx", "torch", "numpy"])
@pytest.mark.parametrize("name", representatives(["PPO", "SAC", "DQN"], "PPO"))
def test_exported_policy_acts_like_the_agent(name: str, format: str, tmp_path: Path) -> None:
    exported = agent(name)
    if format not in FORMATS[backends.name()]:
        with pytest.raises(ValueError, match=r"format.*'numpy'"):
            exported.export(tmp_path / "policy", format)
        assert not list(tmp_path.iterdir())
        return
    skip_unless_installed(format)
    path = exported.export(tmp_path / "policy", format)
    assert path == tmp_path / f"policy{ENDINGS[format]}"
    observations = np.random.default_rng(5).normal(size=(1_000, exported.observation_size)).astype("float32")
    results = read(path, format)({"observation": observations})
    assert set(results) == {"action", "outputs"}
    expected = exported.act(observations)
    if name == "DQN":
        ordered = np.sort(results["outputs"], axis=-1)
        clear = ordered[:, -1] - ordered[:, -2] > 2 * (1e-6 + 1e-5 * np.abs(ordered[:, -1]))
        assert clear.mean() > 0.99
        np.testing.assert_array_equal(results["action"][clear], expected[clear])
    else:
        np.testing.assert_allclose(results["action"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.backends("torch")
def test_numpy_file_needs_numpy_only(tmp_path: Path) -> None:
    import subprocess
    import sys

    exported = agent("PPO")
    path = exported.export(tmp_path / "policy.py", "numpy")
    observations = np.random.default_rng(6).normal(size=(1_000, 3)).astype("float32")
    np.save(tmp_path / "observations.npy", observations)
    script = """
import sys, numpy as np
sys.path.insert(0, ".")
import policy
observations = np.load("observations.npy")
actions = policy.act(observations)
np.testing.assert_allclose(policy.act(observations[3]), actions[3], rtol=1e-5, atol=1e-6)
np.save("actions.npy", actions)
found = {name.partition(".")[0] for name in sys.modules}
assert not found & {"noterl", "keras", "torch", "jax", "tensorflow", "gymnasium", "safetensors"}, found
"""
    subprocess.run([sys.executable, "-I", "-c", script], cwd=path.parent, check=True)
    np.testing.assert_allclose(np.load(tmp_path / "actions.npy"), exported.act(observations), rtol=1e-5, atol=1e-6)


@pytest.mark.backends("torch")
def test_folder_that_holds_other_files_is_not_replaced(tmp_path: Path) -> None:
    made, target = tmp_path / "made", tmp_path / "policy"
    for folder in (made, target):
        (folder / "variables").mkdir(parents=True)
        (folder / "saved_model.pb").write_text(folder.name)
    formats._replace_folder(made, target)
    assert (target / "saved_model.pb").read_text() == "made", "a SavedModel alone is replaced"
    (target / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for path in (target, tmp_path / "file", tmp_path):
        with pytest.raises(ValueError, match="nothing but a SavedModel"):
            formats._replace_folder(made, path)
    assert (target / "notes.txt").read_text() == (tmp_path / "file").read_text() == "mine"


@cache
def recurrent(kind: str) -> Any:
    """Return an agent with a memory, whose normalizer has seen observations."""
    made = noterl.PPO(
        "Pendulum-v1",
        recurrent=networks.recurrent(kind.partition(",")[0], 6, layer_norm="normalized" in kind),
        hidden=(8,),
        rollout_steps=16,
        normalize_observation=True,
        seed=3,
    )
    return with_statistics(made)


def read_with_state(path: Path, format: str) -> Function:
    """Return the function in an exported file of a policy with a memory, as `read` does for other policies."""
    if format == "keras":
        model = keras.models.load_model(path)
        return lambda inputs: {name: np.asarray(value) for name, value in model.predict(inputs, verbose=0).items()}
    if format == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path))
        names = [output.name for output in session.get_outputs()]
        return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))
    if format == "saved_model":
        import tensorflow as tf

        loaded = tf.saved_model.load(str(path))
        return lambda inputs: {name: value.numpy() for name, value in loaded.serve(inputs).items()}
    return read(path, format)


@pytest.mark.parametrize("format", ["keras", "saved_model", "onnx", "torch", "numpy"])
@pytest.mark.parametrize("kind", representatives(["gru", "lstm", "lstm, normalized"], "lstm, normalized"))
def test_exported_memory_acts_like_the_agent_across_episodes(kind: str, format: str, tmp_path: Path) -> None:
    skip_unless_installed(format)
    if format not in FORMATS[backends.name()]:
        pytest.skip(f"{backends.name()} does not write {format}")
    exported, rng = recurrent(kind), np.random.default_rng(7)
    run = read_with_state(exported.export(tmp_path / "policy", format), format)
    state = None
    inputs = {f"state.{name}": np.zeros((50, 6), np.float32) for name in exported.state_spec}
    for _ in range(20):
        observations, starts = rng.normal(size=(50, 3)).astype("float32"), rng.random(50) < 0.1
        expected, state = exported.act(observations, state, starts=starts)
        for values in inputs.values():
            values[starts] = 0
        results = run({"observation": observations, **inputs})
        np.testing.assert_allclose(results["action"], expected, rtol=1e-5, atol=1e-5)
        inputs = {name: np.array(results[f"next_{name}"]) for name in inputs}


@pytest.mark.backends("torch")
def test_numpy_file_starts_from_the_initial_state(tmp_path: Path) -> None:
    class Started(noterl.PPO):
        def initial_state(self) -> dict[str, np.ndarray]:
            return {"hidden": np.linspace(-0.9, 0.9, 6, dtype=np.float32)}

    agent = Started((spaces.Box(-1, 1, (3,)), spaces.Discrete(2)), recurrent="gru", recurrent_units=6, seed=1)
    act = module_of(agent.export(tmp_path / "policy", "numpy")).act
    observations = np.random.default_rng(9).normal(size=(20, 3)).astype("float32")
    for seen in (observations[0], observations):
        expected, state = agent.act(seen)
        action, after = act(seen)
        np.testing.assert_equal(action, expected)
        np.testing.assert_allclose(after["hidden"], state["hidden"], rtol=1e-5, atol=1e-6)


@pytest.mark.backends("torch")
def test_numpy_file_keeps_a_memory_for_a_thousand_steps(tmp_path: Path) -> None:
    exported, rng = recurrent("lstm"), np.random.default_rng(8)
    act = module_of(exported.export(tmp_path / "policy", "numpy")).act
    state = other = None
    for step in range(1_000):
        if step % 90 == 0:
            state = other = None
        observation = rng.normal(size=3).astype("float32")
        action, state = act(observation, state)
        expected, other = exported.act(observation, other)
        np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-5)

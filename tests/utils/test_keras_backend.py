"""The backend of a process: that of imported Keras, else of the variable, the config file, or the first installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from noterl.utils import keras_backend

ROOT = Path(__file__).parents[2]


def chosen(monkeypatch: pytest.MonkeyPatch, home: Path, installed: str, variable: str = "", config: str = "") -> str:
    """Return `KERAS_BACKEND` after `choose()` if only these frameworks are installed; "" if it is unset."""
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in installed.split() or None)
    monkeypatch.setenv("KERAS_HOME", str(home))
    monkeypatch.setenv("KERAS_BACKEND", variable)
    if config:
        (home / "keras.json").write_text(config)
    keras_backend.choose()
    return os.environ["KERAS_BACKEND"]


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("installed", "variable", "config", "expected"),
    [
        ("tensorflow jax torch", "torch", '{"backend": "jax"}', "torch"),
        ("tensorflow jax torch", "none", '{"backend": "jax"}', "none"),
        ("tensorflow jax torch", "", '{"backend": "jax"}', "jax"),
        ("jax torch", "", '{"backend": "tensorflow"}', "jax"),
        ("jax torch", "", '{"backend": "numpy"}', "jax"),
        ("torch", "", "{", "torch"),
        ("torch", "", "[]", "torch"),
        ("torch jax tensorflow", "", "", "tensorflow"),
        ("torch", "", "", "torch"),
        ("", "", "", ""),
    ],
)
def test_variable_then_config_file_then_first_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: str, variable: str, config: str, expected: str
) -> None:
    assert chosen(monkeypatch, tmp_path, installed, variable, config) == expected


@pytest.mark.backend_free
def test_backend_of_imported_keras_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = SimpleNamespace(backend=SimpleNamespace(backend=lambda: "jax"))
    monkeypatch.setitem(sys.modules, "keras", keras)
    keras_backend.choose()
    assert os.environ["KERAS_BACKEND"] == "jax"


def python(code: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**inherited, "KERAS_HOME": str(home), **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.backends("jax")  # the fastest to import
@pytest.mark.parametrize("imports", ["noterl, keras", "keras, noterl"])
def test_keras_and_noterl_use_one_backend_in_either_order(backend: str, tmp_path: Path, imports: str) -> None:
    (tmp_path / "keras.json").write_text(json.dumps({"backend": backend}))
    code = f"import os, {imports}; from noterl import backends"
    code += "; print(keras.backend.backend(), backends.name(), os.environ['KERAS_BACKEND'])"
    result = python(code, tmp_path)
    assert result.stdout.split() == [backend] * 3, result.stderr


@pytest.mark.backend_free
@pytest.mark.parametrize(("variable", "message"), [("", "noterl[jax]"), ("numpy", "KERAS_BACKEND must be one of")])
def test_missing_backend_is_an_import_error_where_it_is_needed(tmp_path: Path, variable: str, message: str) -> None:
    hidden = "import importlib.util; importlib.util.find_spec = lambda name: None; import noterl; "
    parts = "noterl.replay.Replay(8), noterl.policies.GreedyQPolicy(), noterl.schedules.Linear(1.0, 0.0, 5)"
    assert python(hidden + parts, tmp_path, KERAS_BACKEND=variable).returncode == 0
    result = python(hidden + "noterl.DQN", tmp_path, KERAS_BACKEND=variable)
    assert "ImportError" in result.stderr and message in result.stderr

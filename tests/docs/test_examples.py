"""Each example runs on one backend, mostly torch, shortened by the variable `NOTERL_MAX_EPISODES`."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
# The others run on torch, which compiles nothing.
BACKENDS = {"custom_keras_agent": "tensorflow", "demo": "jax", "ppo": "jax"}


def backend_of(path: Path) -> str:
    return BACKENDS.get(path.stem, "torch")


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem, marks=pytest.mark.backends(backend_of(path))) for path in EXAMPLES]
)
def test_example_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOTERL_MAX_EPISODES", "3")
    monkeypatch.setattr("sys.argv", [str(path)])
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:  # an example may end with an exit code
        assert not end.code

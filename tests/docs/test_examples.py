"""Each example runs on one backend, shortened by the variable `NOTERL_MAX_EPISODES`."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
BACKENDS = ("jax", "torch", "tensorflow")


def backend_of(path: Path) -> str:
    """Return the backend of an example: torch if it imports it, otherwise one after the other."""
    return "torch" if "import torch" in path.read_text(encoding="utf-8") else BACKENDS[EXAMPLES.index(path) % 3]


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

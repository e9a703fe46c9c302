"""The examples run, shortened by the variable `NOTERL_MAX_EPISODES`."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "import torch" in path.read_text(encoding="utf-8") and backend != "torch":
        pytest.skip("runs on torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOTERL_MAX_EPISODES", "3")
    monkeypatch.setattr("sys.argv", [str(path)])
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:  # an example may end with an exit code
        assert not end.code

"""Each example runs on one backend, mostly torch, shortened by the variable `NOTERL_MAX_EPISODES`."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
# The others run on torch, which compiles nothing.
BACKENDS = {"custom_keras_agent": "tensorflow", "demo": "jax", "ppo": "jax"}


def backend_of(path: Path) -> str:
    return BACKENDS.get(path.stem, "torch")


def start_thread(target: Any, *arguments: Any, name: str) -> Any:
    """Run a trial of `tune` in a thread, with the interface of its process."""
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=target, args=(theirs, *arguments), name=name, daemon=True)
    thread.start()
    running = {"pid": os.getpid(), "kill": lambda: None, "join": thread.join, "is_alive": thread.is_alive}
    return SimpleNamespace(**running), ours


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fit ended without a gradient update")
@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem, marks=pytest.mark.backends(backend_of(path))) for path in EXAMPLES]
)
def test_example_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOTERL_MAX_EPISODES", "3")
    monkeypatch.setattr("sys.argv", [str(path)])
    # The tests of `noterl.tune` start the processes of trials, each of which imports everything again.
    monkeypatch.setattr("noterl.tune.search.spawn", start_thread)
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:  # an example may end with an exit code
        assert not end.code

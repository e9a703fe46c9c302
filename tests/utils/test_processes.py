"""Processes of `spawn`: they end with the process that started them, and import nothing from the working folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest

from noterl.utils.processes import end, orphaned, spawn
from tests.support.states import ROOT

pytestmark = pytest.mark.backend_free

# Prints the number of a process that it has started, and waits.
PARENT = """
import sys, time
from noterl.utils.processes import spawn
from tests.utils.test_processes import wait
if __name__ == "__main__":
    process, pipe = spawn(wait, sys.argv[1], name="test")
    print(pipe.recv(), flush=True)
    time.sleep(600)
"""


def wait(pipe: Connection, path: str) -> None:
    """Send the number of this process, and wait for ever; create a file if the process that started it ends."""
    orphaned.append(Path(path).touch)
    pipe.send(os.getpid())
    while True:
        time.sleep(60)


def report_cluster(pipe: Any) -> None:
    pipe.send(os.environ.get("TF_CONFIG"))


def report(pipe: Connection) -> None:
    """Send where the module json is, and the variable that keeps the working folder out of the search path."""
    import json

    pipe.send((json.__file__, os.environ.get("PYTHONSAFEPATH")))


def test_process_ends_after_its_parent_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), str(tmp_path / "orphaned")]
    parent = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    child.wait()
    assert (tmp_path / "orphaned").exists()


def test_modules_of_the_working_folder_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pickle.py").write_text("raise AssertionError")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    process, pipe = spawn(report, name="test")
    path, variable = pipe.recv()
    end(process, pipe)
    assert Path(path).parent.name == "json"
    assert variable is None and "PYTHONSAFEPATH" not in os.environ


def test_processes_are_no_members_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{}")
    process, pipe = spawn(report_cluster, name="test")
    assert pipe.recv() is None and os.environ["TF_CONFIG"] == "{}"
    end(process, pipe)


class Pickled:
    """Waits, while it is pickled, for one event, after another one was set."""

    def __init__(self, reached: threading.Event, awaited: threading.Event, seconds: float) -> None:
        self.reached, self.awaited, self.seconds = reached, awaited, seconds

    def __reduce__(self) -> tuple[Any, ...]:
        self.reached.set()
        self.awaited.wait(self.seconds)
        return (str, ())


def sleep(pipe: Connection, argument: str) -> None:
    pipe.recv()


def test_two_threads_start_processes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    first_starts, second_starts, first_has_started = threading.Event(), threading.Event(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(spawn, sleep, Pickled(first_starts, second_starts, 0.3), name="first")
        first_starts.wait()
        second = pool.submit(spawn, sleep, Pickled(second_starts, first_has_started, 60.0), name="second")
        processes = [first.result()]
        first_has_started.set()
        processes.append(second.result())
    assert "PYTHONSAFEPATH" not in os.environ
    for process, pipe in processes:
        end(process, pipe)

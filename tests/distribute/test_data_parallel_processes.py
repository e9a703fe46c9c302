"""Data parallelism of several JAX processes: two processes on loopback make one training, and end together."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from noterl.distribute.data_parallel import start
from tests.support.launching import RANK_RUN, ROOT, require_jax_processes
from tests.support.launching import launch as launch_ranks
from tests.support.replica_equivalence import assert_equivalent

pytestmark = [pytest.mark.backends("jax"), pytest.mark.slow]

launch = partial(launch_ranks, "data-parallel")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder and the output of a run of two processes, in which each has recorded what it did."""
    folder = tmp_path_factory.mktemp("data_parallel")
    code, output = launch(RANK_RUN, "train,sequences,diverge,follow,remember,equivalence", folder)
    assert code == 0, output
    return folder, output


def recorded(folder: Path, mode: str) -> list[dict]:
    return [json.loads((folder / f"{mode}-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("mode", ["train", "sequences", "diverge", "follow", "remember"])
def test_processes_have_the_same_weights_and_counts(run: tuple[Path, str], mode: str) -> None:
    chief, other = recorded(run[0], mode)
    for own, others in zip(chief["fits"], other["fits"], strict=True):
        assert own["updates"] > 0
        for name in ("weights", "steps", "updates", "episodes", "reason", "learning_rate"):
            assert own[name] == others[name], name


def test_budgets_count_over_all_processes(run: tuple[Path, str]) -> None:
    first, second = recorded(run[0], "train")[0]["fits"]
    assert first["steps"] == 301 and first["updates"] == 4 * (301 // 16 - 64 // 16)
    assert second["episodes"] == first["episodes"] + 5 and second["reason"] == "episodes"  # with workers=1


def test_callbacks_history_and_files_are_those_of_the_chief(run: tuple[Path, str]) -> None:
    chief, other = recorded(run[0], "train")
    assert set(chief["fits"][0]["rank"]) == {0, 1}
    assert chief["ended"] and not other["ended"]
    assert list((run[0] / "files-0").iterdir()) and not (run[0] / "files-1").exists()


def test_two_processes_make_the_updates_of_one_device(run: tuple[Path, str]) -> None:
    assert_equivalent(run[1], float64=1e-12)


@pytest.mark.parametrize(
    ("mode", "message", "code"),
    [
        ("kill", r"lost the connection to another process", 137),
        ("raise", r"KeyError: 'the callback of the chief'[\s\S]*StrategyError.*rank 0: KeyError", 1),
    ],
)
def test_faults_end_the_run_everywhere(mode: str, message: str, code: int, tmp_path: Path) -> None:
    found, output = launch(RANK_RUN, mode, tmp_path)
    assert found == code and re.search(message, output), output
    assert not list(tmp_path.glob("*.json"))


def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    require_jax_processes()
    script = tmp_path / "script.py"
    script.write_text("import noterl\nnoterl.DQN('CartPole-v1')\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, str(script)], env={**os.environ, **variables(address)}, capture_output=True, text=True
        )
    assert done.returncode == 1 and "StrategyError" in done.stderr and address in done.stderr


def variables(address: str) -> dict[str, str]:
    return {
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": address,
        "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
        "KERAS_DISTRIBUTION_PROCESS_ID": "0",
    }


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("KERAS_DISTRIBUTION_PROCESS_ID", "2", "PROCESS_ID must be below"),
        ("KERAS_DISTRIBUTION_PROCESS_ID", "first", "PROCESS_ID, got 'first'"),
        ("KERAS_DISTRIBUTION_JOB_ADDRESSES", "", "JOB_ADDRESSES"),
    ],
)
def test_variables_are_checked(name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each, usual in variables("127.0.0.1:1").items():
        monkeypatch.setenv(each, usual)
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        start.__wrapped__()  # it runs once in a process

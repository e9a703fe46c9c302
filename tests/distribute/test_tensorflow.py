"""Strategies of TensorFlow, in processes of their own: two replicas compute what one device computes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.backends("tensorflow"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "tensorflow_strategies.py"


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def start(program: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-W", "ignore", str(SCRIPT), program]
    return subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def results(processes: list[subprocess.Popen[str]]) -> list[dict]:
    """Return the last JSON line of each process; all of them must end."""
    try:
        ended = [process.communicate() for process in processes]
    finally:
        for process in processes:
            process.kill()
    found = []
    for (output, errors), process in zip(ended, processes, strict=True):
        lines = [line for line in output.splitlines() if line.startswith("{")]
        assert lines or process.returncode in (0, -9), errors[-3000:]
        found.append(json.loads(lines[-1]) if lines else {})
    return found


def start_workers(
    program: str, ports: list[int], tasks: int | None = None, **variables: str
) -> list[subprocess.Popen[str]]:
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    return [
        start(
            program, TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}), **variables
        )
        for index in range(tasks or len(ports))
    ]


def assert_equal(compared: dict) -> None:
    assert set(compared) == {"DQN", "PPO", "SAC"}
    for name, found in compared.items():
        assert found["applied"] == 200, name
        assert found["changed"] > 1e-3, name
        assert found["variables"] < 1e-9, name
        assert found["logs"] < 1e-9, name


@pytest.fixture(scope="module")
def mirrored() -> dict:
    return results([start("mirrored")])[0]


def test_mirrored_devices_compute_the_updates_of_one_device(mirrored: dict) -> None:
    assert_equal(mirrored["compared"])


def test_fit_on_mirrored_devices_equals_fit_on_one(mirrored: dict) -> None:
    assert mirrored["updates"][0] == 28
    assert mirrored["difference"] < 1e-5
    assert mirrored["evaluated"] > 0


def test_mirrored_devices_share_sequences(mirrored: dict) -> None:
    assert mirrored["sequences"]["applied"] == 10
    assert mirrored["sequences"]["changed"] > 1e-3
    assert mirrored["sequences"]["variables"] < 1e-5


def test_workers_collect_for_mirrored_devices(mirrored: dict) -> None:
    assert mirrored["workers"] == [60, 28]


def test_networks_of_the_scope_train_with_and_without_the_strategy(mirrored: dict) -> None:
    assert mirrored["scope"]["updates"] == 16
    assert mirrored["scope"]["moved"] > 0, "the target network is not copied any more"


def test_mirrored_devices_keep_the_last_finite_state(mirrored: dict) -> None:
    assert mirrored["broken"][0] == "NonFiniteError"
    assert mirrored["kept"]


def test_batches_that_replicas_cannot_share_are_refused(mirrored: dict) -> None:
    kind, message = mirrored["odd"]
    assert kind == "ValueError"
    assert "batch_size" in message
    assert "15" in message
    kind, message = mirrored["other"]
    assert kind == "ValueError"
    assert "KERAS_BACKEND=torch" in message


@pytest.fixture(scope="module")
def killed() -> list[dict]:
    return results(start_workers("multiworker", free_ports(2), FAULT="kill"))


def test_processes_compute_the_updates_of_one_process(killed: list[dict]) -> None:
    assert_equal(killed[0]["compared"])


def test_processes_with_workers_share_budget_and_weights(killed: list[dict]) -> None:
    chief, other = killed
    assert chief["steps"] == other["steps"] == 80
    assert chief["updates"] == other["updates"] > 0
    assert chief["weights"] == other["weights"]
    assert chief["ranks"] == [0, 1]


def test_killed_process_ends_the_others_with_an_error(killed: list[dict]) -> None:
    kind, message = killed[0]["error"]
    assert kind == "StrategyError"
    assert "connection" in message
    assert "error" not in killed[1]


@pytest.fixture(scope="module")
def raised() -> list[dict]:
    return results(start_workers("multiworker", free_ports(2), FAULT="raise"))


def test_processes_make_the_same_random_number_of_updates_on_sequences(raised: list[dict]) -> None:
    chief, other = raised
    assert chief["sequences"] == other["sequences"]
    assert chief["sequences"][0] > 3  # one for each rollout


def test_error_in_the_chief_is_raised_in_the_other_process(raised: list[dict]) -> None:
    chief, other = raised
    assert chief["error"] == ["ArithmeticError", "of the chief"]
    assert other["error"][0] == "StrategyError"
    assert "connection" in other["error"][1]


def test_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = results(start_workers("connect", [port, *free_ports(1)], tasks=1))[0]
    assert found["error"][0] == "StrategyError"
    assert f"127.0.0.1:{port}" in found["error"][1]


def start_cluster(folder: Path, workers: int, last: str) -> list[subprocess.Popen[str]]:
    names = [("chief", 0), *(("worker", index) for index in range(workers)), ("ps", 0)]
    addresses = [f"127.0.0.1:{port}" for port in free_ports(len(names))]
    cluster: dict[str, list[str]] = {}
    for (job, _), address in zip(names, addresses, strict=True):
        cluster.setdefault(job, []).append(address)
    return [
        start(
            "parameter_server",
            TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": job, "index": index}}),
            FOLDER=str(folder),
            LAST=last,
        )
        for job, index in names
    ]


@pytest.mark.parametrize(("workers", "last"), [(2, "ps0"), (1, "worker0")])
def test_parameter_server_trains_until_the_last_worker_or_server_is_dead(
    tmp_path: Path, workers: int, last: str
) -> None:
    """With two workers, the first one is killed before."""
    chief = results(start_cluster(tmp_path, workers, last))[0]
    first, *others = chief["updates"]
    assert first > 0
    assert chief["sequences"] > 6  # one for each rollout
    assert others == [first + 40] * (workers - 1)
    assert chief["error"][0] == "StrategyError"
    assert ("worker" if last == "worker0" else "server") in chief["error"][1]
    assert chief["finite"]

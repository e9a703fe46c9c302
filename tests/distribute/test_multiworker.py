"""TensorFlow's strategy of several workers, in processes of their own: they compute what one process computes."""

from __future__ import annotations

import json
import socket
import subprocess

import pytest

from tests.support.tensorflow_processes import assert_equal, free_ports, results, start

pytestmark = [pytest.mark.backends("tensorflow"), pytest.mark.slow]


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

"""TensorFlow's parameter servers, in processes of their own, which are killed one after another."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.tensorflow_processes import free_ports, results, start

pytestmark = [pytest.mark.backends("tensorflow"), pytest.mark.slow]


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

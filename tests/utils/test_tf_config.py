"""TF_CONFIG is read, and errors in it are named."""

from __future__ import annotations

import json

import pytest

from noterl.utils.tf_config import Cluster, variables

pytestmark = pytest.mark.backend_free

WORKERS = ["127.0.0.1:1234", "127.0.0.1:1235"]


def config(cluster: object, kind: object = "worker", index: object = 0) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def test_workers_follow_the_chief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", config({"worker": WORKERS, "chief": ["127.0.0.1:1"]}, index=1))
    cluster = Cluster.read("multiworker")
    assert cluster.workers == ["127.0.0.1:1", *WORKERS]
    assert cluster.rank == 2
    assert cluster.servers == []


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "not set"),
        ("{", "JSON"),
        ("[]", "'cluster' and 'task'"),
        (config({"worker": []}), "host:port"),
        (config({"worker": ["localhost"]}), "host:port"),
        (config({"worker": ["localhost:99999"]}), "host:port"),
        (config({"ps": WORKERS}, "ps"), "'worker'"),
        (config({"worker": [WORKERS[0]] * 2}), "own address"),
        (config({"worker": WORKERS}, "chief"), "type"),
        (config({"worker": WORKERS}, index=2), "index"),
        (config({"worker": WORKERS}, index="0"), "index"),
        (config({"worker": WORKERS}, []), "type"),
        ("[" * 10_000, "deep"),
        (config({"worker": ["localhost:²"]}), "host:port"),
    ],
)
def test_errors_are_named(monkeypatch: pytest.MonkeyPatch, value: str | None, problem: str) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if value is not None:
        monkeypatch.setenv("TF_CONFIG", value)
    with pytest.raises(ValueError, match="TF_CONFIG") as raised:
        Cluster.read("multiworker")
    assert problem in str(raised.value)
    assert "multiworker" in str(raised.value)
    assert Cluster.find() is None


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("multiworker", ["rank 0", "rank 1", "rank 2"]),
        ("parameter_server", ["chief 0", "worker 0", "worker 1", "worker 2", "ps 0"]),
    ],
)
def test_launched_processes_find_each_other(monkeypatch: pytest.MonkeyPatch, word: str, names: list[str]) -> None:
    found, own = variables(word, 3, range(5000, 5005))
    assert found == names
    clusters = []
    for each in own:
        monkeypatch.setenv("TF_CONFIG", each["TF_CONFIG"])
        clusters.append(Cluster.read(word))
    assert len({(cluster.task, cluster.index) for cluster in clusters}) == len(names)
    assert all(cluster.jobs == clusters[0].jobs for cluster in clusters)
    assert len({address for addresses in clusters[0].jobs.values() for address in addresses}) == len(names)

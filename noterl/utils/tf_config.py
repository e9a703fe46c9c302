"""TF_CONFIG: the variable in which TensorFlow's processes find each other."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from noterl.utils.budget import parse

_EXAMPLE = (
    '{"cluster": {"worker": ["127.0.0.1:12345", "127.0.0.1:12346"]}, "task": {"type": "worker", "index": 0}}; '
    "`noterl launch` sets it"
)


@dataclass(frozen=True)
class Cluster:
    """The processes of a run.

    Attributes:
        jobs: the addresses by job: "worker", and for a parameter server "chief" and "ps".
        task: the job of this process.
        index: the number within the job.
    """

    jobs: dict[str, list[str]]
    task: str
    index: int

    @property
    def workers(self) -> list[str]:
        """The addresses of the processes that train, the chief's first."""
        return [*self.jobs.get("chief", ()), *self.jobs.get("worker", ())]

    @property
    def servers(self) -> list[str]:
        """The addresses of the parameter servers."""
        return list(self.jobs.get("ps", ()))

    @property
    def rank(self) -> int:
        """The number of this process among `workers`."""
        return self.index + (len(self.jobs.get("chief", ())) if self.task == "worker" else 0)

    @classmethod
    def find(cls) -> Cluster | None:
        """Return the cluster of `TF_CONFIG`; None if missing or not valid."""
        try:
            return cls.read("") if os.environ.get("TF_CONFIG") else None
        except ValueError:
            return None

    @classmethod
    def read(cls, word: str) -> Cluster:
        """Return the cluster of `TF_CONFIG`.

        Raises:
            ValueError: if the variable is missing or not valid.
        """
        text = os.environ.get("TF_CONFIG")
        needs = f"strategy={word!r} needs the environment variable TF_CONFIG, such as {_EXAMPLE}"
        if not text:
            raise ValueError(f"{needs}; it is not set")
        try:
            config = parse(os.fsencode(text), json.loads)
        except ValueError as error:
            raise ValueError(f"{needs}; it is not JSON: {error}, got {text!r:.200}") from None
        problem = _problem(config)
        if problem:
            raise ValueError(f"{needs}; {problem}, got {text!r:.200}")
        return cls(config["cluster"], config["task"]["type"], config["task"]["index"])


def variables(word: str, processes: int, ports: Sequence[int]) -> tuple[list[str], list[dict[str, str]]]:
    """Return the names and the environment variables of processes on this machine, for `noterl launch`.

    Args:
        word: "multiworker", or "parameter_server" for a chief and one server in addition to the workers.
        processes: the number of workers.
        ports: at least two more than there are workers.
    """
    jobs = {"worker": processes} if word == "multiworker" else {"chief": 1, "worker": processes, "ps": 1}
    remaining = iter(ports)
    cluster = {job: [f"127.0.0.1:{next(remaining)}" for _ in range(count)] for job, count in jobs.items()}
    tasks = [(job, index) for job, count in jobs.items() for index in range(count)]
    names = [f"rank {index}" if word == "multiworker" else f"{job} {index}" for job, index in tasks]
    configs = [json.dumps({"cluster": cluster, "task": {"type": job, "index": index}}) for job, index in tasks]
    return names, [{"KERAS_BACKEND": "tensorflow", "TF_CONFIG": config} for config in configs]


def _problem(found: Any) -> str | None:
    """Return what is wrong with a value of `TF_CONFIG`; None for a valid value."""
    cluster, task = (found.get("cluster"), found.get("task")) if isinstance(found, dict) else (None, None)
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        return "it must hold the dicts 'cluster' and 'task'"
    for job, addresses in cluster.items():
        if not isinstance(addresses, list) or not addresses or not all(map(_is_address, addresses)):
            return f"cluster[{job!r}] must be a list of 'host:port'"
    if not cluster.get("worker"):
        return "cluster must list 'worker'"
    everyone = [address for addresses in cluster.values() for address in addresses]
    if len(set(everyone)) < len(everyone):
        return "each process must have its own address"
    if not isinstance(task.get("type"), str) or task["type"] not in cluster:
        return f"task['type'] must be one of {', '.join(cluster)}"
    index = task.get("index")
    count = len(cluster[task["type"]])
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
        return f"task['index'] must be an int from 0 to {count - 1}"
    return None


def _is_address(value: Any) -> bool:
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return bool(host) and port.isdecimal() and len(port) < 6 and 0 < int(port) < 65536

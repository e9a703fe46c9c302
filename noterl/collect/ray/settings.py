"""`RayWorkers`: workers on the machines of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from noterl.collect.workers.process import Launcher
from noterl.collect.workers.settings import WorkerSettings
from noterl.collect.workers.shared_memory import Shapes, SharedMemory
from noterl.utils.checks import check_int, non_negative, positive
from noterl.utils.optional import require


@dataclass(frozen=True)
class RayWorkers(WorkerSettings):
    """The workers of a `fit` on a Ray cluster, for the argument `workers`. Each is a Ray actor in a separate process.

    If the script has not called `ray.init`, `fit` does. `fit` then connects to the cluster of the machine or of the
    variable `RAY_ADDRESS`, starts Ray on this machine if there is none, and disconnects at the end. noterl and the
    packages of the environment must be installed on all machines. Ray's extra is needed: `pip install "noterl[ray]"`.

    Args:
        num_workers: number of actors, which share the environments. Ray spreads the actors over the machines.
        num_cpus: how many cores Ray reserves for each.
        resources: further resources that each needs, such as {"simulator": 1}, as for `ray.remote`.
        start_timeout: seconds after which `fit` raises an error if the cluster has not started a worker.
        collect, overlap, max_staleness, on_failure, restarts, step_timeout: see `WorkerSettings`.

    Raises:
        ValueError: if an argument is not one of the allowed values.

    Example:
    >>> from noterl.collect import RayWorkers
    >>> RayWorkers(64, collect=8).num_cpus
    1.0
    """

    num_workers: int
    num_cpus: float = 1.0
    resources: Mapping[str, float] | None = None
    start_timeout: float = 600.0

    def __post_init__(self) -> None:
        check_int("num_workers", self.num_workers)
        non_negative("num_cpus", self.num_cpus)
        positive("start_timeout", self.start_timeout)
        if self.resources is not None and not isinstance(self.resources, Mapping):
            raise ValueError(f"resources must be None or a dict from names to amounts, got {self.resources!r}")
        super().__post_init__()

    @property
    def count(self) -> int:
        """The number of workers."""
        return self.num_workers

    def launcher(self, memory: SharedMemory, shapes: Shapes) -> Launcher:
        """Return what starts the actors.

        Raises:
            ImportError: if Ray is not installed.
            RuntimeError: if Ray cannot be started.
        """
        return require("noterl.collect.ray.launcher", "ray", "RayWorkers").RayLauncher(self, memory, shapes)

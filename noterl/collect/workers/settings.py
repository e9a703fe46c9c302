"""`Workers`: how many processes step the environments of a `fit`, and what happens if a worker fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from noterl.acting.actor import Actor
from noterl.collect.workers.process import Launcher, ProcessLauncher
from noterl.collect.workers.shared_memory import Shapes, SharedMemory
from noterl.utils.checks import check_bool, check_int, check_int_or_word, check_word, positive


class WorkerError(RuntimeError):
    """Raised if a worker process has failed and is not replaced.

    Attributes:
        worker: the number of the worker.
    """

    def __init__(self, worker: int, message: str) -> None:
        super().__init__(message)
        self.worker = worker


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """The settings of workers on one machine or on a cluster; see `Workers` and `RayWorkers`.

    Args:
        collect: for agents with a replay memory, the number of steps of each environment that workers take with the
            same weights. Larger numbers need fewer synchronizations. With "episode", a worker collects until an episode
            has ended in each environment of the worker. An agent that learns from rollouts always collects a whole
            rollout.
        overlap: whether workers go on collecting while the agent learns. Runs with a replay memory are then not
            reproducible. `docs/workers.md` describes what the bounds are.
        max_staleness: with overlap, the most gradient updates between the weights that chose an action and the time at
            which the agent receives the transition; None for no bound but the size of the rings.
        on_failure: what to do if a worker dies or hangs. "restart" replaces the worker with a warning and restarts the
            worker's episodes; "raise" ends the `fit` with a `WorkerError`. An exception of an environment always ends
            the `fit`.
        restarts: how many workers are replaced in one `fit`; the next failure ends the `fit`.
        step_timeout: seconds after which a step or a reset counts as hung; None for no limit.

    Raises:
        ValueError: if an argument is not one of the allowed values.
    """

    collect: int | str = 1
    overlap: bool = False
    max_staleness: int | None = None
    on_failure: str = "restart"
    restarts: int = 3
    step_timeout: float | None = None

    def __post_init__(self) -> None:
        check_int_or_word("collect", self.collect, "episode")
        check_bool("overlap", self.overlap)
        if self.overlap and self.collect != 1:
            raise ValueError(
                f"collect must be 1 with overlap=True, because workers then always collect, got {self.collect!r}"
            )
        if self.max_staleness is not None:
            check_int("max_staleness", self.max_staleness, least=0)
            if not self.overlap:
                raise ValueError(f"max_staleness needs overlap=True, got max_staleness={self.max_staleness!r}")
        check_word("on_failure", self.on_failure, ("restart", "raise"))
        check_int("restarts", self.restarts, least=0)
        if self.step_timeout is not None:
            positive("step_timeout", self.step_timeout)

    @property
    def count(self) -> int:
        """The number of workers."""
        raise NotImplementedError

    def launcher(self, memory: SharedMemory, shapes: Shapes) -> Launcher:
        """Return what starts the workers of a `fit`.

        Args:
            memory: the arrays that workers share with the learner.
            shapes: shape and dtype of the weights that workers receive; [] if the learner chooses the actions.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Workers(WorkerSettings):
    """The worker processes of a `fit` on this machine, for the argument `workers`.

    Args:
        processes: number of processes, which share the environments.
        collect, overlap, max_staleness, on_failure, restarts, step_timeout: see `WorkerSettings`.

    Raises:
        ValueError: if an argument is not one of the allowed values.

    Example:
    >>> from noterl.collect import Workers
    >>> Workers(4, step_timeout=30).restarts
    3
    """

    processes: int

    def __post_init__(self) -> None:
        check_int("processes", self.processes)
        super().__post_init__()

    @property
    def count(self) -> int:
        """The number of workers."""
        return self.processes

    def launcher(self, memory: SharedMemory, shapes: Shapes) -> Launcher:
        """Return what starts the processes."""
        return ProcessLauncher(memory)


def check_actor(actor: Actor, workers: WorkerSettings | None) -> None:
    """Check that an actor can act for workers, and that a list of policies or noises has one for each worker.

    Raises:
        ValueError: if not.
    """
    if workers is not None and actor.searches:
        raise ValueError(
            "workers must be 0: the agent searches from the states of environments in this process; got "
            f"workers={workers.count}"
        )
    expected = len(actor.worker_explorers)
    count = 0 if workers is None else workers.count
    if expected and expected != count:
        raise ValueError(
            f"workers must be {expected}, because compile received a list of {expected} policies or noises, got {count}"
        )


def check_workers(workers: Any) -> WorkerSettings | None:
    """Return the argument `workers` of `fit` as settings; None for None and 0.

    Raises:
        ValueError: if the argument is not an int of at least 0, a `Workers` or a `RayWorkers`.
    """
    if workers is None or isinstance(workers, WorkerSettings):
        return workers
    try:
        count = check_int("workers", workers, least=0)
    except ValueError as error:
        raise ValueError(
            f"workers must be an int of at least 0, a noterl.collect.Workers or a RayWorkers, got {workers!r}"
        ) from error
    return Workers(count) if count else None

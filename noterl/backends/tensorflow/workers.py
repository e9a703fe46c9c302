"""The processes of a `MultiWorkerMirroredStrategy`: the connection, and messages between processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
from tensorflow.python.eager import context

from noterl.backends.meeting import listener, meet
from noterl.backends.process_group import ConnectionLost, ProcessGroup

# Processes must start within this time of each other.
CONNECT_SECONDS = 25
# A process that has sent no heartbeat for this time is dead. TensorFlow's default is longer.
HEARTBEAT_SECONDS = 10

_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)


def is_in_use() -> bool:
    """Return whether TensorFlow has created a tensor in this process, which then cannot be connected to others."""
    return context.context()._context_handle is not None


def connect(workers: Sequence[str], rank: int, has_chief: bool) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Return the strategy of the processes that `TF_CONFIG` lists, connected.

    Args:
        workers: the addresses of the processes, the chief's first.
        rank: the number of this process.
        has_chief: whether the first one is the job "chief", and the others are the job "worker".

    Raises:
        ConnectionLost: if not all processes start within `CONNECT_SECONDS`, or the port of this process is in use.
    """
    # TensorFlow's own server would wait for processes without end.
    with listener(workers[rank]) if rank else contextlib.nullcontext():  # to name a port in use
        missing = [workers[other] for other in meet(workers[0], rank, len(workers), CONNECT_SECONDS)]
    if missing:
        raise ConnectionLost(
            f"rank {rank} has not reached {', '.join(missing)} of the {len(workers)} processes of TF_CONFIG within "
            f"{CONNECT_SECONDS} s; if one has failed, its own error says why"
        )
    _configure({"chief": 1, "worker": len(workers) - 1} if has_chief else {"worker": len(workers)})
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        Workers(strategy, rank, len(workers)).agree([0.0])
    except (*_ERRORS, tf.errors.OpError) as error:
        raise ConnectionLost(
            f"rank {rank} cannot connect to the {len(workers)} processes of TF_CONFIG, {', '.join(workers)}: "
            f"{cause_of(error)}. All must start within {CONNECT_SECONDS} s of each other; if one has failed, its own "
            "error says why"
        ) from error
    return strategy


def _configure(jobs: dict[str, int]) -> None:
    """Set the times within which TensorFlow detects that a process is missing or dead."""
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{next(iter(jobs))}/replica:0/task:0",
        cluster_register_timeout_in_ms=1000 * CONNECT_SECONDS,
        heartbeat_timeout_in_ms=1000 * HEARTBEAT_SECONDS,
        coordinated_jobs=[CoordinatedJob(name=job, num_tasks=count) for job, count in jobs.items()],
    )


class Workers(ProcessGroup):
    """The hosts of a strategy.

    Args:
        strategy: of several processes.
        rank: the number of this process.
        count: the number of processes.
    """

    def __init__(self, strategy: tf.distribute.Strategy, rank: int, count: int) -> None:
        self.strategy = strategy
        self.rank: int = rank
        self.count: int = count
        self._sum = tf.function(self._sum_over_workers, autograph=False, reduce_retracing=False)

    def fail(self, reason: str) -> None:
        """Abort the operations of the other processes, with this reason."""
        handle = context.context()
        with contextlib.suppress(tf.errors.OpError):  # another process has failed already
            handle.report_error_to_cluster(tf.errors.ABORTED, f"rank {self.rank}: {reason}")

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Raise a `ConnectionLost` for errors of operations over all processes inside the context."""
        try:
            yield
        except _ERRORS as error:
            raise ConnectionLost(
                f"rank {self.rank} has lost the connection to another process of the run, which has failed or was "
                f"killed: {cause_of(error)}"
            ) from error

    def exchange(self, own: np.ndarray) -> np.ndarray:
        """Return the int32 vectors of all processes, `[processes, n]`."""
        rows = np.zeros((self.count, len(own)), own.dtype)
        rows[self.rank] = own
        with self.reporting():
            gathered: np.ndarray = self._sum(tf.constant(rows)).numpy()
        return gathered

    def _sum_over_workers(self, rows: Any) -> Any:
        """Return the sum over all processes; of each process, only the first replica contributes."""
        strategy = self.strategy
        local = len(strategy.extended.worker_devices)

        def total() -> Any:
            replica = tf.distribute.get_replica_context()
            is_first = int(tf.get_static_value(replica.replica_id_in_sync_group)) % local == 0
            # A reduction needs the device of an operation, which `tf.identity` has.
            summand = tf.identity(rows) if is_first else tf.zeros_like(rows)
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, summand)

        return strategy.experimental_local_results(strategy.run(total))[0]


def cause_of(error: Exception) -> str:
    """Return what an error of TensorFlow says, without the traces around it."""
    lines = [line.strip() for line in str(error).splitlines()]
    causes = [line for line in lines if any(word in line for word in ("rank ", "aborted", "heartbeat", "unavailable"))]
    return ([*causes, *filter(None, lines)] or [type(error).__name__])[0][:300]

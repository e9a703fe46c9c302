"""The processes of a `MultiWorkerMirroredStrategy`: their connection, and messages between them."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
from tensorflow.python.eager import context

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


class ConnectionLost(RuntimeError):
    """Raised if an operation over all processes fails, or the processes cannot connect to each other."""


def connect(workers: Sequence[str], rank: int) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Return the strategy of the processes that `TF_CONFIG` lists, connected.

    Raises:
        ConnectionLost: if they do not all start within `CONNECT_SECONDS`, or the port of this process is in use.
        RuntimeError: if TensorFlow has created a tensor before.
    """
    if context.context()._context_handle is not None:
        raise RuntimeError("TensorFlow is in use already")
    _check_port(workers[rank])
    _configure(["worker"], [len(workers)])
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        Workers(strategy, rank, len(workers)).agree([0.0])
    except (*_ERRORS, tf.errors.OpError) as error:
        raise ConnectionLost(
            f"rank {rank} cannot connect to the {len(workers)} processes of TF_CONFIG, {', '.join(workers)}: "
            f"{first_line(error)}. All must start within {CONNECT_SECONDS} s of each other; if one has failed, its own "
            "error says why"
        ) from error
    return strategy


def _configure(jobs: Sequence[str], counts: Sequence[int]) -> None:
    """Set the times within which TensorFlow detects that a process is missing or dead."""
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=1000 * CONNECT_SECONDS,
        heartbeat_timeout_in_ms=1000 * HEARTBEAT_SECONDS,
        coordinated_jobs=[CoordinatedJob(name=job, num_tasks=count) for job, count in zip(jobs, counts, strict=True)],
    )


def _check_port(address: str) -> None:
    """Check that this process can listen at its address, because TensorFlow's own error does not name it.

    Raises:
        ConnectionLost: if another program uses the port.
    """
    host, _, port = address.rpartition(":")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, int(port)))
        except OSError as error:
            raise ConnectionLost(
                f"this process cannot listen at {address}, its address in TF_CONFIG: {error.strerror or error}; choose "
                "another port"
            ) from error


class Workers:
    """Messages between the hosts of a strategy.

    Args:
        strategy: of several processes.
        rank: the number of this process.
        count: the number of processes.
    """

    def __init__(self, strategy: tf.distribute.Strategy, rank: int, count: int) -> None:
        self.strategy, self.rank, self.count = strategy, rank, count
        self._sum = tf.function(self._sum_over_workers, autograph=False, reduce_retracing=False)

    def agree(self, values: Sequence[float]) -> np.ndarray:
        """Return the values of all processes, `[processes, n]`."""
        return self._gather(np.asarray(values, np.float64))

    def gather(self, message: bytes) -> list[bytes]:
        """Return the messages of all processes."""
        lengths = self.agree([float(len(message))])[:, 0].astype(int)
        # Few lengths, because each is traced; 4 bytes are one number.
        size = max(64, 1 << int(lengths.max() - 1).bit_length()) if lengths.max() else 0
        if not size:
            return [b""] * self.count
        own = np.frombuffer(message.ljust(size, b"\0"), np.int32)
        return [row.tobytes()[:length] for row, length in zip(self._gather(own), lengths, strict=True)]

    def fail(self, reason: str) -> None:
        """Abort the operations of the other processes, with this reason."""
        handle = context.context()
        if handle.coordination_service is not None:
            handle.report_error_to_cluster(tf.errors.ABORTED, f"rank {self.rank}: {reason}")

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Raise a `ConnectionLost` for errors of operations over all processes inside the context."""
        try:
            yield
        except _ERRORS as error:
            raise ConnectionLost(
                f"rank {self.rank} has lost the connection to another process of the run, which has failed or was "
                f"killed: {first_line(error)}"
            ) from error

    def _gather(self, own: np.ndarray) -> np.ndarray:
        rows = np.zeros((self.count, len(own)), own.dtype)
        rows[self.rank] = own
        with self.reporting():
            return self._sum(tf.constant(rows)).numpy()

    def _sum_over_workers(self, rows: Any) -> Any:
        strategy = self.strategy
        local = len(strategy.extended.worker_devices)

        def total() -> Any:
            replica = tf.distribute.get_replica_context()
            is_first = int(tf.get_static_value(replica.replica_id_in_sync_group)) % local == 0
            own = tf.identity(rows) if is_first else tf.zeros_like(rows)  # a reduction needs the device of an operation
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, own)

        return strategy.experimental_local_results(strategy.run(total))[0]


def first_line(error: Exception) -> str:
    """Return what an error of TensorFlow says, without the traces around it."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if any(word in line for word in ("rank ", "aborted", "heartbeat", "unavailable"))]
    return ([*told, *filter(None, lines)] or [type(error).__name__])[0][:300]

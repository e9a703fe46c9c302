"""Updates that a coordinator schedules on workers, with the variables on parameter servers."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from noterl.backends.common import GatheredRows, GroupResult, Rows, joined, num_updates
from noterl.backends.process_group import ConnectionLost
from noterl.backends.tensorflow.gradients import FiniteFlag, all_finite
from noterl.backends.tensorflow.replicas import copies_of, tracing_with
from noterl.backends.tensorflow.updates import Updates
from noterl.backends.tensorflow.workers import CONNECT_SECONDS, cause_of
from noterl.types import Batch, map_arrays
from noterl.utils.cores import available_cores

# A process that accepts no connection for this time is dead.
DEAD_SECONDS = 5.0
_POLL_SECONDS = 0.002
_PROBE_SECONDS = 1.0


def is_listening(address: str) -> bool:
    """Return whether a process accepts connections at an address "host:port"."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_PROBE_SECONDS):
            return True
    except OSError:
        return False


def serve(job: str, index: int, chief: str) -> None:
    """Run a worker or a parameter server until the chief has ended.

    Raises:
        ConnectionLost: if the server cannot start, or there is no chief within `CONNECT_SECONDS`.
    """
    cluster = tf.train.ClusterSpec(json.loads(os.environ["TF_CONFIG"])["cluster"])
    # A call to another process occupies a thread until it returns. With one core and one thread, no call would return.
    threads = max(available_cores(), cluster.num_tasks("worker") + 1)
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
    try:
        server = tf.distribute.Server(cluster, job_name=job, task_index=index, protocol="grpc", config=config)
    except tf.errors.OpError as error:
        raise ConnectionLost(f"{job} {index} cannot listen at its address in TF_CONFIG: {cause_of(error)}") from error
    if not _wait_for([chief]):
        raise ConnectionLost(f"{job} {index} found no chief at {chief} within {CONNECT_SECONDS} s")
    last = time.monotonic()
    # One connection may fail on a busy machine, so the chief must be silent for a while.
    while time.monotonic() - last < DEAD_SECONDS:
        if is_listening(chief):
            last = time.monotonic()
        time.sleep(_PROBE_SECONDS)
    del server


def _wait_for(addresses: Sequence[str]) -> bool:
    """Return whether all addresses accept connections within `CONNECT_SECONDS`."""
    until = time.monotonic() + CONNECT_SECONDS
    while not all(map(is_listening, addresses)):
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True


def connect(workers: Sequence[str], servers: Sequence[str]) -> tf.distribute.ParameterServerStrategy:
    """Return the chief's strategy, connected to the workers and servers.

    Raises:
        ConnectionLost: if not all processes start within `CONNECT_SECONDS`.
    """
    if not _wait_for([*workers, *servers]):
        missing = [address for address in (*workers, *servers) if not is_listening(address)]
        raise ConnectionLost(f"no process of TF_CONFIG listens at {', '.join(missing)} after {CONNECT_SECONDS} s")
    return tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())


class Fleet:
    """The workers and parameter servers of a chief.

    Args:
        strategy: of the chief.
        workers: the addresses of the workers.
        servers: the addresses of the parameter servers.
    """

    def __init__(
        self, strategy: tf.distribute.ParameterServerStrategy, workers: Sequence[str], servers: Sequence[str]
    ) -> None:
        self.strategy = strategy
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._seen = dict.fromkeys((*workers, *servers), time.monotonic())
        self._workers = list(workers)
        self._servers = list(servers)
        self._probed = 0.0

    @property
    def num_workers(self) -> int:
        """The number of workers that are alive."""
        return max(1, sum(map(self._is_alive, self._workers)))

    def wait(self) -> None:
        """Wait for all scheduled closures.

        Raises:
            ConnectionLost: if a server or the last worker is dead.
        """
        try:
            while not self.coordinator.done():
                self._probe()
                time.sleep(_POLL_SECONDS)
            self.coordinator.join()
        except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.FailedPreconditionError) as error:
            raise ConnectionLost(f"a parameter server has failed or was killed: {cause_of(error)}") from error

    def _probe(self) -> None:
        """Look each second which processes accept connections; raise a ConnectionLost if training cannot go on."""
        if time.monotonic() - self._probed < _PROBE_SECONDS:
            return
        for address in self._seen:
            if is_listening(address):
                self._seen[address] = time.monotonic()
        self._probed = time.monotonic()
        dead = [address for address in self._servers if not self._is_alive(address)]
        if dead:
            raise ConnectionLost(f"the parameter server at {dead[0]} has failed or was killed")
        if not any(map(self._is_alive, self._workers)):
            raise ConnectionLost(f"all workers, {', '.join(self._workers)}, have failed or were killed")

    def _is_alive(self, address: str) -> bool:
        return self._probed - self._seen[address] < DEAD_SECONDS


class _Worker:
    """A worker's part of an update during tracing, without averages over the workers."""

    count = 1

    def mean(self, value: Any) -> Any:
        """Return the value."""
        return value

    def mean_of_all(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the tensors."""
        return list(tensors)

    def mean_gradients(
        self, take: Callable[[], tuple[Any, Any, list[Any]]], loss: Callable[[], Any]
    ) -> tuple[Any, Any, list[Any]]:
        """Return `take()`."""
        return take()

    def apply(self, optimizer: Any, gradients: list[Any], variables: list[keras.Variable]) -> None:
        """Apply the optimizer, unless a gradient is not finite: other workers use the variables meanwhile."""

        def applied() -> Any:
            optimizer.apply(gradients, variables)
            return tf.constant(True)

        tf.cond(all_finite(gradients), applied, lambda: tf.constant(False))


@dataclass(eq=False)
class ScheduledUpdates(Updates):
    """Updates of which the coordinator schedules equal parts on the workers; see `UpdateProgram`.

    The updates of a call run at the same time on all workers, each with the current variables. The chief waits for the
    whole call, then copies the variables from the servers.
    """

    fleet: Fleet = field(kw_only=True)
    xla = False

    def __post_init__(self) -> None:
        super().__post_init__()
        with self.fleet.strategy.scope():
            self._served = copies_of(self._state)
        self._known = [variable.numpy() for variable in self._state]  # what the servers hold
        self._closures: dict[Any, Any] = {}

    def __call__(self, rows: Rows, count: int, first: int = 0) -> GroupResult:
        """Make `count` updates, of which the first has the number `first`."""
        # Callbacks, hard copies or restored states have changed some variables; the others are not sent.
        for k, variable in enumerate(self._state):
            value = variable.numpy()
            if not np.array_equal(value, self._known[k], equal_nan=value.dtype.kind == "f"):
                self._served[k].assign(value)
                self._known[k] = value
        batches = _gathered(rows) if isinstance(rows, GatheredRows) else rows
        # Parts of equal size share one traced closure; the last part is padded.
        size = -(-num_updates(rows) // self.fleet.num_workers)  # rounded up
        scheduled = []
        for start in range(0, count, size):
            part = map_arrays(partial(_part, start, size), batches)
            used = min(size, count - start)
            numbers = tf.constant(used), tf.constant((first + start) % self.period)
            flat = [*numbers, *map(tf.constant, tf.nest.flatten(part))]
            closure = self._closure(part, flat)
            scheduled.append((used, self.fleet.coordinator.schedule(closure, args=tuple(flat))))
        self.fleet.wait()
        return self._result([(used, remote.fetch()) for used, remote in scheduled])

    def _closure(self, part: Batch, flat: list[Any]) -> Any:
        """Return the function that a worker runs for a part of this layout; `flat` are the function's arguments."""
        key = tuple((tuple(tensor.shape), tensor.dtype) for tensor in flat)
        if key not in self._closures:
            structure = tf.nest.map_structure(lambda _: 0, part)

            def on_worker(count: Any, start: Any, *arrays: Any) -> Any:
                self.on_trace()
                rows = tf.nest.pack_sequence_as(structure, arrays)
                # A closure without `run` fails inside of Keras's optimizers.
                return self.fleet.strategy.run(self._on_worker, args=(rows, count, start))

            specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in flat]
            self._closures[key] = tf.function(on_worker, input_signature=specs, autograph=False)
        return self._closures[key]

    def _on_worker(self, rows: Batch, count: Any, start: Any) -> Any:
        return self._repeat(self._once_on_worker, rows, count, start, until_false=False)[2]

    def _once_on_worker(self, batch: Batch, index: int = 0) -> tuple[Any, tuple[dict, dict]]:
        with tracing_with(_Worker(), self.variables, self._served), FiniteFlag(losses_only=False) as flag:
            logs, feedback = self.step(batch, index)
        # The flag is returned among the logs, under a name that no log has.
        return tf.constant(True), ({**logs, "": flag.value}, feedback)

    def _result(self, results: list[tuple[int, tuple[dict, dict]]]) -> GroupResult:
        """Copy the variables from the servers, and join the results of the parts, without the padding.

        Args:
            results: for each part, the number of updates, and (logs, feedback).
        """
        self._known = [served.numpy() for served in self._served]
        for variable, value in zip(self._state, self._known, strict=True):
            variable.assign(value)
        logs = joined([map_arrays(partial(_part, 0, used), logs) for used, (logs, _) in results])
        feedback = joined([map_arrays(partial(_part, 0, used), feedback) for used, (_, feedback) in results])
        finite = logs.pop("")
        return GroupResult(logs, feedback, len(finite) if finite.all() else int(np.argmin(finite)))


def _gathered(rows: GatheredRows) -> Batch:
    """Return batches `[K, B, ...]` on the host."""
    return map_arrays(lambda array: np.asarray(array)[np.asarray(rows.indices)], rows.data)


def _part(start: int, size: int, array: np.ndarray) -> np.ndarray:
    """Return `size` batches from number `start` on, padded with zeros."""
    batches = array[start : start + size]
    return np.concatenate([batches, np.zeros((size - len(batches), *array.shape[1:]), array.dtype)])

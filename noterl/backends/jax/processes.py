"""Processes of `jax.distributed`: the connection, and averages of gradients and statistics over all processes."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import cache
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from noterl.backends.meeting import choose_loopback_interface, is_loopback, meet
from noterl.backends.process_group import ConnectionLost, ProcessGroup, settle
from noterl.backends.replicas import averaging, means_by_dtype

T = TypeVar("T")

# Processes must start within this time of each other.
CONNECT_SECONDS = 25
# A process that has sent no heartbeat for this time is dead. JAX's default is longer.
_HEARTBEAT_SECONDS = 10
# The operations of a process wait for the others this long, because a callback of the chief may take minutes.
_WAIT_SECONDS = 24 * 3600
_OLDEST = (0, 9)
_CHECK_SECONDS = 1.0  # between looks for an error of another process
_CONNECTION_WORDS = ("Gloo", "NCCL", "UNAVAILABLE", "ABORTED", "heartbeat")

_AXIS = "process"
_ERROR_KEY = "noterl/error"

# Where an array is: a copy in each process, or divided along its first or second axis.
REPLICATED = PartitionSpec()
ROWS = PartitionSpec(_AXIS)
GROUPS = PartitionSpec(None, _AXIS)


def is_connected() -> bool:
    """Return whether this process is connected to others."""
    return _client() is not None  # `jax.distributed.is_initialized` is missing in JAX 0.5


def num_processes() -> int:
    """Return the number of connected processes; 1 without a connection."""
    return int(jax.process_count())


def connect(coordinator: str, count: int, rank: int) -> None:
    """Connect this process to the others of a run.

    Args:
        coordinator: the address "host:port" of the first process.
        count: the number of processes.
        rank: the number of this process.

    Raises:
        ImportError: if JAX is too old.
        ConnectionLost: if not all processes start within `CONNECT_SECONDS`, the port is in use, or JAX has computed
            something in this process before.
        ValueError: if a process has several devices.
    """
    _check_version()
    flags = os.environ.get("XLA_FLAGS", "")
    # A limit of the user stays.
    if "xla_cpu_collective_timeout_seconds" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_collective_timeout_seconds={_WAIT_SECONDS}"
    host, _, port = coordinator.rpartition(":")
    is_local = is_loopback(host)
    served = coordinator if is_local else f"0.0.0.0:{port}"  # by default, JAX listens at all addresses
    if is_local:
        choose_loopback_interface()
    # JAX itself ends the process if the port is in use, or another process is missing.
    missing = meet(served if rank == 0 else coordinator, rank, count, CONNECT_SECONDS)
    if missing:
        raise ConnectionLost(
            f"rank {rank} has not reached rank {', '.join(map(str, missing))} of the {count} processes of the run at "
            f"{coordinator} within {CONNECT_SECONDS} s; if one has failed, its own error says why"
        )
    try:
        jax.distributed.initialize(
            coordinator,
            count,
            rank,
            cluster_detection_method="deactivate",
            initialization_timeout=CONNECT_SECONDS,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=_HEARTBEAT_SECONDS,
            coordinator_bind_address=served,
        )
        if is_local:
            _connect_cpus_on_loopback()
        # Devices connect at the first operation over all processes, so errors of the connection are raised here.
        connected().agree([0.0])
    except RuntimeError as error:  # errors of XLA are RuntimeErrors
        raise ConnectionLost(
            f"rank {rank} cannot connect to the {count} processes of the run at {coordinator}: {_first_line(error)}"
        ) from error


@cache
def connected() -> Processes:
    """Return the connected processes, the same object in each call.

    Raises:
        ValueError: if a process has several devices.
    """
    return Processes()


class Processes(ProcessGroup):
    """The connected processes, with one device each; also the replicas of an update.

    Raises:
        ImportError: if JAX is too old.
        ValueError: if a process has several devices.

    Attributes:
        rank: the number of this process.
        count: the number of processes.
    """

    def __init__(self) -> None:
        _check_version()
        self.rank: int = jax.process_index()
        self.count: int = jax.process_count()
        self._mesh = _mesh(jax.devices())
        self._host_mesh = _mesh(jax.devices("cpu"))
        self._to_all = jax.jit(lambda rows: rows, out_shardings=NamedSharding(self._host_mesh, REPLICATED))
        self._thread = _Thread()

    def run(self, function: Callable[[], T]) -> T:
        """Return `function()`, which computes with the other processes.

        The function runs in a thread: if another process has stored an error, this process stops waiting.

        Raises:
            ConnectionLost: if another process has failed.
        """
        try:
            return self._thread.run(function, self._raise_error)
        except (RuntimeError, ValueError) as error:  # both are types of XLA's errors
            if isinstance(error, ConnectionLost) or not any(word in str(error) for word in _CONNECTION_WORDS):
                raise
            self._raise_error()
            raise self._lost(_first_line(error)) from error

    def fail(self, reason: str) -> None:
        """Store the error of this process; the others raise the error while waiting for this process."""
        client = _client()
        if client is not None:
            with contextlib.suppress(RuntimeError):  # the first process has failed, or there is an error already
                client.key_value_set(_ERROR_KEY, f"rank {self.rank}: {reason}")

    def _raise_error(self) -> None:
        """Raise the error of another process, if there is one."""
        client = _client()
        if client is None:  # one process, or the connection has ended
            return
        try:
            reason = client.key_value_try_get(_ERROR_KEY)
        except RuntimeError:  # there is none
            return
        raise self._lost(reason)

    def _lost(self, reason: str) -> ConnectionLost:
        return ConnectionLost(
            f"rank {self.rank} has lost the connection to another process of the run, which has failed or was killed: "
            f"{reason}"
        )

    def exchange(self, own: np.ndarray) -> np.ndarray:
        """Return the int32 vectors of all processes, `[processes, n]`."""
        return self.run(lambda: np.asarray(self._to_all(_joined(self._host_mesh, own[None], 0))))

    def mean(self, value: Any) -> Any:
        """Return the mean of a tensor over the processes, without a gradient; inside of a program."""
        return jax.lax.pmean(jax.lax.stop_gradient(value), _AXIS)

    def mean_of_all(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the means of tensors over the processes, by one reduction for each dtype; inside of a program."""

        def mean(group: list[Any]) -> list[Any]:
            bucket = jax.lax.pmean(jnp.concatenate([tensor.ravel() for tensor in group]), _AXIS)
            flat_means = jnp.split(bucket, np.cumsum([tensor.size for tensor in group])[:-1])
            return [flat.reshape(tensor.shape) for flat, tensor in zip(flat_means, group, strict=True)]

        return means_by_dtype(tensors, mean)

    def program(self, function: Callable[..., Any], specs: Callable[..., Any], results: Any) -> Any:
        """Return a compiled function of arrays of all processes.

        Args:
            function: runs on each device, with the part of the device's process.
            specs: returns the `PartitionSpec`s of the function's arguments.
            results: the `PartitionSpec`s of the function's results.
        """

        def run(*arguments: Any) -> Any:
            shared = jax.shard_map(
                function, mesh=self._mesh, in_specs=specs(*arguments), out_specs=results, check_vma=False
            )
            with averaging(self):
                return shared(*arguments)

        return jax.jit(run)

    def parts(self, array: Any, axis: int) -> jax.Array:
        """Return the array of which each process holds one part along an axis."""
        return _joined(self._mesh, array, axis)

    def replicated(self, array: Any) -> jax.Array:
        """Return the array of which each process holds a copy; all must have the same values."""
        local = jax.device_put(array, _device(self._mesh))
        return jax.make_array_from_single_device_arrays(local.shape, NamedSharding(self._mesh, REPLICATED), [local])


class _Thread:
    """A thread that calls functions, so that the caller can stop waiting for a function that does not return."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._awaited: Future[Any] | None = None
        threading.Thread(target=self._work, daemon=True).start()
        atexit.register(self._leave)

    def _work(self) -> None:
        while True:
            settle(*self._calls.get())

    def run(self, function: Callable[[], T], check: Callable[[], None]) -> T:
        """Return `function()`; while the function runs, call `check` each second, which may raise an error."""
        future = self._awaited = Future[Any]()
        self._calls.put((future, function))
        while not wait([future], _CHECK_SECONDS).done:
            check()
        self._awaited = None  # the result may hold all weights
        return cast(T, future.result())

    def _leave(self) -> None:
        """Wait for a function that still waits for another process; Python cannot end before the function.

        The function fails when the other process ends, and the other process ends when both have left the run.
        """
        if self._awaited is not None:
            with contextlib.suppress(RuntimeError):
                jax.distributed.shutdown()
            wait([self._awaited], _HEARTBEAT_SECONDS)


def _check_version() -> None:
    if jax.__version_info__ < _OLDEST:  # older ones have no `jax.shard_map`, or end at the flag for the time limit
        needed = ".".join(map(str, _OLDEST))
        raise ImportError(
            f"strategy='data_parallel' in several processes needs JAX {needed} or newer, got {jax.__version__}: "
            f'pip install "jax>={needed}"'
        )


def _connect_cpus_on_loopback() -> None:
    """Let gloo listen on the loopback interface; by default, gloo listens at the address of the host name.

    JAX has no public option for the address, and does not read the variable of gloo.
    """
    from jax._src import xla_bridge
    from jax._src.lib import _jax

    def make_client() -> Any:
        collectives = _jax.make_gloo_tcp_collectives(distributed_client=_client(), hostname="127.0.0.1")
        return xla_bridge.make_cpu_client(collectives)

    if jax.config.jax_cpu_collectives_implementation == "gloo":
        xla_bridge.register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)


def _client() -> Any:
    """Return JAX's connection to the first process, for which there is no public interface."""
    from jax._src import distributed

    return distributed.global_state.client


def _mesh(devices: Sequence[Any]) -> Mesh:
    """Return the mesh of one device of each process.

    Raises:
        ValueError: if a process has several devices.
    """
    if len(devices) != jax.process_count():
        raise ValueError(
            f"each process of strategy='data_parallel' must have one device, but the {jax.process_count()} processes "
            f"have {len(devices)}: start one process for each device"
        )
    # Sorted, so that the parts of arrays are in the order of the ranks.
    return Mesh(np.asarray(sorted(devices, key=lambda device: device.process_index)), (_AXIS,))


def _device(mesh: Mesh) -> Any:
    """Return the device of this process."""
    return mesh.devices[jax.process_index()]


def _joined(mesh: Mesh, array: Any, axis: int) -> jax.Array:
    """Return the array on all devices that consists of the parts of each process along an axis."""
    local = jax.device_put(array, _device(mesh))
    shape = list(local.shape)
    place = NamedSharding(mesh, PartitionSpec(*[None] * axis, _AXIS))
    shape[axis] *= mesh.size
    return jax.make_array_from_single_device_arrays(tuple(shape), place, [local])


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]

"""Data parallelism on JAX: the devices of one process, or several processes, share each batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

from noterl.backends.common import CallOptions, Function, Program, Step, UpdateOptions, Variables
from noterl.backends.process_group import ConnectionLost
from noterl.distribute.base import ProcessStrategy, Strategy, StrategyError, environment_number

# The variables of `keras.distribution.initialize`.
_ADDRESSES = "KERAS_DISTRIBUTION_JOB_ADDRESSES"
_NUM_PROCESSES = "KERAS_DISTRIBUTION_NUM_PROCESSES"
_PROCESS_ID = "KERAS_DISTRIBUTION_PROCESS_ID"


def make(distribution: Any = None) -> Strategy:
    """Return `strategy="data_parallel"`: of the processes that are connected, or of the devices of this process.

    Args:
        distribution: a `keras.distribution.DataParallel`, for the devices; by default all devices.

    Raises:
        ValueError: if a process of several has several devices, or `distribution` has other devices than the processes.
        StrategyError: if the processes cannot connect to each other.
    """
    from noterl.backends.jax import processes, sharding

    start()
    devices = None if distribution is None else sharding.devices_of(distribution)
    if processes.num_processes() == 1:
        return DataParallel(devices)
    connected = processes.connected()
    if devices is not None and devices.size != connected.count:
        raise ValueError(
            f"strategy must be a DataParallel of the devices of all {connected.count} processes, got one of "
            f"{devices.size} devices"
        )
    return DataParallelProcesses(connected)


class DataParallel(Strategy):
    """`strategy="data_parallel"` in one process: one program on all devices, each with a share of the batch.

    The process collects and samples as without a strategy. XLA computes the update of the global batch, so means,
    statistics and norms are global, and K updates stay one compiled call. Variables are copied to the devices when
    `fit` begins, so networks need not be built in a scope.

    Args:
        devices: of this process; by default all.
    """

    word: ClassVar[str] = "data_parallel"
    backend: ClassVar[str] = "jax"

    def __init__(self, devices: Any = None) -> None:
        from noterl.backends.jax import sharding

        self._mesh = sharding.make_mesh(devices)
        self.replicas: int = int(self._mesh.size)

    @contextmanager
    def attached(self, variables: Variables) -> Iterator[None]:
        """Keep a copy of each variable on every device."""
        from noterl.backends.jax.sharding import replicated

        # One device needs no copies, so training runs as without a strategy.
        if self.replicas == 1:
            yield
            return
        with replicated(variables, self._mesh):
            yield

    def compile_updates(self, step: Step, variables: Variables, options: UpdateOptions, axis: int = 0) -> Program:
        """Compile updates on batches that are divided among the devices."""
        from noterl.backends.jax.sharding import ShardedProgram

        program = super().compile_updates(step, variables, options)
        return program if self.replicas == 1 else ShardedProgram(program, self._mesh, axis)


class DataParallelProcesses(ProcessStrategy):
    """`strategy="data_parallel"` in several processes: each collects and samples a share of a batch.

    A group of updates is one compiled call on the devices of all processes. XLA averages the gradients of an optimizer
    by one reduction, with gloo on the CPU and NCCL on GPUs.

    Args:
        processes: connected, with one device each.
    """

    word: ClassVar[str] = "data_parallel"
    backend: ClassVar[str] = "jax"

    def __init__(self, processes: Any) -> None:
        super().__init__(processes)
        self.replicas: int = self.processes
        self._connected = processes

    def compile_updates(self, step: Step, variables: Variables, options: UpdateOptions, axis: int = 0) -> Program:
        """Compile updates whose gradients are averaged over the processes.

        Raises:
            ValueError: if `jit_compile` is False.
        """
        from noterl.backends.jax.core import compile_updates
        from noterl.backends.jax.shared_updates import SharedUpdates

        return compile_updates(step, variables, kind=SharedUpdates, processes=self._connected, **options)

    def compile_call(self, function: Function, variables: Variables, options: CallOptions) -> Function:
        """Compile a function whose statistics are averaged over the processes."""
        from noterl.backends.jax.shared_updates import SharedCall

        return SharedCall(function, variables, processes=self._connected, **options)

    def fail(self, error: BaseException) -> None:
        """Store the error, so that the other processes raise it, unless another process has stored one."""
        # A lost connection is the consequence of another error, which is stored already.
        if not isinstance(error, ConnectionLost):
            self._connected.fail(f"{type(error).__name__}: {error}")


@cache
def start() -> None:
    """Connect this process if the variables of Keras list several, before JAX computes something.

    If the script has connected the process already, by `keras.distribution.initialize` or `jax.distributed.initialize`,
    that connection is used.

    Raises:
        ValueError: if a variable is missing or not valid.
        StrategyError: if the processes cannot connect to each other.
    """
    from noterl.backends.jax import processes

    if not os.environ.get(_NUM_PROCESSES) or processes.is_connected():
        return
    word = "data_parallel"
    count = environment_number(_NUM_PROCESSES, word)
    rank = environment_number(_PROCESS_ID, word)
    coordinator = os.environ.get(_ADDRESSES, "").partition(",")[0]
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(
            f"strategy={word!r} needs the environment variable {_ADDRESSES}, the address host:port of the first "
            f"process, got {coordinator!r}"
        )
    if rank >= count:
        raise ValueError(f"{_PROCESS_ID} must be below {_NUM_PROCESSES}={count}, got {rank}")
    # A single process needs no connection.
    if count == 1:
        return
    try:
        processes.connect(coordinator, count, rank)
    except ConnectionLost as error:
        raise StrategyError(f"strategy={word!r}: {error}") from error.__cause__

"""Processes of `torch.distributed`: the connection, and averages of gradients and statistics over all processes."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from noterl.backends.common import GroupResult, Program, Rows
from noterl.backends.meeting import choose_loopback_interface, is_loopback, listener
from noterl.backends.process_group import ConnectionLost, ProcessGroup, first_line, settle
from noterl.backends.replicas import averaging, means_by_dtype

# Processes must start within this time of each other. Later, a process waits for the others as long as their
# connections are open, because a callback of the chief may take minutes.
CONNECT_SECONDS = 25
_WAIT = timedelta(hours=24)
_ERROR_KEY = "noterl/error"


class Processes(ProcessGroup):
    """The processes of a run, connected by `torch.distributed`; also the replicas of an update.

    Args:
        rank: the number of this process.
        count: the number of processes.
        group: the process group; None to connect by the variables that launchers set.

    Attributes:
        rank: the number of this process.
        count: the number of processes.
    """

    def __init__(self, rank: int, count: int, group: Any = None) -> None:
        self.rank: int = rank
        self.count: int = count
        self._group: Any = group
        self._host_group: Any = None
        self._store: Any = None
        self._made = False

    def connect(self, device: torch.device) -> None:
        """Connect to the other processes: by NCCL if the variables are on a GPU, otherwise by gloo.

        Raises:
            ConnectionLost: if not all processes start within `CONNECT_SECONDS`, or the port is in use.
        """
        if self._host_group is not None:  # connected already, and the connection was not ended
            return
        if self._group is None and not dist.is_initialized():
            self._initialize("nccl" if device.type == "cuda" else "gloo")
        if self._group is None:
            self._group = dist.group.WORLD
        is_gloo = dist.get_backend(self._group) == "gloo"
        self._host_group = self._group if is_gloo else dist.new_group(backend="gloo", timeout=_WAIT)

    def _initialize(self, backend: str) -> None:
        """Make the process group of this process by the variables that launchers set; see `connect`."""
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        try:
            self._store = _within(CONNECT_SECONDS, self._make_store)
            dist.init_process_group(backend, store=self._store, rank=self.rank, world_size=self.count, timeout=_WAIT)
        except (RuntimeError, TimeoutError, ValueError) as error:  # errors of torch.distributed are RuntimeErrors
            raise ConnectionLost(
                f"rank {self.rank} cannot connect to the {self.count} processes of the run at MASTER_ADDR and "
                f"MASTER_PORT, {where}: {first_line(error)}. If another program uses the port, choose another one; if "
                "a process has failed, its output holds the error"
            ) from error
        self._made = True
        atexit.register(self._disconnect)

    def _make_store(self) -> Any:
        """Return the store of the run, when all processes have connected."""
        limit = timedelta(seconds=CONNECT_SECONDS)
        host = os.environ["MASTER_ADDR"]
        if is_loopback(host):
            choose_loopback_interface()
            # torchrun serves the store itself, and sets the variable.
            if self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
                _serve_store(host, int(os.environ["MASTER_PORT"]))
        store, _, _ = next(iter(dist.rendezvous("env://", self.rank, self.count, timeout=limit)))
        store.set(f"noterl/started/{self.rank}", "1")
        store.wait([f"noterl/started/{rank}" for rank in range(self.count)], limit)
        return store

    def end(self, reason: str | None) -> None:
        """End the connection, so that operations of the other processes fail with this reason, if there is one."""
        if self._store is not None and reason is not None:
            with contextlib.suppress(RuntimeError):
                self._store.set(_ERROR_KEY, f"rank {self.rank}: {reason}")
        self._disconnect()

    def _disconnect(self) -> None:
        self._group = self._host_group = None
        if self._made and dist.is_initialized():
            dist.destroy_process_group()
        self._made = False

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Raise a `ConnectionLost` for errors of collective operations inside the context."""
        try:
            yield
        except RuntimeError as error:
            if not _is_of_connection(error):
                raise
            raise ConnectionLost(
                f"rank {self.rank} has lost the connection to another process of the run, which has failed or was "
                f"killed{self._reason()}"
            ) from error

    def _reason(self) -> str:
        """Return the error that another process has stored; wait for an error that is on the way."""
        if self._store is None:
            return ""
        try:
            self._store.wait([_ERROR_KEY], timedelta(seconds=2))
            return f": {self._store.get(_ERROR_KEY).decode()}"
        except RuntimeError:  # it was killed, or the process that keeps the store has ended
            return ""

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """Return the mean of a tensor over the processes, without a gradient; may be traced."""
        functional = torch.ops._c10d_functional
        total = functional.all_reduce(value.detach().contiguous(), "sum", self._group.group_name)
        return functional.wait_tensor(total) / self.count

    def mean_of_all(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the means of tensors over the processes, by one reduction for each dtype."""

        def mean(group: list[torch.Tensor]) -> list[torch.Tensor]:
            bucket = torch.cat([tensor.detach().reshape(-1) for tensor in group])
            dist.all_reduce(bucket, group=self._group)
            bucket /= self.count
            flat_means = bucket.split([tensor.numel() for tensor in group])
            return [flat.view(tensor.shape) for flat, tensor in zip(flat_means, group, strict=True)]

        return means_by_dtype(tensors, mean)

    def exchange(self, own: np.ndarray) -> np.ndarray:
        """Return the int32 vectors of all processes, `[processes, n]`."""
        gathered = torch.empty((self.count, len(own)), dtype=torch.int32)
        with self.reporting():
            dist.all_gather(list(gathered.unbind(0)), torch.tensor(own), group=self._host_group)
        return gathered.numpy()


class ReplicatedProgram:
    """An update program whose gradients, statistics and logs are averaged; called like an `UpdateProgram`.

    Args:
        compile_program: returns the program for a `stop` function, as in `UpdateProgram`.
        processes: the replicas.
        stop: as for `UpdateProgram`; receives the logs of the global batch.
    """

    def __init__(
        self, compile_program: Callable[[Any], Program], processes: Processes, stop: Callable[..., Any] | None
    ) -> None:
        self._processes = processes
        self._stop = stop
        self._program = compile_program(None if stop is None else self._stop_together)

    def __call__(self, rows: Rows, count: int, first: int = 0) -> GroupResult:
        """Make `count` updates, of which the first has the number `first`."""
        with self._processes.reporting(), averaging(self._processes):
            result = self._program(rows, count, first)
            return result._replace(logs=self._mean(result.logs))

    def _stop_together(self, logs: dict[str, Any]) -> Any:
        assert self._stop is not None
        return self._stop(self._mean(logs))

    def _mean(self, logs: dict[str, Any]) -> dict[str, Any]:
        names = sorted(logs)  # the same order in all processes
        values = [torch.as_tensor(logs[name]).to(torch.get_default_dtype()) for name in names]
        return dict(zip(names, self._processes.mean_of_all(values), strict=True))


def check_device(device: torch.device, local_rank: int, local_count: int) -> None:
    """Check that processes of one machine do not share a GPU.

    Raises:
        ValueError: if the variables are on the GPU of another process.
    """
    if device.type == "cuda" and local_count > 1 and torch.cuda.device_count() > 1 and device.index != local_rank:
        raise ValueError(
            f"strategy='ddp': the networks of the process LOCAL_RANK={local_rank} are on {device}; call "
            'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before you make the agent, or use `noterl launch`'
        )


@cache
def _serve_store(host: str, port: int) -> dist.TCPStore:
    """Serve the stores of this process for a port at a loopback address; by default, torch listens at all addresses.

    torch finds the server by the port (`multi_tenant`), also when this process connects again.

    Raises:
        ConnectionLost: if the port is in use.
    """
    server = listener(f"{host}:{port}")
    # The store closes the descriptor.
    return dist.TCPStore(
        host, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=server.detach()
    )


def existing_rank(group: Any = None) -> tuple[int, int] | None:
    """Return the rank and the size of a process group, by default of the one in this process; None if there is none."""
    if group is None and not dist.is_initialized():
        return None
    return dist.get_rank(group), dist.get_world_size(group)


def _within(seconds: float, function: Callable[[], Any]) -> Any:
    """Return the result of a function that may wait for ever, in C++, for a server that does not answer.

    Raises:
        TimeoutError: if the function does not return in time. The thread then waits until the process ends.
    """
    future: Future[Any] = Future()
    threading.Thread(target=settle, args=(future, function), daemon=True).start()
    if not wait([future], seconds + 1).done:
        raise TimeoutError(f"no answer within {seconds} seconds")
    return future.result()


def _is_of_connection(error: RuntimeError) -> bool:
    if isinstance(error, dist.DistError):
        return True
    text = str(error).lower()
    return any(word in text for word in ("gloo", "connection", "process group", "nccl", "socket"))

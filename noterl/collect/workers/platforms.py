"""What differs between operating systems when a process starts another one, and both share a pipe and memory.

Linux is tested.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import mmap
import os
import secrets
import select
import selectors
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

_PR_SET_PDEATHSIG = 1


def make_memory(size: int) -> tuple[int, mmap.mmap]:
    """Return new memory of zeros, and its descriptor, which another process inherits to attach the memory.

    Nothing is left in `/dev/shm`: the kernel frees the memory with the last process that maps the memory.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("noterl")
    else:  # macOS: a segment whose name is removed at once stays open through its descriptor
        posix: Any = importlib.import_module("_posixshmem")
        segment = f"/noterl-{secrets.token_hex(8)}"
        descriptor = posix.shm_open(segment, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode=0o600)
        posix.shm_unlink(segment)
    os.ftruncate(descriptor, size)
    return descriptor, mmap.mmap(descriptor, size)


def start(command: list[str], memory: int, pipe: int, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that inherits a pipe and memory; Ctrl-C in a terminal does not reach the process."""
    return subprocess.Popen(command, pass_fds=[memory, pipe], process_group=0, **options)


def kill_group(pid: int) -> None:
    """Kill a process of `start` and the processes that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def open_pipe(pipe: int) -> Connection:
    """Return the connection of an inherited pipe; programs that this process starts do not inherit the pipe."""
    os.set_inheritable(pipe, False)
    return Connection(pipe)


class Pipes:
    """The pipes to several processes.

    Attributes:
        owners: the process of each pipe.
    """

    def __init__(self) -> None:
        self.owners: dict[Any, Any] = {}
        # Unlike `multiprocessing.connection.wait`, it is prepared once.
        self._selector = selectors.PollSelector()

    def add(self, pipe: Connection, owner: Any) -> None:
        """Add the pipe of a process."""
        self.owners[pipe] = owner
        self._selector.register(pipe, selectors.EVENT_READ)

    def remove(self, pipe: Connection) -> None:
        """Remove a pipe, before the pipe is closed."""
        del self.owners[pipe]
        self._selector.unregister(pipe)

    def wait(self, seconds: float) -> list[Any]:
        """Return the pipes from which something can be received; wait for one at most this long."""
        return [key.fileobj for key, _ in self._selector.select(seconds)]


def end_after_parent() -> None:
    """On Linux, let the kernel kill this process a second after the parent has ended, also inside of C code.

    In this second, `end_own_group` can end the processes that this one has started.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        # The signal's number, 1, is the argument of its handler: `alarm(1)`, whose signal ends the process.
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        libc.signal(signal.SIGHUP, libc.alarm)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)


def wait_for_parent(pipe: int) -> None:
    """Return when the process at the other end of the pipe, the parent, has ended."""
    poll = select.poll()
    poll.register(pipe, 0)  # hang-up is always reported
    if sys.platform == "linux":  # processes that the parent has forked may hold its end of the pipe
        with contextlib.suppress(OSError):  # an old kernel
            poll.register(os.pidfd_open(os.getppid()), select.POLLIN)
    poll.poll()


def end_own_group() -> None:
    """End this process of `start` at once, and the processes that it has started."""
    os.killpg(0, signal.SIGKILL)

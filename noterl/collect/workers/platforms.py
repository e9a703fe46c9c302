"""What differs between operating systems when a process starts another one, and both share a pipe and memory.

Linux is tested. On Windows a process inherits the handle of a pipe, and memory is attached by name.
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
from multiprocessing.connection import Connection, wait
from typing import Any

# What another process needs to attach memory: a descriptor that it inherits; on Windows, a name.
Handle = int | str

_PR_SET_PDEATHSIG = 1


def make_memory(size: int) -> tuple[Handle, mmap.mmap]:
    """Return new memory of zeros, and what another process needs to attach the memory.

    Nothing is left in `/dev/shm`: the kernel frees the memory with the last process that maps the memory.
    """
    if sys.platform == "win32":
        name = f"noterl-{secrets.token_hex(8)}"
        return name, mmap.mmap(-1, size, tagname=name)
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("noterl")
    else:  # macOS: a segment whose name is removed at once stays open through its descriptor
        posix: Any = importlib.import_module("_posixshmem")
        segment = f"/noterl-{secrets.token_hex(8)}"
        descriptor = posix.shm_open(segment, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode=0o600)
        posix.shm_unlink(segment)
    os.ftruncate(descriptor, size)
    return descriptor, mmap.mmap(descriptor, size)


def attach_memory(handle: Handle, size: int) -> mmap.mmap:
    """Return the memory of another process."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size, tagname=str(handle))
    return mmap.mmap(int(handle), size)


def release(handle: Handle) -> None:
    """Release a handle of memory; what is mapped stays valid."""
    if isinstance(handle, int):
        with contextlib.suppress(OSError):
            os.close(handle)


def start(command: list[str], memory: Handle, pipe: int, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that inherits a pipe and memory; Ctrl-C in a terminal does not reach the process."""
    if sys.platform == "win32":
        os.set_handle_inheritable(pipe, True)
        inherited = subprocess.STARTUPINFO(lpAttributeList={"handle_list": [pipe]})
        group = subprocess.CREATE_NEW_PROCESS_GROUP
        return subprocess.Popen(command, startupinfo=inherited, creationflags=group, **options)
    return subprocess.Popen(command, pass_fds=[int(memory), pipe], process_group=0, **options)


def kill_group(pid: int) -> None:
    """Kill a process of `start` and the processes that it has started; on Windows, do nothing."""
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def open_pipe(pipe: int) -> Any:
    """Return the connection of an inherited pipe; programs that this process starts do not inherit the pipe."""
    if sys.platform == "win32":
        from multiprocessing.connection import PipeConnection

        os.set_handle_inheritable(pipe, False)
        return PipeConnection(pipe)
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
        self._selector: selectors.BaseSelector | None = None
        if sys.platform != "win32":
            self._selector = selectors.PollSelector()

    def add(self, pipe: Connection, owner: Any) -> None:
        """Add the pipe of a process."""
        self.owners[pipe] = owner
        if self._selector is not None:
            self._selector.register(pipe, selectors.EVENT_READ)

    def remove(self, pipe: Connection) -> None:
        """Remove a pipe, before the pipe is closed."""
        del self.owners[pipe]
        if self._selector is not None:
            self._selector.unregister(pipe)

    def wait(self, seconds: float) -> list[Any]:
        """Return the pipes from which something can be received; wait for one at most this long."""
        if self._selector is None:
            return wait(list(self.owners), seconds)
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
    if sys.platform == "win32":
        import psutil

        psutil.Process(os.getppid()).wait()
        return
    poll = select.poll()
    poll.register(pipe, 0)  # hang-up is always reported
    if sys.platform == "linux":  # processes that the parent has forked may hold its end of the pipe
        with contextlib.suppress(OSError):  # an old kernel
            poll.register(os.pidfd_open(os.getppid()), select.POLLIN)
    poll.poll()


def end_own_group() -> None:
    """End this process of `start` at once, and the processes that it has started; on Windows, this process only."""
    if sys.platform != "win32":
        os.killpg(0, signal.SIGKILL)
    os._exit(1)

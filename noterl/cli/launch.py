"""`noterl launch`: run a script in several processes of this machine that train together."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from noterl.cli.errors import UsageError
from noterl.utils import tf_config

_HOST = "127.0.0.1"
_REPORT_SECONDS = 8.0  # the other processes report the lost connection in this time, and are then ended
_END_SECONDS = 10.0  # after SIGTERM, until SIGKILL
# A failure is noticed after this time at the latest; a look takes microseconds.
_POLL_SECONDS = 0.1

Variables = dict[str, str]


def run(arguments: Sequence[str]) -> None:
    """Run `noterl launch`: check the options, start the processes, and wait until all have ended.

    Raises:
        UsageError: if the command line is wrong.
        SystemExit: with the exit code of the first process that failed.
    """
    options = _parse(arguments)
    word = options.strategy.replace("-", "_")
    if word not in _VARIABLES:
        raise UsageError(
            f"--strategy must be {', '.join(_VARIABLES)}, got {options.strategy!r}; data_parallel (JAX) and "
            "mirrored train on the devices of one process, which needs no launcher: python script.py"
        )
    _check_network(word, options.trusted_network)
    if options.processes < 1:
        raise UsageError(f"--processes must be a positive int, got {options.processes}")
    if not Path(options.script).is_file():
        raise UsageError(f"the script {options.script!r} does not exist")
    with _terminating():
        # A parameter server needs one port for each worker, one for the chief and one for the server.
        names, variables = _VARIABLES[word](options.processes, _ports(options.processes + 2, options.port))
        _print(f"{len(names)} processes on this machine. On several machines, {_ELSEWHERE[word]}")
        # If a worker of a parameter server fails, training continues. If another process fails, all processes end.
        spare = {k for k, name in enumerate(names) if name.startswith("worker ")}
        code = Launch(names, variables, [sys.executable, options.script, *options.arguments], spare=spare).run()
    if code:
        raise SystemExit(code)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options; the script and the script's own arguments are `script` and `arguments`."""
    parser = argparse.ArgumentParser(prog="noterl launch", description="Run a script in processes that train together.")
    parser.add_argument("--strategy", required=True, help="the argument strategy= of the script's fit")
    parser.add_argument("--processes", type=int, default=2, help="number of processes on this machine, 2 by default")
    parser.add_argument("--port", type=int, help="the first port; by default, free ports are chosen")
    risk = "allow TensorFlow's servers, through which any program that can connect can run code as you"
    parser.add_argument("--trusted-network", action="store_true", help=risk)
    parser.add_argument("script", help="the script, the same for all processes")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    return parser.parse_args(list(arguments))


def _check_network(word: str, is_trusted: bool) -> None:
    """Check the option `--trusted-network`.

    Raises:
        UsageError: if a strategy with open ports lacks the option, or another strategy has the option.
    """
    if word in _OPEN and not is_trusted:
        raise UsageError(
            f"--strategy {word}: the servers of TensorFlow listen on all network interfaces, without authentication. "
            "Any program that can connect to the ports can read and write your files, and run code as you. If no other "
            "user or machine can connect (a private network, a firewall, a network namespace), pass --trusted-network "
            "in front of the script (docs/scaling.md)"
        )
    if is_trusted and word not in _OPEN:
        raise UsageError(
            f"--trusted-network is for --strategy {' and '.join(_OPEN)}; --strategy {word} listens on the loopback "
            "interface only"
        )


def _ports(count: int, first: int | None) -> list[int]:
    """Return free ports, or those from `first` on.

    Raises:
        UsageError: if the first one is in use. Not every strategy uses the others.
    """
    try:
        # All sockets stay open until the last is bound, so that no port is chosen twice.
        with contextlib.ExitStack() as opened:
            sockets = [opened.enter_context(socket.socket()) for _ in range(1 if first is not None else count)]
            for bound in sockets:
                bound.bind((_HOST, 0 if first is None else first))
            ports = [bound.getsockname()[1] for bound in sockets]
    except (OSError, OverflowError) as error:
        raise UsageError(f"--port {first} cannot be used: {error}") from error
    return ports if first is None else [first + k for k in range(count)]


def _of_torch(processes: int, ports: Sequence[int]) -> tuple[list[str], list[Variables]]:
    """Return the names of the processes and the variables of torchrun; each has a separate GPU if there are some.

    Raises:
        UsageError: if there are too few GPUs.
    """
    gpus = visible_gpus()
    if gpus and len(gpus) < processes:
        raise UsageError(
            f"--processes {processes} exceeds the {len(gpus)} GPUs of this machine, and processes cannot share "
            "one; train on the CPU with CUDA_VISIBLE_DEVICES= in front of the command"
        )
    variables = [
        {
            "KERAS_BACKEND": "torch",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "MASTER_ADDR": _HOST,
            "MASTER_PORT": str(ports[0]),
        }
        for rank in range(processes)
    ]
    for gpu, rank_variables in zip(gpus, variables, strict=False):
        rank_variables["CUDA_VISIBLE_DEVICES"] = gpu
    return [f"rank {rank}" for rank in range(processes)], variables


# TensorFlow listens at all addresses, whatever TF_CONFIG says.
_OPEN = ("multiworker", "parameter_server")

# By word: returns the names and the variables of the processes for a number of processes and ports.
_VARIABLES: dict[str, Callable[[int, Sequence[int]], tuple[list[str], list[Variables]]]] = {
    "ddp": _of_torch,
    **{word: partial(tf_config.variables, word) for word in _OPEN},
}


# By word: what to do on several machines.
_ELSEWHERE = {
    "ddp": "use torchrun, or set RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each "
    "process (docs/scaling.md)",
    **dict.fromkeys(_OPEN, "set TF_CONFIG for each process (docs/scaling.md)"),
}


def visible_gpus() -> list[str]:
    """Return the numbers of the NVIDIA GPUs that processes may use, without importing a framework."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    # The list that the user or a scheduler has set may be shorter than the machine's.
    if chosen is not None:
        return [part.strip() for part in chosen.split(",") if part.strip() and part.strip() != "-1"]
    # NVIDIA's driver lists the GPUs in this folder.
    folder = Path("/proc/driver/nvidia/gpus")
    return [str(k) for k in range(len(list(folder.iterdir())))] if folder.is_dir() else []


class Launch:
    """Processes that run the same command with different variables; if one fails, all end.

    The constructor starts the processes, and threads that copy the processes' output. `run` waits for the end.

    Args:
        names: of the processes, for the prefix of the output.
        variables: environment variables of each process.
        command: the command.
        output: receives the lines of all processes.
        spare: the indices of processes that may fail without ending the others.
    """

    def __init__(
        self,
        names: Sequence[str],
        variables: Sequence[Variables],
        command: Sequence[str],
        output: IO[str] | None = None,
        *,
        spare: Collection[int] = (),
    ) -> None:
        self._spare = frozenset(spare)
        self._lost = set[int]()
        self._names = list(names)
        self._output = output or sys.stdout
        self._lock = threading.Lock()
        # Without this limit, each process would use threads for all cores.
        threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // len(names)))}
        self._processes: list[subprocess.Popen] = []
        self._readers: list[threading.Thread] = []
        try:
            for process_variables in variables:
                process = subprocess.Popen(
                    list(command),
                    env={**threads, **os.environ, "PYTHONUNBUFFERED": "1", **process_variables},
                    # The processes cannot share the input of the terminal.
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # so that its own processes, such as workers, can be ended with it
                    preexec_fn=_die_with_parent,
                )
                self._processes.append(process)
        except BaseException:
            self._signal(signal.SIGKILL)
            raise
        for name, process in zip(self._names, self._processes, strict=True):
            self._readers.append(threading.Thread(target=self._copy, args=(name, process.stdout), daemon=True))
            self._readers[-1].start()

    def run(self) -> int:
        """Wait until all processes have ended, and return the exit code: 0, or the code of the first failure."""
        code = 0
        try:
            failed = self._wait_for_failure()
            if failed is not None:
                code = self._processes[failed].returncode
                _print(f"{self._names[failed]} {_describe(code)}; the run ends")
                self._wait(_REPORT_SECONDS)
        except BaseException as error:  # Ctrl-C, SIGTERM or SIGHUP
            self._signal(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
            self._wait(_END_SECONDS)
            raise
        finally:
            self._end()
        # The shell's code for a process that a signal has ended.
        return 128 - code if code < 0 else code

    def _wait_for_failure(self) -> int | None:
        """Wait until a process fails, and return its index; None if all succeed.

        The failure of a process of `spare` is only printed.
        """
        while True:
            codes = [process.poll() for process in self._processes]
            failed = [k for k, code in enumerate(codes) if code and k not in self._spare]
            for k in self._spare - self._lost:
                if code := codes[k]:
                    self._lost.add(k)
                    _print(f"{self._names[k]} {_describe(code)}; the run goes on without it")
            if failed:
                # If several have failed since the last look, a killed one is the cause.
                return min(failed, key=lambda k: (codes[k] >= 0, k))  # type: ignore[operator]
            if all(code is not None for code in codes):
                return None
            time.sleep(_POLL_SECONDS)

    def _wait(self, seconds: float) -> bool:
        """Wait at most this time for all processes; return whether all have ended."""
        end = time.monotonic() + seconds
        while any(process.poll() is None for process in self._processes):
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _end(self) -> None:
        """End all processes, and everything started by these processes."""
        if not self._wait(0.0):
            self._signal(signal.SIGTERM)
            self._wait(_END_SECONDS)
        # Also if all have ended: their groups may hold processes that they have started.
        self._signal(signal.SIGKILL)
        self._wait(_END_SECONDS)
        for reader in self._readers:
            # A process that left the group may keep the pipe open, so the launcher waits only a second.
            reader.join(1.0)

    def _signal(self, number: int) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)  # it leads its own group

    def _copy(self, name: str, stream: Any) -> None:
        """Copy the lines of a process to the output, with the name in front; runs in a thread for each process."""
        with stream:
            for line in stream:
                # One line at a time, so that lines of two processes do not mix.
                with self._lock:
                    self._output.write(f"[{name}] {line.decode(errors='replace').rstrip()}\n")
                    self._output.flush()


# Ends a new process if the launcher is killed (Linux). 1 is PR_SET_PDEATHSIG.
_die_with_parent = partial(ctypes.CDLL(None).prctl, 1, signal.SIGTERM) if sys.platform == "linux" else None


@contextlib.contextmanager
def _terminating() -> Iterator[None]:
    """Raise SystemExit on SIGTERM and SIGHUP inside the context, so that the processes are ended."""

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    # Python sets handlers in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # `nohup` lets a process ignore SIGHUP
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _describe(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with the exit code {code}"


def _print(message: str) -> None:
    print(f"noterl launch: {message}", file=sys.stderr, flush=True)

"""Spawned processes, each connected to this one by a pipe."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_LONGEST_END = 5.0  # seconds
_SAFE_PATH = "PYTHONSAFEPATH"
_starting = threading.Lock()

# In a process of `spawn`: what it calls if the process that started it has ended before it.
orphaned: list[Callable[[], object]] = []


def spawn(target: Callable[..., None], *arguments: Any, name: str) -> tuple[Any, Connection]:
    """Start a process that calls `target(pipe, *arguments)`, and return the process and the other end of the pipe.

    A script that spawns processes must do the work under `if __name__ == "__main__":`. The process ends with this one,
    also after kill -9. The process may start others, as environments such as `AsyncVectorEnv` do.

    Args:
        target: a function that can be pickled.
        arguments: values that can be pickled.
        name: name of the process, for error messages.

    Raises:
        ValueError: if the function or an argument cannot be pickled.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    try:
        with _starting:  # two threads that start processes would restore each other's value of the variable
            safe_path = os.environ.get(_SAFE_PATH)
            passed = (safe_path, target, theirs, *arguments)
            process = context.Process(target=_run, args=passed, name=f"noterl-{name}", daemon=True)
            try:
                # Otherwise the new Python would import modules of the standard library from the working folder.
                os.environ[_SAFE_PATH] = "1"
                process.start()
            finally:
                _set_safe_path(safe_path)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        ours.close()
        raise ValueError(f"{name}: the arguments of a process must be picklable: {error}") from error
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def _set_safe_path(value: str | None) -> None:
    if value is None:
        os.environ.pop(_SAFE_PATH, None)
    else:
        os.environ[_SAFE_PATH] = value


def _run(safe_path: str | None, target: Callable[..., None], pipe: Connection, *arguments: Any) -> None:
    """Call the target in the new process, with the variable as in the process that started this one."""
    _set_safe_path(safe_path)
    os.environ.pop("TF_CONFIG", None)  # this process is no member of TensorFlow's cluster
    multiprocessing.current_process().daemon = False  # `multiprocessing` lets daemons start no processes
    threading.Thread(target=_end_with_parent, name="noterl-parent", daemon=True).start()
    target(pipe, *arguments)


def _end_with_parent() -> None:
    """Wait until the process that started this one has ended, such as by kill -9, and end this one at once."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    for function in orphaned:
        function()
    os._exit(1)


def end(process: Any, pipe: Connection) -> None:
    """Close the pipe and wait for the end of the process. Kill the process after some seconds."""
    pipe.close()
    process.join(_LONGEST_END)
    if process.is_alive():
        process.kill()
        process.join()

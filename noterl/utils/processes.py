"""Spawned processes, each connected to this one by a pipe."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_LONGEST_END = 5.0  # seconds


def spawn(target: Callable[..., None], *arguments: Any, name: str) -> tuple[Any, Connection]:
    """Start a process that calls `target(pipe, *arguments)`, and return the process and the other end of the pipe.

    A script that spawns processes must do its work under `if __name__ == "__main__":`. The process is a daemon, so it
    does not outlive this one. It may start processes of its own, as environments such as `AsyncVectorEnv` do.

    Args:
        target: a function that can be pickled.
        arguments: values that can be pickled.
        name: name of the process, for error messages.

    Raises:
        ValueError: if the function or an argument cannot be pickled.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(target, theirs, *arguments), name=f"noterl-{name}", daemon=True)
    try:
        process.start()
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        ours.close()
        raise ValueError(f"{name}: the arguments of a process must be picklable: {error}") from error
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def _run(target: Callable[..., None], pipe: Connection, *arguments: Any) -> None:
    """Call the target in the new process."""
    multiprocessing.current_process().daemon = False  # `multiprocessing` lets daemons start no processes
    target(pipe, *arguments)


def end(process: Any, pipe: Connection) -> None:
    """Close the pipe and wait until the process ends. Kill it after some seconds."""
    pipe.close()
    process.join(_LONGEST_END)
    if process.is_alive():
        process.kill()
        process.join()

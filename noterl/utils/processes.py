"""Processes beside this one, which start afresh and share nothing with it but a pipe."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def spawn(target: Callable[..., None], *arguments: Any, name: str) -> tuple[Any, Connection]:
    """Start a process on this process's backend; return it, and this end of a pipe whose other end `target` gets first.

    It is spawned, so the function and its arguments must be something that can be pickled, and a script keeps its work
    under `if __name__ == "__main__":`. It ends with this process at the latest.

    Raises:
        ValueError: if an argument cannot be pickled.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), name=f"noterl-{name}", daemon=True)
    try:
        process.start()
    except (AttributeError, TypeError) as error:
        ours.close()
        raise ValueError(f"{name}: what a process is given must be something that can be pickled: {error}") from error
    finally:
        theirs.close()
    return process, ours


def end(process: Any, pipe: Connection, seconds: float = 5.0) -> None:
    """Close the pipe and wait for the process to end; after so many seconds it is killed."""
    pipe.close()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()

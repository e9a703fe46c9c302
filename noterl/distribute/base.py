"""Strategy: how the updates of one `fit` are shared by several devices or processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import numpy as np

from noterl import backends
from noterl.backends.common import Function, Options, Program, Step, UpdateOptions, Variables
from noterl.backends.process_group import ConnectionLost, ProcessGroup


class StrategyError(RuntimeError):
    """Raised if another process of the run has failed, or the processes cannot connect to each other."""


class Strategy:
    """Base of the strategies; `fit(strategy=)` makes one from a word. The base itself is one process on one device.

    A *replica* computes a share of each batch. A *process* runs the script, collects experience and samples a share of
    each batch from a separate memory. In one process with several devices, the process samples the whole batch, and the
    strategy divides it.

    Attributes:
        word: the argument of `fit(strategy=)`.
        backend: the name of the backend that the strategy needs.
        replicas: the number of shares of a batch.
        processes: the number of processes that collect experience.
        rank: the number of this process; 0 for the chief.
    """

    word: ClassVar[str] = ""
    backend: ClassVar[str] = ""
    replicas: int = 1
    processes: int = 1
    rank: int = 0

    @property
    def is_chief(self) -> bool:
        """Whether callbacks run, and files are written, in this process."""
        return self.rank == 0

    def share(self, batch_size: int) -> int:
        """Return how many transitions of a batch this process samples.

        Raises:
            ValueError: if the replicas cannot have equal shares.
        """
        if batch_size % self.replicas:
            below = batch_size - batch_size % self.replicas
            raise ValueError(
                f"batch_size must be divisible by the {self.replicas} replicas of strategy={self.word!r}, because it "
                # The nearest sizes that are allowed, so that the user need not compute them.
                f"counts the transitions of all replicas; got {batch_size}, and "
                + (f"{below} or {below + self.replicas} is divisible" if below else f"{self.replicas} is the smallest")
            )
        # Not by `replicas`: one process samples for all of its devices.
        return batch_size // self.processes

    @contextmanager
    def attached(self, variables: Variables) -> Iterator[None]:
        """Place the variables on the devices of the strategy, for the duration of a `fit`, which enters this context.

        Processes are connected, and start with the values of the chief.
        """
        with self.translated():
            yield

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise a `StrategyError` for a lost connection inside the context."""
        try:
            yield
        except ConnectionLost as error:
            # `from` the cause, because the error of the framework says more than noterl's own exception between them.
            raise StrategyError(f"strategy={self.word!r}: {error}") from error.__cause__

    def compile_updates(self, step: Step, variables: Variables, options: UpdateOptions, axis: int = 0) -> Program:
        """Compile updates of which each replica computes a part.

        The program is called with the batches of this process. Logs describe the global batch, and feedback the
        transitions of this process.

        Args:
            step: one update.
            variables: all variables that the update uses.
            options: the other arguments of `Backend.compile_updates`.
            axis: the axis of a batch along which replicas share the batch: 1 for sequences `[T, N, ...]`.
        """
        return backends.current().compile_updates(step, variables, **options)

    def compile_call(self, function: Function, variables: Variables, options: Options) -> Function:
        """Compile a function such as `prepare`; the arguments are the same as for `Backend.compile_call`."""
        return backends.current().compile_call(function, variables, **options)

    def agree(self, values: Sequence[float]) -> np.ndarray:
        """Return the values of all processes, `[processes, n]` float64; every process must call this method."""
        return np.asarray([values], np.float64)

    def gather(self, message: bytes) -> list[bytes]:
        """Return the messages of all processes, by rank; every process must call this method."""
        return [message]

    def fail(self, error: BaseException) -> None:
        """Called if `fit` raises in this process: end the connection, so that the other processes raise too."""


class ProcessStrategy(Strategy):
    """Base of the strategies with several processes.

    Args:
        group: connects this process to the others.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self.rank: int = group.rank
        self.processes: int = group.count

    def agree(self, values: Sequence[float]) -> np.ndarray:
        """Return the values of all processes, `[processes, n]`."""
        return self._group.agree(values)

    def gather(self, message: bytes) -> list[bytes]:
        """Return the messages of all processes."""
        return self._group.gather(message)


def environment_number(name: str, word: str) -> int:
    """Return a number that a launcher has set as an environment variable.

    Raises:
        ValueError: if the variable is missing or is not a non-negative int.
    """
    value = os.environ.get(name)
    if value is None or not value.isdigit():
        raise ValueError(
            f"strategy={word!r} needs the environment variable {name}, got {value!r}; start the script with "
            f"`noterl launch --strategy {word} --processes 2 script.py`"
        )
    return int(value)

"""Data parallelism on torch: processes that are started by torchrun or `noterl launch`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from noterl import backends
from noterl.backends.common import Program, Step
from noterl.distribute.base import Strategy, StrategyError, environment_number


class DDP(Strategy):
    """`strategy="ddp"`: each process collects and samples its share; gradients are averaged once per update.

    The processes are connected by gloo on the CPU and by NCCL on GPUs, with the variables that torchrun sets.

    Args:
        group: a process group that the script has made; by default one is made when `fit` begins.

    Raises:
        ValueError: if the variables of the launcher are missing.
    """

    word, backend = "ddp", "torch"

    def __init__(self, group: Any = None) -> None:
        from noterl.backends.torch import replicas

        found = replicas.existing_rank(group)
        if found is None:
            found = environment_number("RANK", self.word), environment_number("WORLD_SIZE", self.word)
            for name in ("MASTER_ADDR", "MASTER_PORT"):
                if not os.environ.get(name):
                    raise ValueError(f"strategy='ddp' needs the environment variable {name}, which torchrun sets")
        self.rank, self.processes = found
        if not 0 <= self.rank < self.processes:
            raise ValueError(f"RANK must be below WORLD_SIZE={self.processes}, got {self.rank}")
        self.replicas = self.processes
        self._processes = replicas.Processes(self.rank, self.processes, group)

    def check(self, memory: str) -> None:
        """Check that the agent makes the same number of updates in each process."""
        if memory == "sequences" and self.processes > 1:
            raise ValueError(
                "strategy='ddp' does not support agents that replay sequences (ACER): the number of their updates is "
                "random; use more environments, num_envs=, or workers="
            )

    @contextmanager
    def attached(self, variables: Sequence[Any]) -> Iterator[None]:
        """Connect the processes."""
        from noterl.backends.torch import replicas

        device = replicas.device_of(variables)
        local = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        replicas.check_device(device, *local)
        with self._translated():
            if self.processes > 1:
                self._processes.connect(device)
            yield

    @contextmanager
    def _translated(self) -> Iterator[None]:
        from noterl.backends.torch.replicas import ConnectionLost

        try:
            yield
        except ConnectionLost as error:
            raise StrategyError(f"strategy='ddp': {error}") from error.__cause__

    def compile_updates(self, step: Step, variables: Sequence[Any], **options: Any) -> Program:
        """Compile updates whose gradients are averaged over the processes."""
        if self.processes == 1:
            return super().compile_updates(step, variables, **options)
        from noterl.backends.torch.replicas import ReplicatedProgram

        compile_updates, stop = backends.current().compile_updates, options.pop("stop", None)
        return ReplicatedProgram(
            lambda together: compile_updates(step, variables, stop=together, **options), self._processes, stop
        )

    def compile_call(self, function: Callable[[Any], Any], variables: Sequence[Any], **options: Any) -> Any:
        """Compile a function whose statistics are averaged over the processes."""
        program = super().compile_call(function, variables, **options)
        if self.processes == 1:
            return program
        from noterl.backends.replicas import averaging

        def run(inputs: Any) -> Any:
            with self._processes.reporting(), averaging(self._processes):
                return program(inputs)

        return run

    def agree(self, values: Sequence[float]) -> np.ndarray:
        """Return the values of all processes, `[processes, n]`."""
        return self._processes.agree(values)

    def gather(self, message: bytes) -> list[bytes]:
        """Return the messages of all processes."""
        return self._processes.gather(message)

    def fail(self, error: BaseException) -> None:
        """End the connection; if another process has ended it, the reason stays that of the other process."""
        from noterl.backends.torch.replicas import ConnectionLost

        self._processes.end(None if isinstance(error, ConnectionLost) else f"{type(error).__name__}: {error}")

"""Data parallelism on torch: processes that are started by torchrun or `noterl launch`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from noterl import backends
from noterl.backends.common import Function, Options, Program, Step, UpdateOptions, Variables
from noterl.backends.process_group import ConnectionLost
from noterl.distribute.base import ProcessStrategy, environment_number


class DDP(ProcessStrategy):
    """`strategy="ddp"`: each process collects and samples a share; gradients are averaged once per update.

    The processes are connected by gloo on the CPU and by NCCL on GPUs, with the variables that torchrun sets.

    Args:
        group: a process group that the script has made; by default one is made when `fit` begins.

    Raises:
        ValueError: if the variables of the launcher are missing.
    """

    word: ClassVar[str] = "ddp"
    backend: ClassVar[str] = "torch"

    def __init__(self, group: Any = None) -> None:
        from noterl.backends.torch import replicas

        # A group that the script has made, or torchrun's variables for one that `attached` makes.
        rank_and_count = replicas.existing_rank(group)
        if rank_and_count is None:
            rank_and_count = environment_number("RANK", self.word), environment_number("WORLD_SIZE", self.word)
            for name in ("MASTER_ADDR", "MASTER_PORT"):
                if not os.environ.get(name):
                    raise ValueError(f"strategy='ddp' needs the environment variable {name}, which torchrun sets")
        rank, count = rank_and_count
        if not 0 <= rank < count:
            raise ValueError(f"RANK must be below WORLD_SIZE={count}, got {rank}")
        self._processes = replicas.Processes(rank, count, group)
        super().__init__(self._processes)
        # One replica per process.
        self.replicas = count

    @contextmanager
    def attached(self, variables: Variables) -> Iterator[None]:
        """Connect the processes, if there are several. The connection stays open after the context, for the next `fit`.

        Raises:
            ValueError: if the variables are on the GPU of another process of the same machine.
        """
        from noterl.backends.torch import replicas

        device = variables[0].value.device
        # Without a launcher's variables, this is the only process of its machine.
        local = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        replicas.check_device(device, *local)
        with self.translated():
            # A single process needs no connection.
            if self.processes > 1:
                self._processes.connect(device)
            yield

    def compile_updates(self, step: Step, variables: Variables, options: UpdateOptions, axis: int = 0) -> Program:
        """Compile updates whose gradients are averaged over the processes."""
        if self.processes == 1:
            return super().compile_updates(step, variables, options)
        from noterl.backends.torch.replicas import ReplicatedProgram

        def compile_program(stop_together: Any) -> Program:
            # Each process must stop at the same update, so the decision is taken together.
            return backends.current().compile_updates(step, variables, **{**options, "stop": stop_together})

        return ReplicatedProgram(compile_program, self._processes, options.get("stop"))

    def compile_call(self, function: Function, variables: Variables, options: Options) -> Function:
        """Compile a function whose statistics are averaged over the processes."""
        program = super().compile_call(function, variables, options)
        if self.processes == 1:
            return program
        from noterl.backends.replicas import averaging

        def run(inputs: Any) -> Any:
            with self._processes.reporting(), averaging(self._processes):
                return program(inputs)

        return run

    def fail(self, error: BaseException) -> None:
        """End the connection; if another process has ended the connection, the reason stays unchanged."""
        self._processes.end(None if isinstance(error, ConnectionLost) else f"{type(error).__name__}: {error}")

"""Data parallelism on JAX: the devices of one process share each batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from noterl.backends.common import Program, Step, UpdateOptions, Variables
from noterl.distribute.base import Strategy


class DataParallel(Strategy):
    """`strategy="data_parallel"`: one program on all devices, each with a share of the batch.

    The process collects and samples as without a strategy. XLA computes the update of the global batch, so means,
    statistics and norms are global, and K updates stay one compiled call. Variables are copied to the devices when
    `fit` begins, so networks need not be built in a scope.

    Args:
        distribution: a `keras.distribution.DataParallel`, whose devices are used; by default all devices.

    Raises:
        ValueError: if this is one of several processes.
    """

    word: ClassVar[str] = "data_parallel"
    backend: ClassVar[str] = "jax"

    def __init__(self, distribution: Any = None) -> None:
        from noterl.backends.jax import sharding

        self._mesh = sharding.make_mesh(distribution)
        self.replicas: int = int(self._mesh.size)

    @contextmanager
    def attached(self, variables: Variables) -> Iterator[None]:
        """Keep a copy of each variable on every device."""
        from noterl.backends.jax.sharding import replicated

        # One device needs no copies, so training runs as without a strategy.
        if self.replicas == 1:
            yield
            return
        with replicated(variables, self._mesh):
            yield

    def compile_updates(self, step: Step, variables: Variables, options: UpdateOptions, axis: int = 0) -> Program:
        """Compile updates on batches that are divided among the devices."""
        from noterl.backends.jax.sharding import ShardedProgram

        program = super().compile_updates(step, variables, options)
        return program if self.replicas == 1 else ShardedProgram(program, self._mesh, axis)

"""Updates on several devices of one process: XLA divides the program of the global batch.

Rows are placed with the batch axis divided, variables with a copy on each device. The compiler inserts the
reductions, so every statistic of the batch is global, and a group of updates stays one compiled call.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from noterl.backends.common import GatheredRows, GroupResult, Program, Rows

_AXIS = "batch"


def make_mesh(distribution: Any = None) -> Mesh:
    """Return the mesh of all devices, or of those of a `keras.distribution.DataParallel`.

    Raises:
        ValueError: if this is one of several processes.
    """
    # Without the second condition, processes that Keras would connect later train apart and write the same files.
    if jax.process_count() > 1 or os.environ.get("KERAS_DISTRIBUTION_NUM_PROCESSES", "1") not in ("", "1"):
        raise ValueError(
            "strategy='data_parallel' trains on the devices of one process, and this is one of several processes; use "
            "strategy='ddp' with KERAS_BACKEND=torch or 'multiworker' with KERAS_BACKEND=tensorflow"
        )
    devices = jax.local_devices() if distribution is None else distribution.device_mesh.backend_mesh.devices
    return Mesh(np.asarray(devices).reshape(-1), (_AXIS,))


@contextmanager
def replicated(variables: Sequence[keras.Variable], mesh: Mesh) -> Iterator[None]:
    """Keep a copy of each variable on every device of the mesh; afterwards on the first device only."""
    _place(variables, NamedSharding(mesh, PartitionSpec()))
    try:
        yield
    finally:
        _place(variables, jax.local_devices()[0])


def _place(variables: Sequence[keras.Variable], where: Any) -> None:
    for variable in variables:
        variable._value = jax.device_put(variable._value, where)


class ShardedProgram:
    """An update program whose batches are divided among the devices of a mesh; called like an `UpdateProgram`.

    Args:
        program: of updates on the global batch.
        mesh: with one axis.
        axis: of a batch, which is divided.
    """

    def __init__(self, program: Program, mesh: Mesh, axis: int = 0) -> None:
        self._program = program
        self._mesh = mesh
        self._axis = 1 + axis  # the first axis of rows counts updates

    def __call__(self, rows: Rows, count: int, first: int = 0) -> GroupResult:
        """Make `count` updates, of which the first has the number `first`."""
        if isinstance(rows, GatheredRows):
            data = jax.device_put(rows.data, NamedSharding(self._mesh, PartitionSpec()))
            rows = GatheredRows(data, self._divided(rows.indices))
        else:
            rows = jax.tree.map(self._divided, rows)
        return self._program(rows, count, first)

    def _divided(self, array: Any) -> Any:
        """Return an array `[K, B, ...]` with an axis on the devices, or whole on each if that has another size.

        The result of a program does not depend on where the inputs are.
        """
        divides = array.ndim > self._axis and array.shape[self._axis] % self._mesh.size == 0
        place = PartitionSpec(*[None] * self._axis, _AXIS) if divides else PartitionSpec()
        return jax.device_put(array, NamedSharding(self._mesh, place))

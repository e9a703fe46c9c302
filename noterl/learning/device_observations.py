"""A copy of a replay memory's observations on the device that makes the updates.

The memory stays on the host, where it samples and computes rewards, discounts and weights. The copy receives the
observations that were added since the last batch, and gathers the observations of a batch. So an observation is
transferred once instead of once for each sample.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from noterl import backends
from noterl.replay import Replay
from noterl.replay.columns import Array, Leaf, gather
from noterl.replay.storage import Storage

# The most bytes that are sent in one transfer.
CHUNK = 2**25


class DeviceObservations:
    """The observations of a memory in two tables on the device: one of the ring, one of the final observations.

    An object of this class is `Replay.device_copy`, by which the memory gathers each batch.

    Args:
        replay: a built memory of Box observations.
        variable: a variable that updates use; the tables are on the device of this variable.
    """

    def __init__(self, replay: Replay, variable: Any) -> None:
        self._replay = replay
        self._variable = variable
        self._tables = backends.current().capabilities["tables"]
        self._ring: Any = None
        self._final: Any = None
        # Of the storage, when its observations were last copied. No epoch is -1, so the first call copies everything.
        self._epoch = -1
        self._count = 0

    def observations(self, indices: Array) -> Any:
        """Return the observations `[n, ...]` as a tensor on the device."""
        storage = self._updated()
        rows = storage.observation_rows(indices).astype(np.int32)
        return storage.join(self._tables.take_rows(self._ring, rows))

    def next_observations(self, indices: Array) -> Any:
        """Return the true next observations `[n, ...]` as a tensor on the device."""
        storage = self._updated()
        rows = storage.next_observation_rows(indices).astype(np.int32)
        return storage.join(self._tables.take_rows_of_two(self._ring, self._final, rows))

    def _updated(self) -> Storage:
        """Copy what has been added since the last call, and return the storage."""
        storage = self._replay.storage
        epoch = self._epoch
        self._epoch = -1  # if an exception follows, the next call copies everything again
        try:
            self._copy_since(storage.begin if storage.epoch != epoch else max(self._count, storage.begin), storage)
        except BaseException:
            self._ring = self._final = None  # JAX may have consumed them
            raise
        self._epoch = storage.epoch
        self._count = storage.count
        return storage

    def _copy_since(self, number: int, storage: Storage) -> None:
        """Copy the observations of the transitions with this insertion number and later ones."""
        layout = storage.observation_layout
        slots = len(storage.final_observations)
        if self._ring is None:
            self._ring = self._new_table(storage, storage.capacity)
        rows = np.arange(number, storage.count) % storage.capacity
        self._ring = self._copied(self._ring, storage.observation, rows, layout)
        if self._final is None or slots != self._final.shape[0]:
            # The new table is empty, so it receives the final observations of all stored transitions.
            self._final = self._new_table(storage, slots)
            rows = storage.stored_indices()
        successor = storage.successor[rows]
        self._final = self._copied(self._final, storage.final_observations, -1 - successor[successor < 0], layout)

    def _new_table(self, storage: Storage, rows: int) -> Any:
        leaf = storage.observation_layout
        assert isinstance(leaf, Leaf)
        return self._tables.empty_table((rows, *leaf.shape), leaf.batch_dtype, self._variable)

    def _copied(self, table: Any, source: Any, rows: Array, layout: Any) -> Any:
        """Return the table on the device with these rows of a table on the host."""
        size = max(1, CHUNK // max(1, source[:1].nbytes))
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            table = self._tables.write_rows(table, part.astype(np.int32), gather(source, part, layout))
        return table

"""Memory that the learner shares with the workers: arrays, rings of rows, and weights under a version counter."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from noterl.collect.workers import platforms

Array = np.ndarray[Any, Any]

# Shape and dtype of each weight.
Shapes = Sequence[tuple[tuple[int, ...], Any]]

# Arrays start on cache lines of their own, so that two processes do not write to the same line.
_LINE = 64


class ArraySpec(NamedTuple):
    """The name, shape and dtype of an array in shared memory."""

    name: str
    shape: tuple[int, ...]
    dtype: Any


def _nbytes(spec: ArraySpec) -> int:
    """Return the bytes of an array, rounded up to whole cache lines."""
    size = math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
    return (size + _LINE - 1) // _LINE * _LINE


class SharedMemory:
    """Arrays in memory that processes share.

    Args:
        specs: the arrays; all processes must pass the same.
        handle: the descriptor of another process's memory, which this process has inherited; None for new memory.

    Attributes:
        arrays: the arrays by name; zeros at first.
        handle: the descriptor of the memory.
    """

    def __init__(self, specs: Iterable[ArraySpec], handle: int | None = None) -> None:
        specs = list(specs)
        size = max(sum(map(_nbytes, specs)), 1)
        if handle is None:
            handle, memory = platforms.make_memory(size)
        else:
            memory = mmap.mmap(handle, size)
        self.handle = handle
        self.arrays: dict[str, Array] = {}  # they keep the memory alive
        offset = 0
        for spec in specs:
            self.arrays[spec.name] = np.ndarray(spec.shape, spec.dtype, buffer=memory, offset=offset)
            offset += _nbytes(spec)

    def close(self) -> None:
        """Close the descriptor; the arrays stay valid while referenced."""
        with contextlib.suppress(OSError):
            os.close(self.handle)
        self.arrays = {}


class Ring:
    """Rows that one process writes and another reads, in order and without locks.

    The counters never wrap around. A row is visible to the reader after `publish`, and the place of the row is free
    for the writer after `release`.

    Args:
        fields: arrays `[capacity, ...]` by name.
        counters: int64 `[2]`, the numbers of rows that were published and released; only the writer sets the first, and
            only the reader the second.
    """

    def __init__(self, fields: Mapping[str, Array], counters: Array) -> None:
        self.fields: dict[str, Array] = dict(fields)
        self.capacity: int = len(next(iter(self.fields.values())))
        # An int of a memoryview is read in a third of the time that one of an array takes.
        self._counters: Any = counters.data

    @property
    def published(self) -> int:
        """Number of rows that the writer has published so far."""
        return self._counters[0]

    @property
    def released(self) -> int:
        """Number of rows that the reader has released so far."""
        return self._counters[1]

    @property
    def unread(self) -> int:
        """Number of rows that are published and not released."""
        return self._counters[0] - self._counters[1]

    @property
    def space(self) -> int:
        """Number of rows that can be written."""
        return self.capacity - self.unread

    def place(self) -> int:
        """Return where the writer's next row is."""
        return self._counters[0] % self.capacity

    def publish(self, rows: int) -> None:
        """Make rows visible to the reader; the rows must be complete."""
        self._counters[0] += rows

    def first(self) -> int:
        """Return where the reader's next row is."""
        return self._counters[1] % self.capacity

    def release(self, rows: int) -> None:
        """Free the places of rows that were read."""
        self._counters[1] += rows

    def set_released(self, rows: int) -> None:
        """Set the number of released rows; below 0 if other rows than this ring's take the space."""
        self._counters[1] = rows

    def copy(self, first: int, rows: int) -> dict[str, Array]:
        """Return copies of rows that are published and not released.

        Args:
            first: the number of rows that were published before these.
            rows: how many.
        """
        places = np.arange(first, first + rows) % self.capacity
        return {name: field[places] for name, field in self.fields.items()}

    def append(self, rows: Mapping[str, Array]) -> None:
        """Write rows and publish the rows; there must be space for all."""
        count = len(next(iter(rows.values())))
        places = np.arange(self.published, self.published + count) % self.capacity
        for name, field in self.fields.items():
            field[places] = rows[name]
        self.publish(count)


# With two slots, a reader that begins to copy when a write is nearly complete always loses its slot to the next write.
_SLOTS = 3


class SharedWeights:
    """Weights that one process writes and others read, without locks.

    The writer fills the slots in turn. A reader copies the slot of the newest publication, which is complete, and then
    looks whether the writer has begun to overwrite the slot. The writer must make two more publications first.
    So a reader never uses a mixture of two versions, and finds complete weights even if the writer never pauses.

    Args:
        flat: uint8, the slots.
        version: int64: the numbers of publications that were begun and completed, and for each slot the number of
            gradient updates.
        shapes: shape and dtype of each weight.

    Attributes:
        weights: the copy of the reader.
        version: the number of the copied publication, from 1; -1 before the first `read`, 0 if nothing was published.
        updates: the number that `publish` received with these weights.
    """

    def __init__(self, flat: Array, version: Array, shapes: Shapes) -> None:
        self._counts = version[:2]
        self._updates = version[2:]
        self._slots = flat.reshape(_SLOTS, -1)
        # Aligned like shared memory: rounding in matrix products may depend on the alignment of the weights.
        size = self._slots.shape[1]
        buffer = np.zeros(size + _LINE, np.uint8)
        start = -buffer.ctypes.data % _LINE
        self._copy = buffer[start : start + size]
        self._shared = [_views(slot, shapes) for slot in self._slots]
        self.weights: list[Array] = _views(self._copy, shapes)
        self.version: int = -1
        self.updates: int = 0

    @staticmethod
    def specs(shapes: Shapes) -> list[ArraySpec]:
        """Return the arrays "weights" and "version" for weights of these shapes and dtypes."""
        size = sum(_nbytes(ArraySpec("", shape, dtype)) for shape, dtype in shapes)
        return [ArraySpec("weights", (_SLOTS * size,), np.uint8), ArraySpec("version", (2 + _SLOTS,), np.int64)]

    def publish(self, weights: Sequence[Array], updates: int = 0) -> None:
        """Write new weights, and the number of gradient updates that have led to these weights."""
        number = int(self._counts[0]) + 1
        self._counts[0] = number  # before the write, so that readers of the slot notice the write
        slot = number % _SLOTS
        self._updates[slot] = updates
        for shared, weight in zip(self._shared[slot], weights, strict=True):
            shared[...] = weight
        self._counts[1] = number  # after the write, so that readers choose complete weights only

    def read(self) -> bool:
        """Copy the newest weights to `weights`; return False, with the old ones, if the copy may be mixed."""
        newest = int(self._counts[1])
        if newest == self.version:
            return True
        slot = newest % _SLOTS
        weights = self._slots[slot].copy()
        updates = int(self._updates[slot])
        # Since the copy began, the writer may have begun to overwrite the slot.
        if int(self._counts[0]) >= newest + _SLOTS:
            return False
        self._copy[:] = weights
        self.version = newest
        self.updates = updates
        return True


def _views(memory: Array, shapes: Shapes) -> list[Array]:
    """Return one view of the bytes for each shape and dtype; `_nbytes` includes the padding between the views."""
    views = []
    start = 0
    for shape, dtype in shapes:
        stop = start + math.prod(shape) * np.dtype(dtype).itemsize
        views.append(memory[start:stop].view(dtype).reshape(shape))
        start += _nbytes(ArraySpec("", shape, dtype))
    return views

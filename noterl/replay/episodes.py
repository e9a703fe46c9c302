"""The position of each transition in its episode, found in constant time.

`Storage.add` does not update the positions. Instead, `update` reads the links of the transitions inserted since the
last `update`, so there is no state to save. Here an episode is a run of stored transitions that `successor` links:
after an interruption, another episode starts. Each lane numbers its transitions by ordinals. A ring per lane (in
`_pool`) maps ordinals to indices.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from noterl.replay.columns import Array

FIRST_RING = 64  # initial size of a lane's ring, a power of two


class Links(Protocol):
    """The attributes of a storage that `Episodes` reads; see `noterl.replay.storage.Storage`."""

    capacity: int
    begin: int
    count: int
    epoch: int
    lane: Array
    successor: Array


class Episodes:
    """The episodes of the stored transitions.

    Every public method except `update` takes indices `[n]` of stored transitions and returns an array `[n]`. Call
    `update` first; `Storage.episodes` does.

    Args:
        storage: holds the transitions.
    """

    def __init__(self, storage: Links) -> None:
        self._storage = storage
        self._ordinal = np.empty(storage.capacity, np.int64)
        self._slot = np.empty(storage.capacity, np.int64)  # of the transition's episode
        self._reset()

    def _reset(self) -> None:
        """Discard what `update` has read; the next `update` reads every stored transition."""
        self._begin = self._count = self._storage.begin
        self._epoch = -1  # of the storage; -1 before the first read
        self._lane_numbers: dict[int, int] = {}  # lane -> its position in the next five arrays
        self._oldest = np.zeros(0, np.int64)  # ordinal of the lane's oldest stored transition
        self._next = np.zeros(0, np.int64)  # ordinal of the lane's next transition
        self._newest = np.zeros(0, np.int64)  # insertion number of the lane's newest transition
        self._base = np.zeros(0, np.int64)  # start of the lane's ring in `_pool`
        self._ring = np.zeros(0, np.int64)  # size of the lane's ring less 1, a bit mask
        self._pool = np.empty(0, np.int64)
        # By the slot of an episode: ordinals of its first and last transition, and the lane's number.
        self._first, self._last, self._lane = (np.zeros(0, np.int64) for _ in range(3))
        self._free: list[int] = []

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        columns = (self._ordinal, self._slot, self._pool, self._first, self._last, self._lane)
        return sum(column.nbytes for column in columns)

    def before(self, indices: Array) -> Array:
        """Return how many stored transitions of the same episode precede each transition."""
        slot = self._slot[indices]
        ordinal = self._ordinal[indices]
        return ordinal - np.maximum(self._first[slot], self._oldest[self._lane[slot]])

    def after(self, indices: Array) -> Array:
        """Return how many transitions of the same episode follow each transition so far."""
        return self._last[self._slot[indices]] - self._ordinal[indices]

    def shifted(self, indices: Array, steps: Array | int) -> Array:
        """Return the indices `steps` later in the episode (earlier if negative); these transitions must be stored."""
        lane = self._lane[self._slot[indices]]
        return self._pool[self._base[lane] + ((self._ordinal[indices] + steps) & self._ring[lane])]

    def update(self) -> Episodes:
        """Read the changes of the storage since the last call, and return `self`."""
        storage = self._storage
        if self._epoch == storage.epoch and self._count == storage.count and self._begin == storage.begin:
            return self
        # Transitions that were inserted and evicted between two calls were never read, so `_evict` cannot remove them.
        if self._epoch != storage.epoch or self._count <= storage.begin:
            self._reset()
        self._epoch = -1  # if an exception follows, the next call reads everything again
        for number in range(self._begin, storage.begin):
            self._evict(number)
        for number in range(max(self._count, storage.begin), storage.count):
            self._insert(number)
        self._begin = storage.begin
        self._count = storage.count
        self._epoch = storage.epoch
        return self

    def _evict(self, number: int) -> None:
        """Evict the transition with this insertion number, the oldest of its lane."""
        index = number % self._storage.capacity
        slot = self._slot[index]
        ordinal = self._ordinal[index]
        self._oldest[self._lane[slot]] = ordinal + 1
        # Transitions are evicted in order, so the episode's last one is the last that uses the slot.
        if ordinal == self._last[slot]:
            self._free.append(int(slot))

    def _insert(self, number: int) -> None:
        """Insert the transition with this insertion number, the newest of its lane."""
        storage = self._storage
        index = number % storage.capacity
        lane = self._lane_numbers.setdefault(int(storage.lane[index]), len(self._lane_numbers))
        if lane == len(self._next):  # a new lane gets an entry in the arrays of lanes
            self._oldest, self._next, self._base = (
                np.append(column, 0) for column in (self._oldest, self._next, self._base)
            )
            self._newest = np.append(self._newest, -1)
            # No ring yet: with -1, the first insertion into the lane calls `_make_room`.
            self._ring = np.append(self._ring, -1)
        ordinal = int(self._next[lane])
        newest = int(self._newest[lane])
        if ordinal - self._oldest[lane] > self._ring[lane]:
            self._make_room()
        before = newest % storage.capacity
        # If the lane's newest transition was evicted, `before` may hold a transition of another lane.
        if newest >= storage.begin and storage.successor[before] == index:
            slot = int(self._slot[before])
        else:
            slot = self._new_slot()
            self._first[slot] = ordinal
            self._lane[slot] = lane
        self._ordinal[index] = ordinal
        self._slot[index] = slot
        self._last[slot] = ordinal
        self._pool[self._base[lane] + (ordinal & self._ring[lane])] = index
        self._next[lane] = ordinal + 1
        self._newest[lane] = number

    def _new_slot(self) -> int:
        """Take a free slot for an episode; without one, double the columns of the slots first."""
        if not self._free:
            held = len(self._first)
            more = np.zeros(max(held, 16), np.int64)
            self._first, self._last, self._lane = (
                np.append(column, more) for column in (self._first, self._last, self._lane)
            )
            # In descending order, so that `pop` takes the smallest slot.
            self._free = list(range(held + len(more) - 1, held - 1, -1))
        return self._free.pop()

    def _make_room(self) -> None:
        """Give each lane a ring that is larger than 4/3 of the lane's number of stored transitions.

        All rings are resized together. Otherwise lanes that are stepped in turn would cause one copy of the pool each.
        """
        stored = self._next - self._oldest
        # Powers of two, so that a bit mask replaces the division by the size.
        sizes = np.array([max(FIRST_RING, 1 << int(4 * count // 3).bit_length()) for count in stored])
        base = np.cumsum(sizes) - sizes
        pool = np.empty(sizes.sum(), np.int64)
        for lane, size in enumerate(sizes):
            ordinals = np.arange(self._oldest[lane], self._next[lane])
            source = self._base[lane] + (ordinals & self._ring[lane])
            pool[base[lane] + (ordinals & (size - 1))] = self._pool[source]
        self._pool = pool
        self._base = base
        self._ring = sizes - 1

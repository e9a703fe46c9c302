"""The position of each transition in its episode, found in constant time.

It reads the storage's links when it is used, and only those of transitions inserted since; `add` does not update it and
it has no state to save. An episode means its stored, linked transitions: those before an eviction or an interruption do
not belong to it. Each lane numbers its transitions by ordinals, and a ring per lane (`_pool`) maps ordinals to indices.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from noterl.replay.columns import Array

FIRST_RING = 64
FEW = 8  # up to so many new transitions are inserted faster one by one


class Links(Protocol):
    """What `Episodes` reads of a storage; see `noterl.replay.storage.Storage`."""

    capacity: int
    begin: int
    count: int
    epoch: int
    lane: Array
    successor: Array


class Episodes:
    """The episodes of the stored transitions.

    Every public method but `update` takes indices `[n]` of stored transitions and returns an array `[n]`.

    Args:
        storage: of the transitions.
    """

    def __init__(self, storage: Links) -> None:
        self._storage = storage
        self._ordinal = np.empty(storage.capacity, np.int64)
        self._slot = np.empty(storage.capacity, np.int64)  # of the transition's episode
        self._valid = False
        self._reset()

    def _reset(self) -> None:
        self._begin = self._count = self._storage.begin
        self._epoch = self._storage.epoch
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
        """Return how many stored transitions of the episode precede each one."""
        slot, ordinal = self._slot[indices], self._ordinal[indices]
        return ordinal - np.maximum(self._first[slot], self._oldest[self._lane[slot]])

    def after(self, indices: Array) -> Array:
        """Return how many transitions of the episode follow each one so far."""
        return self._last[self._slot[indices]] - self._ordinal[indices]

    def shifted(self, indices: Array, steps: Array | int) -> Array:
        """Return the indices `steps` later in the episode (earlier, if negative); these must be stored."""
        lane = self._lane[self._slot[indices]]
        return self._pool[self._base[lane] + ((self._ordinal[indices] + steps) & self._ring[lane])]

    def update(self) -> Episodes:
        """Read what changed in the storage since the last call."""
        storage = self._storage
        valid = self._valid and self._epoch == storage.epoch
        if valid and self._count == storage.count and self._begin == storage.begin:
            return self
        incremental = valid and storage.begin < self._count
        # An exception from here on makes the next call start from nothing.
        self._valid = False
        if not incremental:
            self._reset()
        self._evict(storage.begin)
        first = max(self._count, storage.begin)
        if storage.count - first <= FEW:
            for number in range(first, storage.count):
                self._insert_one(number)
        else:
            self._insert(np.arange(first, storage.count))
        self._begin, self._count = storage.begin, storage.count
        self._valid = True
        return self

    def _evict(self, begin: int) -> None:
        """Evict the insertion numbers before `begin`."""
        if begin - self._begin <= FEW:
            for number in range(self._begin, begin):
                index = number % self._storage.capacity
                one = int(self._slot[index])
                self._oldest[self._lane[one]] = self._ordinal[index] + 1
                if self._ordinal[index] == self._last[one]:
                    self._free.append(one)
            return
        indices = np.arange(self._begin, begin) % self._storage.capacity
        slot, ordinal = self._slot[indices], self._ordinal[indices]
        self._oldest[self._lane[slot]] = ordinal + 1  # ascending within a lane: the last write stays
        self._free.extend(slot[ordinal == self._last[slot]].tolist())

    def _insert(self, numbers: Array) -> None:
        """Insert new transitions, the oldest first."""
        storage = self._storage
        indices = numbers % storage.capacity
        lanes = np.array([self._lane_number(lane) for lane in storage.lane[indices].tolist()], np.int64)
        coming = np.bincount(lanes, minlength=len(self._next))
        if (self._next + coming - self._oldest > self._ring + 1).any():
            self._make_room(coming)
        order = np.argsort(lanes, kind="stable")
        indices, lanes, numbers = indices[order], lanes[order], numbers[order]
        heads = np.flatnonzero(np.diff(lanes, prepend=-1))  # positions of each lane's first new transition
        counts = np.diff(np.append(heads, len(indices)))
        ordinal = self._next[lanes] + np.arange(len(indices)) - np.repeat(heads, counts)
        continues = np.zeros(len(indices), np.bool_)
        continues[1:] = storage.successor[indices[:-1]] == indices[1:]
        continues[heads] = self._continues(lanes[heads], indices[heads])
        slot = self._slots(ordinal, lanes, continues, heads)
        self._ordinal[indices], self._slot[indices] = ordinal, slot
        self._last[slot] = ordinal  # ascending within an episode: the last write stays
        self._pool[self._base[lanes] + (ordinal & self._ring[lanes])] = indices
        self._next[lanes], self._newest[lanes] = ordinal + 1, numbers

    def _insert_one(self, number: int) -> None:
        storage = self._storage
        index = number % storage.capacity
        lane = self._lane_number(int(storage.lane[index]))
        ordinal, newest = int(self._next[lane]), int(self._newest[lane])
        if ordinal - self._oldest[lane] > self._ring[lane]:
            self._make_room(np.bincount([lane], minlength=len(self._next)))
        before = newest % storage.capacity
        if newest >= storage.begin and storage.successor[before] == index:
            slot = int(self._slot[before])
        else:
            slot = self._new_slots(1)[0]
            self._first[slot], self._lane[slot] = ordinal, lane
        self._ordinal[index], self._slot[index], self._last[slot] = ordinal, slot, ordinal
        self._pool[self._base[lane] + (ordinal & self._ring[lane])] = index
        self._next[lane], self._newest[lane] = ordinal + 1, number

    def _continues(self, lanes: Array, indices: Array) -> Array:
        """Return whether each transition continues the episode of its lane's newest transition."""
        newest = self._newest[lanes]
        before = newest % self._storage.capacity
        return (newest >= self._storage.begin) & (self._storage.successor[before] == indices)

    def _slots(self, ordinal: Array, lanes: Array, continues: Array, heads: Array) -> Array:
        """Return the slot of each new transition's episode; they are sorted by lane, which begin at `heads`."""
        starts = np.flatnonzero(~continues)
        fresh = np.array(self._new_slots(len(starts)), np.int64)
        self._first[fresh], self._lane[fresh] = ordinal[starts], lanes[starts]
        slot = np.zeros(len(lanes), np.int64)
        slot[starts] = fresh
        running = heads[continues[heads]]
        slot[running] = self._slot[self._newest[lanes[running]] % self._storage.capacity]
        changes = np.union1d(starts, running)
        return slot[np.repeat(changes, np.diff(np.append(changes, len(lanes))))]

    def _new_slots(self, count: int) -> list[int]:
        missing = count - len(self._free)
        if missing > 0:
            held = len(self._first)
            more = max(missing, held, 16)
            self._first, self._last, self._lane = (
                np.concatenate([column, np.zeros(more, np.int64)]) for column in (self._first, self._last, self._lane)
            )
            self._free[:0] = range(held + more - 1, held - 1, -1)
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken

    def _lane_number(self, lane: int) -> int:
        """Return the number of a lane; a new lane gets the next one."""
        number = self._lane_numbers.setdefault(lane, len(self._lane_numbers))
        if number == len(self._next):
            self._oldest, self._next, self._base = (
                np.append(column, 0) for column in (self._oldest, self._next, self._base)
            )
            self._newest, self._ring = np.append(self._newest, -1), np.append(self._ring, -1)
        return number

    def _make_room(self, coming: Array) -> None:
        """Give each lane a ring for its stored and its coming transitions."""
        needed = self._next + coming - self._oldest
        # Rings that are nearly full grow together: lanes that are stepped in turn would else cause one move each.
        sizes = [_ring_size(int(4 * count // 3), FIRST_RING) for count in needed]
        base = np.concatenate([[0], np.cumsum(sizes)])
        pool = np.empty(base[-1], np.int64)
        for lane, size in enumerate(sizes):
            ordinals: Any = np.arange(self._oldest[lane], self._next[lane])
            source = self._base[lane] + (ordinals & self._ring[lane])
            pool[base[lane] + (ordinals & (size - 1))] = self._pool[source]
        self._pool, self._base, self._ring = pool, base[:-1], np.array(sizes, np.int64) - 1


def _ring_size(count: int, least: int) -> int:
    return max(least, 1 << max(0, count - 1).bit_length())

"""Where in its episode each row lies.

Owns: the ways from a row to the others of its episode in constant time, for what looks beyond the next transition. It
reads the storage's links when it is asked, and only those of rows added since: `add` knows nothing of it, and there is
nothing to save. "Episode" here means its transitions that are live and linked: what was overwritten, or follows an
interruption, is not part of it.

The rows of a lane are numbered by ordinals, and a lane's rows lie in a ring of their own (`_pool`), by ordinal: so any
step of an episode is one look away, although the rows of several lanes interleave in the memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from noterl.replay.columns import Array

if TYPE_CHECKING:
    from noterl.replay.storage import Storage

FIRST_RING = 64
FEW = 8  # new rows that are quicker to enter one by one


class Episodes:
    """The episodes of a storage's live rows.

    Every method takes live rows `[n]` and returns an array `[n]`.

    Args:
        storage: whose rows.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._ordinal = np.empty(storage.capacity, np.int64)
        self._slot = np.empty(storage.capacity, np.int64)  # of the row's episode
        self._valid = False
        self._reset()

    def _reset(self) -> None:
        self._begin = self._count = self._storage.begin
        self._epoch = self._storage.epoch
        self._known: dict[int, int] = {}  # lane -> its index in the next five
        self._oldest = np.zeros(0, np.int64)  # ordinal of the lane's oldest live row
        self._next = np.zeros(0, np.int64)  # ordinal of the lane's next row
        self._newest = np.zeros(0, np.int64)  # generation of the lane's newest row
        self._base = np.zeros(0, np.int64)  # where its ring begins
        self._ring = np.zeros(0, np.int64)  # size of its ring less 1, a mask
        self._pool = np.empty(0, np.int64)
        # By the slot of an episode: ordinals of its first and last transition, and the lane's index.
        self._first, self._last, self._lane = (np.zeros(0, np.int64) for _ in range(3))
        self._free: list[int] = []

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        columns = (self._ordinal, self._slot, self._pool, self._first, self._last, self._lane)
        return sum(column.nbytes for column in columns)

    def before(self, rows: Array) -> Array:
        """Return how many live transitions of the episode come before each row."""
        slot, ordinal = self._slot[rows], self._ordinal[rows]
        return ordinal - np.maximum(self._first[slot], self._oldest[self._lane[slot]])

    def after(self, rows: Array) -> Array:
        """Return how many transitions of the episode come after each row, so far."""
        return self._last[self._slot[rows]] - self._ordinal[rows]

    def shifted(self, rows: Array, steps: Array | int) -> Array:
        """Return the rows that lie so many steps later (earlier, if negative) in the episode; they must be there."""
        lane = self._lane[self._slot[rows]]
        return self._pool[self._base[lane] + ((self._ordinal[rows] + steps) & self._ring[lane])]

    def start(self, rows: Array) -> Array:
        """Return the row of the oldest live transition of the episode."""
        return self.shifted(rows, -self.before(rows))

    def end(self, rows: Array) -> Array:
        """Return the row of the newest transition of the episode."""
        return self.shifted(rows, self.after(rows))

    def previous(self, rows: Array) -> Array:
        """Return the row of the transition before, or -1 where the episode has none that is live."""
        there = self.before(rows) > 0
        return np.where(there, self.shifted(rows, np.where(there, -1, 0)), -1)

    def update(self) -> Episodes:
        """Learn of what changed in the storage since the last time."""
        storage = self._storage
        known = self._valid and self._epoch == storage.epoch
        if known and self._count == storage.count and self._begin == storage.begin:
            return self
        fresh = known and storage.begin < self._count
        # Whatever breaks off here leaves everything to be done again.
        self._valid = False
        if not fresh:
            self._reset()
        self._forget(storage.begin)
        first = max(self._count, storage.begin)
        if storage.count - first <= FEW:
            for generation in range(first, storage.count):
                self._enter_one(generation)
        else:
            self._enter(np.arange(first, storage.count))
        self._begin, self._count = storage.begin, storage.count
        self._valid = True
        return self

    def _forget(self, begin: int) -> None:
        """Let the generations before `begin` die."""
        if begin - self._begin <= FEW:
            for generation in range(self._begin, begin):
                row = generation % self._storage.capacity
                one = int(self._slot[row])
                self._oldest[self._lane[one]] = self._ordinal[row] + 1
                if self._ordinal[row] == self._last[one]:
                    self._free.append(one)
            return
        rows = np.arange(self._begin, begin) % self._storage.capacity
        slot, ordinal = self._slot[rows], self._ordinal[rows]
        self._oldest[self._lane[slot]] = ordinal + 1  # ascending within a lane: the last one counts
        self._free.extend(slot[ordinal == self._last[slot]].tolist())

    def _enter(self, generations: Array) -> None:
        """Enter new rows, the oldest first."""
        storage = self._storage
        rows = generations % storage.capacity
        lanes = np.array([self._index(lane) for lane in storage.lane[rows].tolist()], np.int64)
        coming = np.bincount(lanes, minlength=len(self._next))
        if (self._next + coming - self._oldest > self._ring + 1).any():
            self._make_room(coming)
        order = np.argsort(lanes, kind="stable")
        rows, lanes, generations = rows[order], lanes[order], generations[order]
        heads = np.flatnonzero(np.diff(lanes, prepend=-1))  # the first new row of each lane
        counts = np.diff(np.append(heads, len(rows)))
        ordinal = self._next[lanes] + np.arange(len(rows)) - np.repeat(heads, counts)
        goes_on = np.zeros(len(rows), np.bool_)
        goes_on[1:] = storage.successor[rows[:-1]] == rows[1:]
        goes_on[heads] = self._follows(lanes[heads], rows[heads])
        slot = self._slots(ordinal, lanes, goes_on, heads)
        self._ordinal[rows], self._slot[rows] = ordinal, slot
        self._last[slot] = ordinal  # ascending within an episode: the last one counts
        self._pool[self._base[lanes] + (ordinal & self._ring[lanes])] = rows
        self._next[lanes], self._newest[lanes] = ordinal + 1, generations

    def _enter_one(self, generation: int) -> None:
        storage = self._storage
        row = generation % storage.capacity
        lane = self._index(int(storage.lane[row]))
        ordinal, newest = int(self._next[lane]), int(self._newest[lane])
        if ordinal - self._oldest[lane] > self._ring[lane]:
            self._make_room(np.bincount([lane], minlength=len(self._next)))
        before = newest % storage.capacity
        if newest >= storage.begin and storage.successor[before] == row:
            slot = int(self._slot[before])
        else:
            slot = self._new_slots(1)[0]
            self._first[slot], self._lane[slot] = ordinal, lane
        self._ordinal[row], self._slot[row], self._last[slot] = ordinal, slot, ordinal
        self._pool[self._base[lane] + (ordinal & self._ring[lane])] = row
        self._next[lane], self._newest[lane] = ordinal + 1, generation

    def _follows(self, lanes: Array, rows: Array) -> Array:
        """Return whether each row goes on with what its lane's newest row began."""
        newest = self._newest[lanes]
        before = newest % self._storage.capacity
        return (newest >= self._storage.begin) & (self._storage.successor[before] == rows)

    def _slots(self, ordinal: Array, lanes: Array, goes_on: Array, heads: Array) -> Array:
        """Return the slot of each new row's episode; rows lie lane by lane, `heads` is where lanes begin."""
        starts = np.flatnonzero(~goes_on)
        fresh = np.array(self._new_slots(len(starts)), np.int64)
        self._first[fresh], self._lane[fresh] = ordinal[starts], lanes[starts]
        slot = np.zeros(len(lanes), np.int64)
        slot[starts] = fresh
        running = heads[goes_on[heads]]
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

    def _index(self, lane: int) -> int:
        """Return the index of a lane, and get to know a new one."""
        index = self._known.setdefault(lane, len(self._known))
        if index == len(self._next):
            self._oldest, self._next, self._base = (
                np.append(column, 0) for column in (self._oldest, self._next, self._base)
            )
            self._newest, self._ring = np.append(self._newest, -1), np.append(self._ring, -1)
        return index

    def _make_room(self, coming: Array) -> None:
        """Give each lane a ring for its live rows and as many as are coming."""
        needed = self._next + coming - self._oldest
        # Lanes that are nearly full grow at the same time, or those that go side by side would move all in turn.
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

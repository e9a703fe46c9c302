"""The frames that stacks need and the ring lacks.

Owns: of every episode whose first frames were overwritten, dropped or never stored, those that its oldest live
transition still shows. They belong to that transition's row, and pass on to the next one when it dies, so that there
are no more of them than episodes which lost their beginning.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from noterl.replay.columns import Array, Leaf
from noterl.replay.disk import Allocate

FIRST_SLOTS = 4


def past_layout(frame: Leaf, frames: int) -> Leaf:
    """Return the layout of what is kept of one row: the `frames - 1` before its own, the oldest first."""
    return Leaf((frames - 1, *frame.shape), frame.dtype, frame.delivered)


def past_bytes(capacity: int, frame: Leaf, frames: int) -> int:
    """Return the bytes a new `Past` allocates; it grows with the episodes that lost their beginning."""
    return capacity * np.dtype(np.int32).itemsize + FIRST_SLOTS * past_layout(frame, frames).row_bytes


class Past:
    """The frames `[k - 1, ...]` before a row's own, of the rows that have some.

    What is kept of a row that is not the first live one of its episode is not looked at.

    Args:
        capacity: rows of the memory.
        layout: of `past_layout`.
        empty: what makes the table, of a shape and a dtype.

    Attributes:
        slot: of each row: where in `table` its frames lie; 0 for rows that have none.
        table: `[slots, k - 1, ...]`, of which the first is not used.
    """

    def __init__(self, capacity: int, layout: Leaf, empty: Allocate) -> None:
        self.layout, self._empty = layout, empty
        self.slot = np.zeros(capacity, np.int32)
        self._slot_cells: Any = memoryview(self.slot)  # type: ignore[arg-type]
        self.table = empty((FIRST_SLOTS, *layout.shape), layout.dtype)
        self._free: list[int] = []
        self._slots = 1  # slots ever handed out, and the one that is not used

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self.slot.nbytes + self.table.nbytes

    def keep(self, row: int, frames: Any) -> None:
        """Keep these frames for a row that has none that are looked at."""
        slot = self._slot_for(row)
        self.table[slot] = frames
        self._claim(row, slot)

    def pass_on(self, row: int, successor: int, frame: Array) -> None:
        """Keep for a row's successor what the row has and, after it, the row's own frame; the row keeps its own."""
        own, slot = self._slot_cells[row], self._slot_for(successor)
        if own:
            self.table[slot, :-1] = self.table[own, 1:]
            self.table[slot, -1] = frame
        else:  # its episode began with it: its own frame is all there was
            self.table[slot] = frame
        self._claim(successor, slot)

    def release(self, row: int) -> None:
        """Forget what is kept of a row."""
        slot = self._slot_cells[row]
        if slot:
            self._slot_cells[row] = 0
            self._free.append(slot)

    def clear(self) -> None:
        """Forget everything."""
        self.slot.fill(0)
        self._free.clear()
        self._slots = 1

    def check(self) -> None:
        """Assert that no slot is used twice; part of `Replay.check`.

        Raises:
            AssertionError: naming what does not hold.
        """
        used = np.concatenate([self.slot[self.slot != 0], np.array(self._free, np.int64)])
        assert len(np.unique(used)) == len(used), "a place for older frames is used twice, or used and free"
        assert ((used > 0) & (used < self._slots)).all(), "a place for older frames was never handed out"
        assert self._slots <= len(self.table), "more places for older frames handed out than there are"

    def _slot_for(self, row: int) -> int:
        """Return the row's slot, or one that is free and last in its list."""
        slot: int = self._slot_cells[row]
        if slot:
            return slot
        if not self._free:
            self._free.append(self._new_slot())
        return self._free[-1]

    def _claim(self, row: int, slot: int) -> None:
        if self._slot_cells[row] != slot:
            # What breaks off between the two costs a slot, but none is used twice.
            self._free.pop()
            self._slot_cells[row] = slot

    def _new_slot(self) -> int:
        if self._slots == len(self.table):
            larger = self._empty((2 * self._slots, *self.layout.shape), self.layout.dtype)
            larger[: self._slots] = self.table
            self.table = larger
        self._slots += 1
        return self._slots - 1

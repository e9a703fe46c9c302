"""Which live rows must not be drawn, although others may still lead over them.

Owns: the rows that `Replay.keep` left out. They are known by generation, so that a row which is overwritten may be
drawn again without a word to anybody: `add` does not know that there are masks.
"""

from __future__ import annotations

import numpy as np

from noterl.replay.columns import Array


class Mask:
    """Generations that are hidden from the samplers.

    Args:
        capacity: rows of the memory.

    Attributes:
        version: grows whenever other rows than newly added ones change; samplers that keep sums look at it.
    """

    def __init__(self, capacity: int) -> None:
        self.version = 0
        self._capacity = capacity
        self._hidden = np.empty(0, np.int64)  # generations, ascending
        self._open: Array | None = None
        self._seen = 0  # the first generation that `_open` does not know yet

    def hide(self, generations: Array, count: int) -> None:
        """Hide exactly these generations, ascending, of the `count` added so far."""
        self._open, self._seen, self.version = None, count, self.version + 1
        self._hidden = generations
        if len(generations):
            self._open = np.ones(self._capacity, np.bool_)
            self._open[generations % self._capacity] = False

    @property
    def empty(self) -> bool:
        """Whether nothing was ever hidden, or all that was has been overwritten."""
        return self._open is None

    def hidden(self, begin: int) -> Array:
        """Return the hidden generations that are live, ascending."""
        return self._hidden[self._hidden.searchsorted(begin) :]

    def eligible(self, begin: int, count: int) -> Array | None:
        """Return by row whether it may be drawn, if it is live; None if all may."""
        if self._open is None:
            return None
        if self._hidden[-1] < begin:
            self._open, self._hidden = None, self._hidden[:0]
            return None
        if self._seen < count:
            first = max(self._seen, count - self._capacity)
            self._open[np.arange(first, count) % self._capacity] = True
            self._seen = count
        return self._open

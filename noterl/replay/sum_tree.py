"""Sums over a row of numbers that change, and the search for where a running sum passes a value.

Owns the data structure behind sampling in proportion to priority. Level 0 holds the values, each further level the sums
of `BRANCHES` neighbours of the one below, up to a level that is small enough for one pass over it. A sum is always
computed anew from its parts, never incremented: nothing drifts, an index given twice does no harm, and what the tree
holds depends on its values alone, not on how they came to be there.
"""

from __future__ import annotations

import numpy as np

from noterl.replay import sum_tree_loops
from noterl.replay.columns import Array

# Eight comparisons are eight bytes: one word, whose bits NumPy 2 counts in one step.
BRANCHES = 8
# Up to so many nodes, running sums of all of them cost less than another level.
ROOT = 4096
# x * BELOW is the largest number below x, for every normal double x.
BELOW = 1.0 - 2.0**-53


class SumTree:
    """`size` values, zero at first, in double precision; any size will do.

    Values are 0, or at least 1e-300 and small enough that their sum is finite; this is not checked. Trees of more than
    one level are written and searched by compiled loops where the extra `noterl[fast]` is installed.

    Args:
        size: how many values.

    Example:
    >>> from noterl.replay.sum_tree import SumTree
    >>> tree = SumTree(5)
    >>> tree.set(np.array([1, 3]), np.array([2.0, 6.0]))
    >>> tree.total, tree.find(np.array([0.0, 1.9, 2.0, 7.9]))
    (8.0, array([1, 1, 3, 3]))
    """

    def __init__(self, size: int) -> None:
        depth = 0
        while size > ROOT * BRANCHES**depth:
            depth += 1
        # As many values as the root's sums have room for, so that every sum has all its parts.
        room = -(-size // BRANCHES**depth)
        self._levels = tuple(np.zeros(room * BRANCHES**level) for level in range(depth, -1, -1))
        self._parts = [level.reshape(-1, BRANCHES) for level in self._levels[:-1]]
        self.values: Array = self._levels[0][:size]
        self._loops = sum_tree_loops.compiled() if depth else None
        self._root: Array | None = None  # of the last level, until something is written

    @property
    def total(self) -> float:
        """The sum of all values."""
        return float(self._running()[-1])

    def set(self, index: Array, values: Array) -> None:
        """Write values `[n]` at an index `[n]`; of an index that comes twice the last value stays."""
        self._root = None
        if self._loops is not None:
            self._loops.write(self._levels, index, values)
            return
        self._levels[0][index] = values
        starts = np.arange(0, len(index) * BRANCHES, BRANCHES)
        for parts, sums in zip(self._parts, self._levels[1:], strict=True):
            if 2 * len(index) > len(parts):  # all sums of the level, and then of those above too
                sums[:] = _added(parts)
            else:
                index = index // BRANCHES
                sums[index] = np.add.reduceat(parts.take(index, 0).ravel(), starts)

    def set_range(self, start: int, stop: int, values: Array | float) -> None:
        """Write values, or one for all, from `start` up to `stop`."""
        if start == stop:
            return
        self._root = None
        self._levels[0][start:stop] = values
        for parts, sums in zip(self._parts, self._levels[1:], strict=True):
            start, stop = start // BRANCHES, (stop - 1) // BRANCHES + 1
            sums[start:stop] = _added(parts[start:stop])

    def find(self, sums: Array) -> Array:
        """Return, for sums `[n]` of at least 0, the first index (int64) up to which the values sum to more than that.

        A value of 0 is never found. A sum of `total` or more finds the last value that is not 0. There must be one.
        """
        index = self._descend(sums, exact=False)
        if self._levels[0].take(index).all():
            return index
        # Rounding left a rest that no child reaches, or a sum was too large: there the last child is not the answer.
        return self._descend(sums, exact=True)

    def equals(self, other: SumTree) -> bool:
        """Return whether values and sums are the same to the last bit."""
        return all(map(np.array_equal, self._levels, other._levels))

    def _descend(self, sums: Array, *, exact: bool) -> Array:
        """Return what `find` does; `exact` makes sure that at every level there is a part which reaches the sum."""
        root = self._running()
        if self._loops is not None:
            return self._loops.descend(root, self._levels, sums, BELOW, exact)
        rest = np.minimum(sums, root[-1] * BELOW)
        index = root.searchsorted(rest, "right") - 1
        rest -= root.take(index)
        # The running sums of a row's parts up to the last but one; in that one's place 0, the sum before the first.
        last = np.arange(-2, len(rest) * BRANCHES - 2, BRANCHES)
        for parts in reversed(self._parts):
            reached = parts.take(index, 0)
            np.add.accumulate(reached, 1, out=reached)
            if exact:
                np.minimum(rest, reached[:, -1] * BELOW, out=rest)
            reached[:, -1] = 0.0
            passed = _count(reached <= rest[:, None])  # one more than the parts passed, for the 0
            rest -= reached.ravel().take(last + passed)  # for the first part that is the end of the row before
            index *= BRANCHES
            index -= 1
            index += passed
        return index

    def _running(self) -> Array:
        """Return the sum of all values of the last level before each, and the total: one more than there are values."""
        if self._root is None:
            self._root = np.zeros(len(self._levels[-1]) + 1)
            np.add.accumulate(self._levels[-1], out=self._root[1:])
        return self._root


def _added(parts: Array) -> Array:
    """Return the sum of each row's parts, in one order of additions however many rows there are.

    For rows as short as these `reduceat` takes a third of the time of a sum over the last axis.
    """
    return np.add.reduceat(parts.ravel(), np.arange(0, parts.size, BRANCHES))


def _count_in_words(passed: Array) -> Array:
    """Return how many of each row's `BRANCHES` booleans are true; it takes NumPy 2."""
    return np.bitwise_count(passed.view(np.uint64)[:, 0])


def _count_plainly(passed: Array) -> Array:
    """Return what `_count_in_words` does."""
    return np.count_nonzero(passed, axis=1)


_count = _count_in_words if hasattr(np, "bitwise_count") else _count_plainly

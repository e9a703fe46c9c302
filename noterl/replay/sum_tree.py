"""A sum tree: sampling in proportion to priorities.

Level 0 holds the values. Each further level holds the sums of `BRANCHES` neighbors of the level below. The last level
is small enough for one pass. A sum is always computed from its parts, never incremented. So rounding errors do not
accumulate, an index may occur twice, and the tree depends only on its values.
"""

from __future__ import annotations

import numpy as np

from noterl.replay.columns import Array

# The results of eight comparisons are eight bytes: one word, whose bits NumPy counts in one step.
BRANCHES = 8
# Up to this many nodes, cumulative sums of all of them cost less than another level.
ROOT = 4096
# x * BELOW is the largest number below x, for every positive normal double x.
BELOW = 1.0 - 2.0**-53


class SumTree:
    """A sum tree of `size` float64 values, initially 0.

    Each value must be 0 or at least 1e-300, and the sum must be finite; this is not checked.

    Args:
        size: the number of values.

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
        # The number of values is rounded up, so that every sum has all its parts.
        room = -(-size // BRANCHES**depth)
        self._levels = tuple(np.zeros(room * BRANCHES**level) for level in range(depth, -1, -1))
        self._parts = [level.reshape(-1, BRANCHES) for level in self._levels[:-1]]
        self.values: Array = self._levels[0][:size]
        self._root: Array | None = None  # cumulative sums of the last level, until the next write

    @property
    def total(self) -> float:
        """The sum of all values."""
        return float(self._running()[-1])

    def set(self, index: Array, values: Array) -> None:
        """Write values `[n]` at indices `[n]`; if an index occurs twice, the last value counts."""
        self._root = None
        self._levels[0][index] = values
        starts = np.arange(0, len(index) * BRANCHES, BRANCHES)
        for children, sums in zip(self._parts, self._levels[1:], strict=True):
            if 2 * len(index) > len(children):  # all sums of this level and of those above
                sums[:] = _added(children)
            else:
                index = index // BRANCHES
                sums[index] = np.add.reduceat(children.take(index, 0).ravel(), starts)

    def set_range(self, start: int, stop: int, values: Array | float) -> None:
        """Write values, or one value, from `start` up to `stop`."""
        if start == stop:
            return
        self._root = None
        self._levels[0][start:stop] = values
        for children, sums in zip(self._parts, self._levels[1:], strict=True):
            start //= BRANCHES
            stop = (stop - 1) // BRANCHES + 1
            sums[start:stop] = _added(children[start:stop])

    def find(self, sums: Array) -> Array:
        """Return for each sum `[n]` (at least 0) the first index at which the cumulative sum of the values is larger.

        A value of 0 is never found. A sum of `total` or more finds the last value that is not 0; there must be one.
        """
        index = self._descend(sums, exact=False)
        if self._levels[0].take(index).all():
            return index
        # Rounding, or a sum of `total` or more, has led to a last child whose value is 0.
        return self._descend(sums, exact=True)

    def _descend(self, sums: Array, *, exact: bool) -> Array:
        """Return the indices of `find`; `exact` keeps the remainder below each node's sum, so a child is chosen."""
        root = self._running()
        remainder = np.minimum(sums, root[-1] * BELOW)
        index = root.searchsorted(remainder, "right") - 1
        remainder -= root.take(index)
        # `reached` holds each node's cumulative sums except the last; there it holds 0, the sum before the first child.
        last = np.arange(-2, len(remainder) * BRANCHES - 2, BRANCHES)
        for children in reversed(self._parts):
            reached = children.take(index, 0)
            np.add.accumulate(reached, 1, out=reached)
            if exact:
                np.minimum(remainder, reached[:, -1] * BELOW, out=remainder)
            reached[:, -1] = 0.0
            passed = _count(reached <= remainder[:, None])  # one more than the children passed, because of the 0
            remainder -= reached.ravel().take(last + passed)  # for the first child, this is the 0 of the previous node
            index *= BRANCHES
            index -= 1
            index += passed
        return index

    def _running(self) -> Array:
        """Return the cumulative sums of the last level, starting with 0 and ending with the total."""
        if self._root is None:
            self._root = np.zeros(len(self._levels[-1]) + 1)
            np.add.accumulate(self._levels[-1], out=self._root[1:])
        return self._root


def _added(parts: Array) -> Array:
    """Return the sum of each node's parts; the order of additions does not depend on the number of nodes.

    For rows this short, `reduceat` takes a third of the time of a sum over the last axis.
    """
    return np.add.reduceat(parts.ravel(), np.arange(0, parts.size, BRANCHES))


def _count(passed: Array) -> Array:
    """Return how many of each row's `BRANCHES` booleans are true."""
    return np.bitwise_count(passed.view(np.uint64)[:, 0])

"""What `SumTree` does most, as loops for numba to compile; to the last bit the same as its passes in NumPy.

Owns: the loops. Additions come in the order in which NumPy makes them, so that a run does not depend on the extra.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from noterl.replay.columns import Array


def write(levels: tuple[Array, ...], index: Array, values: Array) -> None:
    """Write values `[n]` at an index `[n]` of the first level, and their sums above."""
    for k in range(len(index)):
        levels[0][index[k]] = values[k]
    for k in range(len(index)):
        node = index[k]
        for level in range(len(levels) - 1):
            node //= 8
            p, at = levels[level], 8 * node
            # As NumPy's reduceat adds eight numbers.
            rest = p[at + 1]
            for part in range(2, 8):
                rest += p[at + part]
            levels[level + 1][node] = p[at] + rest


def descend(root: Array, levels: tuple[Array, ...], sums: Array, below: float, exact: bool) -> Array:
    """Return the index `[n]` that `SumTree._descend` finds for sums `[n]`; `root` is what `_running` returns."""
    found = np.empty(len(sums), np.int64)
    for k in range(len(sums)):
        rest = min(sums[k], root[-1] * below)
        node, above = 0, len(root) - 1
        while above - node > 1:
            middle = (node + above) // 2
            if root[middle] <= rest:
                node = middle
            else:
                above = middle
        rest -= root[node]
        for level in range(len(levels) - 2, -1, -1):
            parts, at = levels[level], 8 * node
            if exact:
                total = parts[at]
                for part in range(1, 8):
                    total += parts[at + part]
                rest = min(rest, total * below)
            chosen, before, reached = 0, 0.0, parts[at]
            while chosen < 7 and reached <= rest:
                before = reached
                chosen += 1
                reached += parts[at + chosen]
            node = at + chosen
            rest -= before
        found[k] = node
    return found


class Loops(NamedTuple):
    """The functions above, compiled."""

    write: Callable[..., None]
    descend: Callable[..., Array]


@cache
def compiled() -> Loops | None:
    """Return the loops, or None where numba is not installed or does not fit the rest."""
    try:
        from numba import njit
    except ImportError:
        return None

    def compile_one(function: Any) -> Any:
        try:
            return njit(cache=True)(function)
        except RuntimeError:  # there is no folder to keep what was compiled
            return njit(function)

    return Loops(compile_one(write), compile_one(descend))

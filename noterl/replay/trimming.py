"""Which part of a memory counts, and how much it is worth.

Owns: the effective sample size (Kish, 1965), and what trims a memory without moving a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from noterl.replay.columns import Array
from noterl.replay.samplers import Sampler
from noterl.replay.storage import Storage
from noterl.utils.checks import check_int


class Held:
    """What is to become of a memory once the group of updates that reads it has ended."""

    def __init__(self) -> None:
        self.begin = 0  # the oldest generation that is to live
        self.hidden: Array | None = None

    def apply(self, storage: Storage) -> None:
        """Let it happen."""
        storage.drop_oldest(min(max(0, self.begin - storage.begin), storage.length))
        if self.hidden is not None:
            storage.mask.hide(self.hidden[self.hidden >= storage.begin], storage.count)


def drop_oldest(storage: Storage, count: Any, held: Held | None) -> None:
    """Let the oldest `count` transitions die, or all if there are fewer.

    Args:
        storage: whose transitions.
        count: how many.
        held: where to note it for later, if a group of updates is running.

    Raises:
        ValueError: if `count` is not an int of at least 0.
    """
    wish = held or Held()
    wish.begin = max(wish.begin, storage.begin + min(check_int("n", count, least=0), storage.length))
    if held is None:
        wish.apply(storage)


def keep(storage: Storage, indices: Any, held: Held | None) -> None:
    """Hide every live row but these from the samplers; see `drop_oldest` for `held`.

    Raises:
        ValueError: if `indices` are not rows of live transitions.
    """
    rows = np.asarray(indices)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise ValueError(f"indices must be ints [n], got {rows.dtype}{list(rows.shape)}")
    rows = rows.astype(np.int64)
    live = (rows >= 0) & (rows < storage.capacity)
    live[live] = storage.generation(rows[live]) < storage.count
    if not live.all():
        raise ValueError(f"indices must be rows of transitions that the memory holds, got {rows[~live][0]}")
    hidden = np.ones(storage.length, np.bool_)
    hidden[storage.generation(rows) - storage.begin] = False
    wish = held or Held()
    wish.hidden = storage.begin + np.flatnonzero(hidden)
    if held is None:
        wish.apply(storage)


def effective_sample_size(sampler: Sampler, storage: Storage, alpha: bool, by_lane: bool) -> Any:
    """Return 1 / sum of p^2 over the rows that may be drawn, 0 if there are none; see `Replay`."""
    chances = sampler.probabilities(alpha=alpha)
    if not by_lane:
        return _kish(chances)
    lanes = storage.lane[storage.eligible_rows()]
    return {int(lane): _kish(chances[lanes == lane]) for lane in np.unique(lanes)}


def _kish(chances: Array) -> float:
    """Return (sum of p)^2 / sum of p^2, which is their number if they are all the same, to the last bit."""
    if not len(chances) or (chances == chances[0]).all():
        return float(len(chances))
    return float(chances.sum() ** 2 / np.square(chances).sum())

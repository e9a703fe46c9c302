"""Which part of a memory is sampled and how much it is worth: trims, and the effective sample size (Kish, 1965)."""

from __future__ import annotations

from typing import Any

import numpy as np

from noterl.replay.columns import Array
from noterl.replay.samplers import Sampler
from noterl.replay.storage import Storage
from noterl.utils.checks import check_int


class DeferredTrim:
    """The trims of a memory that wait until a group of updates has been gathered."""

    def __init__(self) -> None:
        self.begin = 0  # the oldest insertion number that stays
        self.masked: Array | None = None

    def apply(self, storage: Storage) -> None:
        """Evict and mask."""
        storage.drop_oldest(min(max(0, self.begin - storage.begin), storage.length))
        if self.masked is not None:
            storage.mask.hide(self.masked[self.masked >= storage.begin], storage.count)


def drop_oldest(storage: Storage, n: Any, deferred: DeferredTrim | None) -> None:
    """Evict the oldest `n` transitions, or all if there are fewer.

    Args:
        storage: of the transitions.
        n: how many.
        deferred: records the trim if a group of updates is being gathered.

    Raises:
        ValueError: if `n` is not an int of at least 0.
    """
    trim = deferred or DeferredTrim()
    trim.begin = max(trim.begin, storage.begin + min(check_int("n", n, least=0), storage.length))
    if deferred is None:
        trim.apply(storage)


def keep(storage: Storage, indices: Any, deferred: DeferredTrim | None) -> None:
    """Mask every stored transition but these; see `drop_oldest` for `deferred`.

    Raises:
        ValueError: if `indices` are not those of stored transitions.
    """
    kept = np.asarray(indices)
    if kept.ndim != 1 or (kept.size and kept.dtype.kind not in "iu"):
        raise ValueError(f"indices must be ints [n], got {kept.dtype}{list(kept.shape)}")
    kept = kept.astype(np.int64)
    stored = (kept >= 0) & (kept < storage.capacity)
    stored[stored] = storage.insertion_numbers(kept[stored]) < storage.count
    if not stored.all():
        raise ValueError(f"indices must be those of stored transitions, got {kept[~stored][0]}")
    masked = np.ones(storage.length, np.bool_)
    masked[storage.insertion_numbers(kept) - storage.begin] = False
    trim = deferred or DeferredTrim()
    trim.masked = storage.begin + np.flatnonzero(masked)
    if deferred is None:
        trim.apply(storage)


def effective_sample_size(sampler: Sampler, storage: Storage, alpha: bool, by_lane: bool) -> Any:
    """Return 1 / sum of p^2 over the transitions that are not masked, 0 if there are none; see `Replay`."""
    probabilities = sampler.probabilities(alpha=alpha)
    if not by_lane:
        return _kish(probabilities)
    lanes = storage.lane[storage.unmasked_indices()]
    return {int(lane): _kish(probabilities[lanes == lane]) for lane in np.unique(lanes)}


def _kish(probabilities: Array) -> float:
    """Return (sum of p)^2 / sum of p^2; for equal probabilities this is exactly their number."""
    if not len(probabilities) or (probabilities == probabilities[0]).all():
        return float(len(probabilities))
    return float(probabilities.sum() ** 2 / np.square(probabilities).sum())

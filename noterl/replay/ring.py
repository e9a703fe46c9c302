"""A ring buffer of numbered entries: which of them are stored, and which of these are not masked.

An entry's insertion number counts the entries inserted before it; its index is `insertion_number % capacity`. The
insertion numbers `begin <= number < count` are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from noterl.replay.columns import Array

Self = TypeVar("Self", bound="Ring")


class Ring:
    """The numbering of a ring buffer.

    Args:
        capacity: how many entries are stored.

    Attributes:
        begin: the oldest stored insertion number.
        count: entries ever inserted; the newest insertion number is one less.
        epoch: increases when the contents are cleared or replaced; insertion numbers of another epoch are meaningless.
        mask_version: increases when `mask` is called.
        frames: how many frames an observation stacks; 1 without stacks.
        pending_load: adds entries that were collected elsewhere, and is called before the next use; see
            `Replay.load_later`.
    """

    frames = 1

    def __init__(self, capacity: int) -> None:
        self.capacity: int = capacity
        self.pending_load: Callable[[], None] | None = None
        self.begin: int = 0
        self.count: int = 0
        self.epoch: int = 0
        # Excluded by `Replay.keep`. New entries do not update the mask: later insertion numbers are not in `_masked`.
        self.mask_version: int = 0
        self._masked = np.empty(0, np.int64)  # insertion numbers, ascending
        self._unmasked: Array | None = None  # by index; None if nothing is masked
        self._unmasked_to = 0  # the first insertion number that `_unmasked` does not cover

    def loaded(self: Self) -> Self:
        """Return this buffer, after it has received the entries of `pending_load`."""
        load = self.pending_load
        if load is not None:
            self.pending_load = None
            try:
                load()
            except BaseException:
                self.pending_load = load
                raise
        return self

    @property
    def length(self) -> int:
        """How many entries are stored."""
        return self.count - self.begin

    def mask(self, numbers: Array) -> None:
        """Mask these insertion numbers (ascending) and no others."""
        self._unmasked, self._unmasked_to, self.mask_version = None, self.count, self.mask_version + 1
        self._masked = numbers
        if len(numbers):
            self._unmasked = np.ones(self.capacity, np.bool_)
            self._unmasked[numbers % self.capacity] = False

    @property
    def masked(self) -> Array:
        """The masked insertion numbers that are stored, ascending."""
        return self._masked[self._masked.searchsorted(self.begin) :]

    @property
    def unmasked(self) -> Array | None:
        """By index, whether a stored entry is not masked; None if no entry is masked."""
        if self._unmasked is None or self._masked[-1] < self.begin:
            self._unmasked, self._masked = None, self._masked[:0]
        elif self._unmasked_to < self.count:
            first = max(self._unmasked_to, self.count - self.capacity)
            self._unmasked[np.arange(first, self.count) % self.capacity] = True
            self._unmasked_to = self.count
        return self._unmasked

    @property
    def num_unmasked(self) -> int:
        """How many stored entries are not masked."""
        length = self.count - self.begin
        return length if self._unmasked is None else length - len(self.masked)

    def insertion_numbers(self, indices: Array) -> Array:
        """Return the insertion numbers of stored entries."""
        return self.begin + (indices - self.begin) % self.capacity

    def sample_stored(self, count: int, generator: np.random.Generator) -> Array:
        """Return `count` indices of stored entries, uniform and independent.

        They are sampled by age, so the ages do not depend on where in the ring the oldest entry is.
        """
        first = self.begin % self.capacity
        last = first + self.count - self.begin
        indices = generator.integers(first, last, count)
        if last > self.capacity:
            np.subtract(indices, self.capacity, out=indices, where=indices >= self.capacity)
        return indices

    def slices(self, start: int, stop: int) -> list[slice]:
        """Return the slices of the ring for the insertion numbers from `start` up to `stop`, at most `capacity`."""
        first = start % self.capacity
        last = first + stop - start
        parts = [slice(first, min(last, self.capacity)), slice(0, max(0, last - self.capacity))]
        return [part for part in parts if part.start < part.stop]

    def stored_indices(self) -> Array:
        """Return the indices `[n]` of the stored entries, the oldest first."""
        first = self.begin % self.capacity
        indices = np.arange(first, first + self.length)
        indices[self.capacity - first :] -= self.capacity
        return indices

    def unmasked_indices(self) -> Array:
        """Return the indices `[n]` of the entries that are not masked, the oldest first."""
        indices, unmasked = self.stored_indices(), self.unmasked
        return indices if unmasked is None else indices[unmasked[indices]]

    def sampleable(self, indices: Array) -> Array | None:
        """Return which of the stored entries `[n]` have complete observations (bool); None if all have."""
        return None

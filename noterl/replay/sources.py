"""`Sources`: which worker each stored transition comes from, and how many transitions each worker has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from noterl.replay.columns import Array
from noterl.replay.storage import Storage

# Workers return whole rounds. So their shares differ by less than two rounds if no transition is missing: one in
# progress at the newest transition, and one at the oldest.
ROUNDS = 2
# The largest chance of a transition, relative to uniform sampling. Without it, the first transition of a new
# environment would fill the environment's whole share of each batch.
LARGEST = 4.0
# Up to this many changes are counted one by one: 4 of them take 2 µs, and calls of NumPy 14 µs.
FEW = 32


class Sources:
    """The source of a transition is the worker that steps the environment.

    With N environments, worker p steps the next `lanes[p]` environments. Transitions of a lane k >= N, from a
    `fit` with more environments, count as transitions of lane `k % N`. Masked transitions have no source.

    `Storage.add` does not update the numbers. Each use updates the numbers from the insertion numbers. The
    numbers follow from the stored transitions, so there is no state to save.

    Args:
        storage: holds the transitions.
        lanes: number of environments of each source.
    """

    def __init__(self, storage: Storage, lanes: Sequence[int]) -> None:
        self._storage = storage
        self.lanes: tuple[int, ...] = tuple(lanes)
        self._environments = sum(self.lanes)
        self._none = len(self.lanes)
        self._source_of = np.repeat(np.arange(self._none, dtype=np.int16), self.lanes)  # by lane
        self._sources_of_lanes: list[int] = self._source_of.tolist()
        self._stored = np.empty(0, np.int16)  # by index, the source; `_none` if it is masked
        self._counts = [0] * (self._none + 1)
        self._begin = self._end = 0  # the insertion numbers that `_counts` covers
        self._version = -1, -1  # epoch and version of the mask

    def of(self, indices: Array) -> Array:
        """Return the source of each stored transition `[n]`."""
        return self._source_of[self._storage.lane[indices] % self._environments]

    def split(self) -> list[Array]:
        """Return the indices of each source's transitions that are not masked, the oldest first."""
        indices = self._storage.unmasked_indices()
        source = self.of(indices)
        return [indices[source == number] for number in range(self._none)]

    def counts(self) -> list[int]:
        """Return how many transitions each source has that are not masked."""
        storage = self._storage
        begin = storage.begin
        end = storage.count
        if (storage.epoch, storage.mask_version) != self._version:
            self._count_all()
        elif begin - self._begin + end - self._end <= FEW:
            self._count_one_by_one(begin, end)
        else:
            for part in storage.slices(self._begin, min(begin, self._end)):
                self._change(self._stored[part], -1)
            for part in storage.slices(max(begin, self._end), end):
                self._stored[part] = self._source_of[storage.lane[part] % self._environments]
                self._change(self._stored[part], 1)
        self._begin = begin
        self._end = end
        return self._counts[:-1]

    def chances(self) -> Array | None:
        """Return the chance of a transition of each source relative to uniform sampling, `[P]`; None if all are equal.

        The transitions of worker p, which has n_p of the n transitions and N_p of the N environments, get the chance
        (N_p / N) / (n_p / n), at most `LARGEST`, divided by the mean over all transitions. If each n_p is within
        `ROUNDS` rounds of n N_p / N, all are equal.
        """
        counts = self.counts()
        environments = self._environments
        total = sum(counts)
        # In integers: n_p N and n N_p are compared, so rounding cannot change the result.
        for number, num_lanes in zip(counts, self.lanes, strict=True):
            if abs(number * environments - total * num_lanes) > ROUNDS * environments * num_lanes:
                break
        else:
            return None
        numbers = np.array(counts)
        shares = np.array(self.lanes) / environments
        chances: Array = np.minimum(shares * total / np.maximum(numbers, 1), LARGEST)
        return chances * (total / (chances * numbers).sum())

    def _count_all(self) -> None:
        storage = self._storage
        self._version = storage.epoch, storage.mask_version
        self._lane_cells: Any = memoryview(storage.lane)  # type: ignore[arg-type]
        self._stored = np.full(storage.capacity, self._none, np.int16)
        self._stored_cells: Any = memoryview(self._stored)  # type: ignore[arg-type]
        indices = storage.unmasked_indices()
        self._stored[indices] = sources = self.of(indices)
        self._counts = [0] * (self._none + 1)
        self._change(sources, 1)

    def _count_one_by_one(self, begin: int, end: int) -> None:
        counts = self._counts
        stored = self._stored_cells
        capacity = self._storage.capacity
        for number in range(self._begin, min(begin, self._end)):
            counts[stored[number % capacity]] -= 1
        for number in range(max(begin, self._end), end):
            index = number % capacity
            source = self._sources_of_lanes[self._lane_cells[index] % self._environments]
            stored[index] = source
            counts[source] += 1

    def _change(self, sources: Array, by: int) -> None:
        for source, count in enumerate(np.bincount(sources, minlength=self._none + 1).tolist()):
            self._counts[source] += by * count

"""`Sources`: which worker each stored transition comes from, for callbacks such as `Window`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from noterl.replay.columns import Array
from noterl.replay.storage import Storage


class Sources:
    """The source of a transition is the worker that steps the environment.

    With N environments, worker p steps the next `lanes[p]` environments. Transitions of a lane k >= N, from a
    `fit` with more environments, count as transitions of lane `k % N`. Masked transitions have no source.

    The sources follow from the stored transitions, so there is no state to save.

    Args:
        storage: holds the transitions.
        lanes: number of environments of each source.
    """

    def __init__(self, storage: Storage, lanes: Sequence[int]) -> None:
        self._storage = storage
        self.lanes: tuple[int, ...] = tuple(lanes)
        self._source_of = np.repeat(np.arange(len(self.lanes), dtype=np.int16), self.lanes)  # by lane

    def of(self, indices: Array) -> Array:
        """Return the source of each stored transition `[n]`."""
        return self._source_of[self._storage.lane[indices] % len(self._source_of)]

    def split(self) -> list[Array]:
        """Return the indices of each source's transitions that are not masked, the oldest first."""
        indices = self._storage.unmasked_indices()
        source = self.of(indices)
        return [indices[source == number] for number in range(len(self.lanes))]

    def counts(self) -> list[int]:
        """Return how many transitions each source has that are not masked."""
        return [len(indices) for indices in self.split()]

"""Which transitions are drawn from a replay memory.

Owns: the contract of a sampler, and uniform sampling. A sampler is bound to one storage and never hears of an added
row: what it needs to know of new ones it finds out when it is next asked, from the storage's generations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from noterl.registry import Configurable, register
from noterl.replay.columns import Array
from noterl.replay.storage import Storage


class Sampler(Configurable):
    """Chooses rows; subclass it for a rule of your own.

    Attributes:
        feedback_fields: what it wants to hear of the rows drawn, of what the loss feeds back.
        storage: the rows it chooses from, once it is bound.
    """

    feedback_fields: tuple[str, ...] = ()
    storage: Storage | None = None

    def bind(self, storage: Storage) -> None:
        """Belong to a storage, from now on.

        Raises:
            ValueError: if it belongs to another one.
        """
        if self.storage is not None and self.storage is not storage:
            raise ValueError(f"sampler must belong to one memory alone, got the {type(self).__name__} of another")
        self.storage = storage

    def draw(self, updates: int, batch_size: int, generator: np.random.Generator) -> Array:
        """Return rows `[K, B]` (int64) of live transitions that `storage.eligible` allows; there is at least one."""
        raise NotImplementedError

    def draw_pass(self, batch_size: int, generator: np.random.Generator) -> Array:
        """Return rows `[K, B]` of one pass: each eligible transition once, the last batch filled up with others.

        Here the order is uniformly random whatever the sampler is, since a pass leaves it nothing to choose.
        """
        storage = self._bound()
        rows = generator.permutation(storage.eligible_rows())
        missing = -len(rows) % batch_size
        if missing:
            rows = np.concatenate([rows, np.resize(generator.permutation(storage.eligible_rows()), missing)])
        return rows.reshape(-1, batch_size)

    def weights(self, rows: Array) -> Array:
        """Return what a loss must weigh rows `[K, B]` with to mend the sampler's bias, float32, at most 1 per batch."""
        return np.ones(rows.shape, np.float32)

    def probabilities(self, *, alpha: bool = True) -> Array:
        """Return the chance `[n]` (float64, sum 1) of each of `storage.eligible_rows()`, the oldest first.

        Args:
            alpha: False for what it would be without the exponent that prioritized sampling puts on its scores.
        """
        count = self._bound().drawable
        return np.full(count, 1 / count) if count else np.empty(0)

    def feedback(self, rows: Array, values: Mapping[str, Array]) -> None:
        """Take `feedback_fields` of rows `[n]`: each row once, live, and not overwritten since it was drawn.

        Args:
            rows: the rows.
            values: `[n]` each, or `[n, ...]` where relabelling gives a batch further axes.
        """

    def clear(self) -> None:
        """Forget everything about the rows: the storage was emptied."""

    def get_state(self) -> dict[str, Any]:
        """Return what is known of the live rows, in order of age (the oldest first)."""
        return {}

    def check(self) -> None:
        """Assert that what is known of the rows hangs together; part of `Replay.check`.

        Raises:
            AssertionError: naming what does not.
        """

    def check_state(self, state: Mapping[str, Any], length: int) -> None:
        """Refuse what `set_state` could not take.

        Args:
            state: what a file claims that `get_state` returned.
            length: live rows of the storage that it belongs to.

        Raises:
            ValueError: naming what is wrong.
        """
        if state:
            raise ValueError(f"the state of a {type(self).__name__} is empty, this one holds {sorted(state)}")

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take what `get_state` returned; the storage holds its rows already."""

    def _bound(self) -> Storage:
        if self.storage is None:
            raise RuntimeError(f"this {type(self).__name__} belongs to no memory yet: call Replay.build first")
        return self.storage


@register
class Uniform(Sampler):
    """Every transition has the same chance, each time anew.

    >>> import noterl
    >>> noterl.Replay(1000, sampler=noterl.replay.Uniform()).capacity
    1000
    """

    def draw(self, updates: int, batch_size: int, generator: np.random.Generator) -> Array:
        """Return rows `[K, B]`; with replacement."""
        storage, count = self._bound(), updates * batch_size
        allowed = storage.eligible
        if allowed is None:
            return storage.draw(count, generator).reshape(updates, batch_size)
        if 8 * storage.drawable < storage.length:  # too few to meet them by chance
            rows = storage.eligible_rows()
            return rows[generator.integers(len(rows), size=(updates, batch_size))]
        rows = storage.draw(count, generator)
        wrong = np.flatnonzero(~allowed[rows])
        while wrong.size:
            rows[wrong] = storage.draw(wrong.size, generator)
            wrong = wrong[~allowed[rows[wrong]]]
        return rows.reshape(updates, batch_size)

"""Drawing rows that can be used, and telling the sampler what became of them.

Owns: that rows which relabelling has no use for are drawn again, and that feedback reaches only the transition it is
about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from noterl.replay.columns import Array
from noterl.replay.relabel import Relabel
from noterl.replay.samplers import Sampler
from noterl.replay.storage import Storage

PATIENCE = 8  # times that unusable rows are drawn again, before all that can be used are looked up


class Count:
    """How many live rows may be drawn.

    Args:
        storage: whose rows.
        relabel: what must be able to use them.
    """

    def __init__(self, storage: Storage, relabel: Relabel | None) -> None:
        self._storage, self._relabel = storage, relabel
        self._known, self._begin, self._version = 0, 0, -1

    def __call__(self, enough: int | None = None) -> int:
        """Return the number; counting may stop at `enough`, which then costs next to nothing."""
        storage = self._storage
        if self._relabel is None or not storage.drawable:
            return storage.drawable
        # Since the last count rows may have become usable, and no more were lost than those that died can have spoiled.
        died = storage.begin - self._begin
        least = self._known - self._relabel.spoiled * died if self._version == storage.mask.version else 0
        if enough is not None and least >= enough:
            return least
        usable = self._relabel.usable(storage.eligible_rows())
        self._known = storage.drawable if usable is None else int(usable.sum())
        self._begin, self._version = storage.begin, storage.mask.version
        return self._known


def draw_usable(
    sampler: Sampler, relabel: Relabel | None, updates: int, batch_size: int, generator: np.random.Generator
) -> Array:
    """Return rows `[K, B]` as the sampler draws them, without those that cannot be relabelled."""
    rows = sampler.draw(updates, batch_size, generator)
    if relabel is None:
        return rows
    rows = np.ascontiguousarray(rows)
    flat = rows.reshape(-1)
    usable = relabel.usable(flat)
    if usable is None:
        return rows
    wrong = np.flatnonzero(~usable)
    for _ in range(PATIENCE):
        if not wrong.size:
            return rows
        flat[wrong] = sampler.draw(1, wrong.size, generator).reshape(-1)
        wrong = wrong[~_mask(relabel, flat[wrong])]
    if wrong.size:
        assert sampler.storage is not None
        candidates = sampler.storage.eligible_rows()
        chance = np.where(_mask(relabel, candidates), sampler.probabilities(), 0.0)
        flat[wrong] = generator.choice(candidates, wrong.size, p=chance / chance.sum())
    return rows


def pass_usable(sampler: Sampler, relabel: Relabel | None, batch_size: int, generator: np.random.Generator) -> Array:
    """Return rows `[K, B]`: each that may be drawn once, and as many of them again as fill the last batch."""
    rows = sampler.draw_pass(batch_size, generator)
    if relabel is None or relabel.usable(rows[0]) is None:
        return rows
    assert sampler.storage is not None
    once = rows.reshape(-1)[: sampler.storage.drawable]
    once = once[_mask(relabel, once)]
    missing = -len(once) % batch_size
    again = np.resize(generator.permutation(once), missing)
    return np.concatenate([once, again]).reshape(-1, batch_size)


def _mask(relabel: Relabel, rows: Array) -> Array:
    usable = relabel.usable(rows)
    assert usable is not None
    return usable


class Feedback:
    """What was drawn last from each row, so that feedback is never taken for another transition's.

    Args:
        storage: whose rows.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._count = np.zeros(storage.capacity, np.int64)  # how many there were when the row was last drawn
        self._position = np.zeros(storage.capacity, np.int64)  # scratch

    def note(self, rows: Array) -> None:
        """Remember that these live rows `[K, B]` were drawn."""
        self._count[rows] = self._storage.count

    def forget(self) -> None:
        """Accept no feedback but for what is drawn from now on."""
        self._count.fill(0)

    def give(self, sampler: Sampler, index: Array, feedback: Mapping[str, Any]) -> None:
        """Hand feedback `[K, B]` to the sampler: each row once, with its last value, if it is still what was drawn.

        Raises:
            ValueError: naming the field that has not a value for each row.
        """
        rows = np.asarray(index).reshape(-1)
        order = np.arange(len(rows))
        self._position[rows] = order  # of equal rows the last one stays
        current = self._storage.generation(rows) < self._count[rows]
        wanted = (current & (self._position[rows] == order)).nonzero()[0]
        depth = np.ndim(index)
        values = {}
        for name in sampler.feedback_fields:
            if name in feedback:
                value = np.asarray(feedback[name])
                if value.shape[:depth] != np.shape(index):
                    drawn, fed = np.shape(index)[-1:], value.shape[depth - 1 :]
                    raise ValueError(f"{name} must be [B], a number for each transition: {drawn}, got the shape {fed}")
                values[name] = value.reshape(-1, *value.shape[depth:])[wanted]
        if values and wanted.size:
            sampler.feedback(rows[wanted], values)

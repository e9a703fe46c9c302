"""Drawing rows that can be used, and telling the sampler what became of them.

Owns: that rows which relabelling has no use for are drawn again, and that feedback reaches only the transition it is
about.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

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
    """When each batch was drawn, so that feedback is never taken for another transition's.

    A batch is known by the array that its `index` is, or is a part of, for as long as somebody holds it. Of a copy, the
    batch that is still held and has the same rows counts, or else the last draw of each row.

    Args:
        storage: whose rows.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._draws: dict[int, _Draw] = {}  # by the id of the array
        self._last = np.zeros(storage.capacity, np.int64)  # as `_Draw.added`; 0 for rows that were never drawn
        self._position = np.zeros(storage.capacity, np.int64)  # scratch

    def note(self, rows: Array) -> None:
        """Remember that these live rows `[K, B]` were drawn."""
        whole, draws, count = _owner(rows), self._draws, self._storage.count + 1
        key = id(whole)
        draws[key] = _Draw(weakref.ref(whole, lambda _: draws.pop(key, None)), rows.shape, count)
        self._last[rows] = count

    def forget(self) -> None:
        """Accept no feedback but for what is drawn from now on."""
        for key, draw in list(self._draws.items()):
            self._draws[key] = draw._replace(added=1)
        np.minimum(self._last, 1, out=self._last)

    def give(self, sampler: Sampler, index: Array, feedback: Mapping[str, Any]) -> None:
        """Hand feedback `[K, B]` to the sampler: each row once, with its last value, if it is still what was drawn.

        Raises:
            ValueError: if a row was never drawn, or naming the field that has not a value for each row.
        """
        index = np.asarray(index)
        rows = index.reshape(-1)
        drawn = self._drawn(index, rows)
        order = np.arange(len(rows))
        self._position[rows] = order  # of equal rows the last one stays
        current = self._storage.generation(rows) < drawn - 1
        wanted = (current & (self._position[rows] == order)).nonzero()[0]
        values = {}
        for name in sampler.feedback_fields:
            if name in feedback:
                value = np.asarray(feedback[name])
                if value.shape[: index.ndim] != index.shape:
                    rows_of, fed = index.shape[-1:], value.shape[index.ndim - 1 :]
                    raise ValueError(
                        f"{name} must be [B], a number for each transition: {rows_of}, got the shape {fed}"
                    )
                values[name] = value.reshape(-1, *value.shape[index.ndim :])[wanted]
        if values and wanted.size:
            sampler.feedback(rows[wanted], values)

    def _drawn(self, index: Array, rows: Array) -> Any:
        """Return the `_Draw.added` of all, or of each row."""
        known = self._draws.get(id(_owner(index)))
        if known is not None:
            return known.added
        for draw in reversed(list(self._draws.values())):
            whole = draw.array()
            if whole is not None and draw.shape == index.shape and np.array_equal(whole.reshape(-1), rows):
                return draw.added
        valid = rows.dtype.kind in "iu" and ((rows >= 0) & (rows < self._storage.capacity)).all()
        last = self._last[rows] if valid else None
        if last is None or not last.all():
            raise ValueError(
                "index must be that of a batch that sample, draw or draw_pass of this memory returned, got rows that "
                f"were never drawn: {index!r}"
            )
        return last


class _Draw(NamedTuple):
    """The array that holds the rows of a draw, their shape, and one more than had been added by then."""

    array: weakref.ref[Array]
    shape: tuple[int, ...]
    added: int


def _owner(array: Array) -> Any:
    """Return the array whose memory this one looks at."""
    return array.base if isinstance(array.base, np.ndarray) else array

"""Samplers, which choose the transitions that are sampled from a replay memory.

A sampler is bound to one storage. `add` does not notify it. When the sampler is used, new transitions are found by
insertion number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from noterl.registry import register
from noterl.replay.columns import Array
from noterl.replay.relabel import Relabel
from noterl.replay.storage import Ring, StorageUser


@dataclass(slots=True, eq=False)
class Sample:
    """The indices of a group of updates, with the random choices for relabeling.

    `sample[updates]` takes some of the updates, by a slice or by positions.

    Args:
        indices: int64 `[K, B]`.
        weight: of each index in the loss, float32 `[K, B]`.
        choices: arrays `[K, B, ...]` by name.
        next_insertion: the insertion number that the next transition had when this was sampled.
        epoch: `Storage.epoch` when this was sampled.
        gamma: the discount of one step, if already fixed.
    """

    indices: Array
    weight: Array
    choices: Mapping[str, Array] = field(default_factory=dict)
    next_insertion: int = 0
    epoch: int = -1
    gamma: float | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, updates: slice | Array) -> Sample:
        choices = {name: array[updates] for name, array in self.choices.items()}
        return replace(self, indices=self.indices[updates], weight=self.weight[updates], choices=choices)

    def joined(self, other: Sample) -> Sample:
        """Return these updates followed by the updates of another sample, made without an `add` in between."""
        choices = {name: np.concatenate([array, other.choices[name]]) for name, array in self.choices.items()}
        indices = np.concatenate([self.indices, other.indices])
        weight = np.concatenate([self.weight, other.weight])
        return replace(self, indices=indices, weight=weight, choices=choices)


class Sampler(StorageUser[Ring]):
    """Chooses indices; subclass `Sampler` for a rule of your own.

    Attributes:
        feedback_fields: names of the fields of the loss's feedback that the sampler uses.
        settable: names of the attributes that can be changed during training and that the sampler's state holds.
        storage: holds the transitions, once the memory is built.
    """

    feedback_fields: tuple[str, ...] = ()
    settable: tuple[str, ...] = ()

    def bind(self, storage: Ring) -> None:
        """Use a storage from now on.

        Raises:
            ValueError: if the sampler is bound to another one.
        """
        self._use(storage, "sampler")

    def sample_indices(self, updates: int, batch_size: int, generator: np.random.Generator) -> Array:
        """Return indices `[K, B]` (int64) of stored transitions that are not masked; there is at least one."""
        raise NotImplementedError

    def weights(self, indices: Array) -> Array:
        """Return the importance weights of indices `[K, B]`: float32, at most 1."""
        return np.ones(indices.shape, np.float32)

    def probabilities(self, *, alpha: bool = True) -> Array:
        """Return the probability `[n]` of each transition that is not masked, the oldest first: float64, sum 1.

        Args:
            alpha: False for the probabilities without the exponent of prioritized sampling.
        """
        count = self.storage.num_unmasked
        return np.full(count, 1 / count) if count else np.empty(0)

    def feedback(self, indices: Array, values: Mapping[str, Array]) -> None:
        """Use the loss's feedback for sampled transitions.

        Args:
            indices: of the transitions, `[n]`, without repetitions; all are still stored.
            values: of `feedback_fields`, `[n]` each, or `[n, ...]` if relabeling adds axes to a batch.
        """

    def clear(self) -> None:
        """Reset the state of all transitions; called after the storage was cleared."""

    def get_state(self) -> dict[str, Any]:
        """Return the sampler's state for the stored transitions, the oldest first."""
        return {}

    def check_state(self, state: Mapping[str, Any], length: int) -> None:
        """Check a state before `set_state`.

        Args:
            state: of `get_state`, perhaps from a file.
            length: the number of transitions in the state of the storage.

        Raises:
            ValueError: if the state is malformed.
        """
        if state:
            raise ValueError(f"state['sampler'] of a {type(self).__name__} must be empty, got {sorted(state)}")

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `get_state`; the storage must be restored first."""


@register
class Uniform(Sampler):
    """Samples all transitions with the same probability, with replacement.

    >>> import noterl
    >>> noterl.Replay(1000, sampler=noterl.replay.Uniform()).capacity
    1000
    """

    def sample_indices(self, updates: int, batch_size: int, generator: np.random.Generator) -> Array:
        """Return indices `[K, B]`."""
        return self._sample(updates * batch_size, generator).reshape(updates, batch_size)

    def _sample(self, count: int, generator: np.random.Generator) -> Array:
        """Return `count` indices of transitions that are not masked, all with the same probability."""
        storage = self.storage
        unmasked = storage.unmasked
        if unmasked is None:
            return storage.sample_stored(count, generator)
        if 8 * storage.num_unmasked < storage.length:  # too few for rejection sampling
            indices = storage.unmasked_indices()
            return indices[generator.integers(len(indices), size=count)]
        indices = storage.sample_stored(count, generator)
        wrong = np.flatnonzero(~unmasked[indices])
        while wrong.size:
            indices[wrong] = storage.sample_stored(wrong.size, generator)
            wrong = wrong[~unmasked[indices[wrong]]]
        return indices


class Selection:
    """Samples and counts the sampleable transitions.

    A transition is sampleable if it is stored, is not masked, has all frames of the stack and can be relabeled.

    Args:
        sampler: of the memory, bound to the storage.
        storage: holds the transitions.
        relabel: of the memory.
    """

    def __init__(self, sampler: Sampler, storage: Ring, relabel: Relabel | None) -> None:
        self._sampler = sampler
        self._storage = storage
        self._relabel = relabel
        self._all = relabel is None and storage.frames == 1
        # An eviction removes a transition, and a frame that up to k - 1 later transitions need for their stacks.
        self._lost_per_eviction = storage.frames - 1 + (1 if relabel is None else relabel.lost_per_eviction)
        self._counted = 0
        self._begin = 0
        self._version = -1

    def count(self, at_most: int | None = None) -> int:
        """Return how many transitions are sampleable, or `at_most` if there are more.

        The result is stored: a lower bound for the next call follows from this count and the evictions since.
        """
        storage = self._storage
        number = storage.num_unmasked
        if number and not self._all:
            # Lower bound: a transition stays sampleable, except for the few that each eviction affects.
            lost = self._lost_per_eviction * (storage.begin - self._begin)
            least = self._counted - lost if self._version == storage.mask_version else 0
            if at_most is not None and least >= at_most:
                return at_most
            number = len(self.sampleable_indices())
            self._counted = number
            self._begin = storage.begin
            self._version = storage.mask_version
        return number if at_most is None else min(number, at_most)

    def sampleable_indices(self) -> Array:
        """Return the indices `[n]` of the sampleable transitions, the oldest first."""
        indices = self._storage.unmasked_indices()
        mask = None if self._all else self.sampleable(indices)
        return indices if mask is None else indices[mask]

    def sampleable(self, indices: Array) -> Array | None:
        """Return which of the unmasked transitions `[n]` are sampleable (bool); None if all are."""
        first = self._storage.sampleable(indices)
        second = None if self._relabel is None else self._relabel.sampleable(indices)
        return first if second is None else second if first is None else first & second

    def sample_indices(self, updates: int, batch_size: int, generator: np.random.Generator) -> Array:
        """Return indices `[K, B]` from the sampler; indices that are not sampleable are sampled again."""
        indices = np.ascontiguousarray(self._sampler.sample_indices(updates, batch_size, generator))
        if self._all:
            return indices
        wrong = self._wrong(indices.reshape(-1))
        if wrong.size:
            candidates = self._storage.unmasked_indices()
            chance = self._sampler.probabilities().copy()
            # Without these candidates, one draw suffices, however many transitions are not sampleable.
            chance[self._wrong(candidates)] = 0.0
            indices.reshape(-1)[wrong] = generator.choice(candidates, wrong.size, p=chance / chance.sum())
        return indices

    def sample_pass(self, batch_size: int, generator: np.random.Generator) -> Array:
        """Return indices `[K, B]` of one pass; see `Replay.sample_pass`."""
        if not isinstance(self._sampler, Uniform):
            return self.sample_indices(-(-self.count() // batch_size), batch_size, generator)
        indices = self.sampleable_indices()
        # The last batch is filled from another random order.
        order = generator.permutation(indices)
        missing = -len(indices) % batch_size
        if missing:
            order = np.concatenate([order, generator.permutation(indices)[:missing]])
        return order.reshape(-1, batch_size)

    def _wrong(self, indices: Array) -> Array:
        """Return the positions of the indices `[n]` that are not sampleable."""
        mask = self.sampleable(indices)
        return np.empty(0, np.int64) if mask is None else np.flatnonzero(~mask)

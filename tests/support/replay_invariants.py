"""The invariants of a replay memory: its storage, its episodes and its sum tree."""

from __future__ import annotations

import numpy as np

from noterl.replay import Prioritized, Replay
from noterl.replay.state import broken_link, broken_mask, distances
from noterl.replay.storage import Storage
from noterl.replay.sum_tree import SumTree


def check_replay(replay: Replay) -> None:
    """Check the invariants of a memory.

    Raises:
        AssertionError: if one is broken; the message names it.
    """
    if replay._storage is not None:
        _check_storage(replay._storage)
        if isinstance(replay.sampler, Prioritized):
            _check_prioritized(replay.sampler)


def next_indices(storage: Storage, indices: np.ndarray) -> np.ndarray:
    """Return the index of the next transition in each episode, -1 if there is none (yet)."""
    return np.maximum(storage.successor.take(indices), -1)


def equal_trees(first: SumTree, second: SumTree) -> bool:
    """Return whether values and sums are bitwise equal."""
    return all(map(np.array_equal, first._levels, second._levels))


def _check_storage(storage: Storage) -> None:
    """Check the invariants of a storage.

    Raises:
        AssertionError: if one is broken; the message names it.
    """
    begin, count, length = storage.begin, storage.count, storage.length
    assert 0 <= begin <= count, f"insertion numbers run from begin {begin} to count {count}"
    assert length <= storage.capacity, f"{length} stored transitions in a memory of {storage.capacity}"
    indices = storage.stored_indices()
    successor = storage.successor
    assert (successor < storage.capacity).all(), "a successor is beyond the last index"
    used = -1 - successor[successor < 0]
    slots = np.concatenate([used, np.array(storage.free_slots, np.int64)])
    assert len(np.unique(slots)) == len(slots), "a slot is used twice, or used and free"
    assert ((slots >= 0) & (slots < storage.num_slots)).all(), "a slot was never allocated"
    assert storage.num_slots <= len(storage.final_observations), "more slots are allocated than exist"
    lanes = np.array(list(storage.newest_index), np.int64)
    newest = np.array(list(storage.newest_index.values()), np.int64)
    ended = storage.terminated[indices] | storage.truncated[indices]
    distance = distances(storage, successor[indices])
    fault = broken_link(distance, storage.lane[indices], ended, lanes, (newest - begin) % storage.capacity)
    fault = fault or broken_mask(storage.masked - begin, length)
    assert fault is None, fault
    unmasked = storage.unmasked
    masked = 0 if unmasked is None else length - int(unmasked[indices].sum())
    assert masked == length - storage.num_unmasked, "the mask by index differs from that by insertion number"
    if storage._episodes is None:
        return
    following = next_indices(storage, indices)
    last = following < 0
    assert (storage.episodes.before(following[~last]) > 0).all(), "an episode starts after a previous step"
    previous = storage.episodes.shifted(following[~last], -1)
    assert (previous == indices[~last]).all(), "an episode loses its previous step"
    assert ((storage.episodes.after(indices) == 0) == last).all(), "an episode does not end with its links"


def _check_prioritized(sampler: Prioritized) -> None:
    """Check that the tree holds exactly the priorities of the transitions that are not masked, and their sums."""
    tree, indices = sampler._synchronized(), sampler.storage.unmasked_indices()
    expected = SumTree(sampler.storage.capacity)
    expected.set(indices, sampler._priorities(sampler._scores.take(indices)))
    assert np.array_equal(tree.values, expected.values), "a priority differs from that of its score"
    assert equal_trees(tree, expected), "a sum of priorities differs from that of its parts"
    largest = np.float32(max(sampler._largest or 0.0, sampler._initial))
    assert (sampler._scores[indices] <= largest).all(), "a score is above the largest so far"

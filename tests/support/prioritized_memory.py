"""Small memories with prioritized sampling, for tests whose scores are easy to compute."""

import numpy as np
from gymnasium import spaces

from noterl.replay import Prioritized, Replay, Sample
from tests.support.replay_model import store


def built(capacity, sampler):
    replay = Replay(capacity, sampler=sampler)
    replay.build(spaces.Box(-np.inf, np.inf, (3,)), spaces.Discrete(5))
    return replay


def filled(capacity, count, sampler=None):
    replay = built(capacity, sampler or Prioritized())
    for step in range(count):
        store(replay, step)
    return replay


def sample_of(replay, indices):
    """Return a sample of these indices `[K, B]`, as if the sampler had chosen them now."""
    indices, storage = np.asarray(indices, np.int64), replay._storage
    weight = np.ones(indices.shape, np.float32)
    return Sample(indices, weight, next_insertion=storage.count, epoch=storage.epoch)


def feed_back(replay, errors):
    """Feed back an error for each index: a dict, or a list for the indices 0, 1, ..."""
    indices = list(errors) if isinstance(errors, dict) else range(len(errors))
    values = errors.values() if isinstance(errors, dict) else errors
    replay.feedback(sample_of(replay, [list(indices)]), {"td_error": np.array([list(values)], np.float32)})


def sample_indices(replay, updates, batch_size, seed=0):
    return replay.sample(updates, batch_size, generator=np.random.default_rng(seed)).indices

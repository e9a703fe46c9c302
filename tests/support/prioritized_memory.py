"""Prioritized memories whose scores can be told at sight, for the tests of prioritized sampling."""

import numpy as np
from gymnasium import spaces

from noterl.replay import Prioritized, Replay
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


def give(replay, errors):
    """Feed back an error for each row: a dict, or a list for rows 0, 1, ..."""
    rows = list(errors) if isinstance(errors, dict) else range(len(errors))
    values = errors.values() if isinstance(errors, dict) else errors
    index = np.array([list(rows)])
    replay._feedback.note(index)
    replay.feedback(index, {"td_error": np.array([list(values)], np.float32)})


def draw(replay, updates, batch_size, seed=0):
    return replay.draw(updates, batch_size, generator=np.random.default_rng(seed)).rows

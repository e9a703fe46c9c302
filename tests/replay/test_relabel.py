"""Triplets: probabilities, counting, feedback, errors; `test_compositions.py` has their batches."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from noterl.replay import Hindsight, Prioritized, Replay, Triplets
from tests.support.goal_model import GAMMA, Goals

pytestmark = pytest.mark.backend_free


def played(*lengths: int, **keywords: Any) -> Goals:
    goals = Goals(64, relabel=Triplets, **keywords)
    for length in lengths:
        for step in range(length):
            goals.add(0, "truncated" if step == length - 1 else None)
    return goals


def test_any_three_of_an_episode_have_the_same_probability() -> None:
    goals = played(5)
    generator = np.random.default_rng(1)
    choices = [goals.replay.sample(8, 5, generator=generator).choices["triplet"].reshape(-1, 3) for _ in range(500)]
    triplets, counts = np.unique(np.concatenate(choices), axis=0, return_counts=True)
    assert triplets.tolist() == [list(each) for each in itertools.combinations(range(5), 3)]
    assert abs(counts / 20_000 - 0.1).max() < 0.01


def test_short_episodes_are_not_sampled() -> None:
    goals = played(2, 3, 1, 2)
    assert goals.replay.num_sampleable() == 3
    sample = goals.replay.sample_pass(2, generator=np.random.default_rng(0))
    assert sorted(np.unique(sample.indices)) == [2, 3, 4] and sample.indices.shape == (2, 2)
    assert (sample.choices["triplet"] == [2, 3, 4]).all()


def test_eviction_of_one_transition_makes_an_episode_of_three_unsampleable() -> None:
    goals = Goals(6, relabel=Triplets)
    for step in range(6):
        goals.add(0, "truncated" if step % 3 == 2 else None)
    assert goals.replay.num_sampleable(4) == 4
    goals.add(0, None)
    assert goals.replay.num_sampleable(4) == 3
    with pytest.raises(ValueError, match=r"batch_size must be .* 3, got 4"):
        goals.replay.sample(1, 4, generator=np.random.default_rng(0))


def test_feedback_belongs_to_the_sampled_transition() -> None:
    goals = played(4, sampler=lambda: Prioritized(alpha=1.0, initial_td=1.0))
    sample = goals.replay.sample(1, 4, generator=np.random.default_rng(0))
    batch = goals.replay.gather(sample, gamma=GAMMA)
    goals.replay.feedback(sample, {"td_error": np.arange(4.0)[None] + 1})
    expected = np.ones(4)
    expected[batch.index[0]] = np.arange(4) + 1.0
    chances = goals.replay.sampler.probabilities()
    np.testing.assert_allclose(chances / chances.sum(), expected / expected.sum(), rtol=1e-4)


def test_triplets_raise_for_n_step() -> None:
    with pytest.raises(ValueError, match="n_step must"):
        Replay(10, relabel=Triplets(), n_step=3)
    assert Replay(10, relabel=Hindsight(), n_step=3).n_step == 3


def test_use_before_build_raises() -> None:
    with pytest.raises(RuntimeError, match="has no memory yet"):
        Triplets().sampleable(np.arange(2))

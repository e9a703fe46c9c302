"""Triplets: every row against a slow model, after any history; chances, composition, errors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noterl.replay import Hindsight, Prioritized, Replay, Triplets
from tests.support.goal_model import GAMMA, Goals, Stored
from tests.support.replay_model import sample_batch

pytestmark = pytest.mark.backend_free

lanes = st.integers(0, 2)
operations = st.lists(
    st.one_of(
        *[st.tuples(st.just("add"), lanes, st.sampled_from([None, None, None, None, "terminated", "truncated"]))] * 8,
        st.tuples(st.just("interrupt"), lanes),
        st.tuples(st.just("keep"), st.integers(1, 3)),
        st.tuples(st.just("restore")),
    ),
    min_size=1,
    max_size=40,
)


def trajectory(goals: Goals, stored: Stored) -> list[Stored]:
    return [each for each in goals.stored if each.episode == stored.episode]


def compare(goals: Goals) -> None:
    usable = {each.row: each for each in goals.drawable() if len(trajectory(goals, each)) >= 3}
    assert goals.replay.num_sampleable() == len(usable)
    if not usable:
        with pytest.raises(ValueError, match=r"batch_size must be .* 0, got 1"):
            goals.replay.sample(1, 1, generator=np.random.default_rng(0))
        return
    batch = sample_batch(goals.replay, 2, len(usable), gamma=GAMMA)
    assert batch.weight.shape == batch.index.shape == (2, len(usable))
    for place in np.ndindex(2, len(usable)):
        drawn = usable[int(batch.index[place])]
        there = {each.number: each for each in trajectory(goals, drawn)}
        following = {each.following: each for each in there.values()}
        first, middle = (there[int(number)] for number in batch.observation["observation"][place][:, 0])
        last = following[int(batch.next_observation["observation"][place][1, 0])]
        assert batch.next_observation["observation"][place][0, 0] == middle.number
        assert first.number < middle.number < last.number and drawn in (first, middle, last)
        assert batch.observation["achieved_goal"][place][:, 0].tolist() == [first.number + 1000, middle.number + 1000]
        assert batch.action[place].tolist() == [first.number % 4, middle.number % 4]
        assert batch.reward[place].tolist() == [first.reward, middle.reward]
        assert batch.discount[place].tolist() == [GAMMA, GAMMA]


@pytest.mark.parametrize("sampler", [None, Prioritized])
@settings(max_examples=100, deadline=None)
@given(capacity=st.integers(1, 12), operations=operations)
def test_after_any_history_every_row_is_what_a_slow_model_says(sampler: Any, capacity: int, operations: Any) -> None:
    goals = Goals(capacity, sampler=sampler, relabel=Triplets)
    for operation, *arguments in operations:
        getattr(goals, operation)(*arguments)
        compare(goals)


def played(*lengths: int, **keywords: Any) -> Goals:
    goals = Goals(64, relabel=Triplets, **keywords)
    for length in lengths:
        for step in range(length):
            goals.add(0, "truncated" if step == length - 1 else None)
    return goals


def test_any_three_of_a_trajectory_have_the_same_chance() -> None:
    goals = played(5)
    drawn = goals.replay.sample(1, 5, generator=np.random.default_rng(0))
    generator = np.random.default_rng(1)
    drawn = [goals.replay.sample(8, 5, generator=generator).choices["triplet"].reshape(-1, 3) for _ in range(500)]
    triplets, counts = np.unique(np.concatenate(drawn), axis=0, return_counts=True)
    assert triplets.tolist() == [list(each) for each in itertools.combinations(range(5), 3)]
    assert abs(counts / 20_000 - 0.1).max() < 0.01


def test_short_trajectories_are_skipped() -> None:
    goals = played(2, 3, 1, 2)
    assert goals.replay.num_sampleable() == 3
    drawn = goals.replay.sample_pass(2, generator=np.random.default_rng(0))
    assert sorted(np.unique(drawn.indices)) == [2, 3, 4] and drawn.indices.shape == (2, 2)
    assert (drawn.choices["triplet"] == [2, 3, 4]).all()


def test_one_transition_that_is_overwritten_spoils_all_three() -> None:
    goals = Goals(6, relabel=Triplets)
    for step in range(6):
        goals.add(0, "truncated" if step % 3 == 2 else None)
    assert goals.replay.num_sampleable(4) == 4
    goals.add(0, None)
    assert goals.replay.num_sampleable(4) == 3
    with pytest.raises(ValueError, match=r"batch_size must be .* 3, got 4"):
        goals.replay.sample(1, 4, generator=np.random.default_rng(0))


def test_what_is_fed_back_is_about_the_transition_that_was_drawn() -> None:
    goals = played(4, sampler=lambda: Prioritized(alpha=1.0, initial_td=1.0))
    sample = goals.replay.sample(1, 4, generator=np.random.default_rng(0))
    batch = goals.replay.gather(sample, gamma=GAMMA)
    goals.replay.feedback(sample, {"td_error": np.arange(4.0)[None] + 1})
    expected = np.ones(4)
    expected[batch.index[0]] = np.arange(4) + 1.0
    chances = goals.replay.sampler.probabilities()
    np.testing.assert_allclose(chances / chances.sum(), expected / expected.sum(), rtol=1e-4)


def test_n_steps_make_no_sense_with_it() -> None:
    with pytest.raises(ValueError, match=r"n_step must be 1 with relabel=Triplets\(\.\.\.\), got 3"):
        Replay(10, relabel=Triplets(), n_step=3)
    assert Replay(10, relabel=Hindsight(), n_step=3).n_step == 3


def test_before_it_belongs_to_a_memory_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="has no memory yet"):
        Triplets().sampleable(np.arange(2))

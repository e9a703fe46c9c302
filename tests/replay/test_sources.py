"""Sources of transitions: their numbers, balanced sampling in exact chances, and memories that continue exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from noterl.replay import Prioritized, Replay
from noterl.replay.sources import LARGEST
from tests.support.replay_invariants import check_replay

pytestmark = pytest.mark.backend_free


def memory(capacity: int, lanes: list[int], sources: tuple[int, ...] = (1, 1), **settings: Any) -> Replay:
    """Return a memory with a transition of each of these lanes, in this order."""
    replay = Replay(capacity, **settings)
    replay.build(spaces.Box(-1e9, 1e9, ()), spaces.Discrete(2))
    replay.set_sources(sources, balance=True)
    store(replay, lanes)
    return replay


def store(replay: Replay, lanes: list[int]) -> None:
    for lane in lanes:
        replay.add(lane, np.float32(0), 0, float(lane), np.float32(1), True, False)


def sampled_lanes(replay: Replay, count: int = 40_000) -> np.ndarray:
    sample = replay.sample(count // 4, 4, generator=np.random.default_rng(0))
    return replay.gather(sample, gamma=0.9).reward.ravel().astype(int)


def chances_by_definition(replay: Replay, sources: tuple[int, ...]) -> np.ndarray:
    """Return the probability of each sampleable transition, from the formula of the documentation."""
    storage = replay.sampler.storage
    environments = sum(sources)
    worker = np.repeat(np.arange(len(sources)), sources)[storage.lane[storage.unmasked_indices()] % environments]
    total, weight = len(worker), np.ones(len(worker))
    counts = [int((worker == number).sum()) for number in range(len(sources))]
    equal = [abs(n - total * own / environments) <= 2 * own for n, own in zip(counts, sources, strict=True)]
    if not all(equal):
        for number, own in enumerate(sources):
            if counts[number]:
                weight[worker == number] = min((own / environments) / (counts[number] / total), LARGEST)
    return weight / weight.sum()


def test_each_source_is_sampled_in_proportion_to_its_environments() -> None:
    replay = memory(100, [0] * 20 + [1] * 50 + [2] * 10, (1, 2))
    probabilities = replay.sampler.probabilities()
    np.testing.assert_allclose(probabilities, [1 / 3 / 20] * 20 + [2 / 3 / 60] * 60, rtol=1e-12)
    np.testing.assert_allclose(np.bincount(sampled_lanes(replay)) / 40_000, [1 / 3, 5 / 9, 1 / 9], atol=0.01)


def test_first_transitions_of_a_source_are_sampled_up_to_four_times_as_often() -> None:
    replay = memory(2000, [0] * 999 + [1])
    weight = np.array([1000 / (2 * 999)] * 999 + [4.0])
    np.testing.assert_allclose(replay.sampler.probabilities(), weight / weight.sum(), rtol=1e-12)
    assert replay.effective_sample_size() == pytest.approx(weight.sum() ** 2 / np.square(weight).sum())


@pytest.mark.parametrize("sources", [(1, 1, 1), (2, 1), (1, 2)])
def test_whole_rounds_are_sampled_as_without_sources(sources: tuple[int, ...]) -> None:
    """The same indices from the same generator, also within a round, with a memory that is full or trimmed."""
    balanced, plain = memory(20, [], sources), memory(20, [], (3,))
    for number in range(90):
        for replay in (balanced, plain):
            store(replay, [number % 3])
            if number == 70:
                replay.drop_oldest(4)
        if number > 4:
            first, second = (each.sample(2, 4, generator=np.random.default_rng(number)) for each in (balanced, plain))
            np.testing.assert_array_equal(first.indices, second.indices)


def test_balance_can_be_turned_off() -> None:
    replay = memory(100, [0] * 80 + [1] * 20)
    assert np.mean(sampled_lanes(replay)) == pytest.approx(0.5, abs=0.01)
    replay.set_sources((1, 1), balance=False)
    assert np.mean(sampled_lanes(replay)) == pytest.approx(0.2, abs=0.01)
    assert replay.sources is not None and replay.sources.counts() == [80, 20]


def test_lanes_of_an_earlier_fit_count_as_those_of_this_one() -> None:
    replay = memory(100, [0, 1, 2, 3] * 20 + [5, 5, 7], (1, 1))
    assert replay.sources is not None and replay.sources.counts() == [40, 43]
    assert [set(replay.sampler.storage.lane[own].tolist()) for own in replay.sources.split()] == [{0, 2}, {1, 3, 5, 7}]


def test_masked_transitions_do_not_count() -> None:
    replay = memory(100, [0, 1] * 40)
    replay.keep(np.concatenate([np.arange(0, 80, 2), np.arange(1, 21, 2)]))
    assert replay.sources is not None and replay.sources.counts() == [40, 10]
    lanes = sampled_lanes(replay)
    assert np.mean(lanes) == pytest.approx(0.5, abs=0.01)
    np.testing.assert_allclose(replay.sampler.probabilities()[[0, 1]], [0.5 / 40, 0.5 / 10])


def test_pass_and_priorities_ignore_sources() -> None:
    replay = memory(100, [0] * 60 + [1] * 20)
    indices = replay.sample_pass(8, generator=np.random.default_rng(0)).indices
    assert sorted(indices.ravel().tolist()) == list(range(80))
    prioritized = memory(100, [0] * 60 + [1] * 20, sampler=Prioritized())
    np.testing.assert_allclose(prioritized.sampler.probabilities(), np.full(80, 1 / 80))
    assert np.mean(sampled_lanes(prioritized)) == pytest.approx(0.25, abs=0.01)


def test_size_of_each_worker() -> None:
    replay = memory(100, [0] * 30 + [1] * 20, sampler=Prioritized(alpha=1.0))
    sample = replay.sample_pass(1, generator=np.random.default_rng(0))
    replay.feedback(sample, {"td_error": np.where(sample.indices < 3, 1.0, 1e-9)})
    priorities = replay.sampler.probabilities()
    expected = [own.sum() ** 2 / np.square(own).sum() for own in (priorities[:30], priorities[30:])]
    np.testing.assert_allclose(replay.effective_sample_size(by_worker=True), expected)


def test_restored_memory_samples_the_same() -> None:
    replay, other = memory(50, [0] * 40 + [1] * 30), memory(50, [1, 0, 0])
    other.sources.counts()  # type: ignore[union-attr]
    other.set_state(replay.get_state())
    for _ in range(3):
        for each in (replay, other):
            store(each, [0, 0, 1])
        first, second = (each.sample(3, 8, generator=np.random.default_rng(1)) for each in (replay, other))
        np.testing.assert_array_equal(first.indices, second.indices)


operations = st.one_of(
    st.tuples(st.just("add"), st.lists(st.integers(0, 5), max_size=60)),
    st.tuples(st.just("drop"), st.integers(0, 12)),
    st.tuples(st.just("keep"), st.integers(0, 2**16)),
    st.tuples(st.just("clear"), st.none()),
    st.tuples(st.just("look"), st.none()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(operations, max_size=25), st.sampled_from([(1, 1), (2, 1), (1, 2, 3), (3,)]))
def test_chances_follow_from_the_stored_transitions(steps: list[tuple[str, Any]], sources: tuple[int, ...]) -> None:
    replay = memory(23, [], sources)
    for name, value in steps:
        if name == "add":
            store(replay, value)
        elif name == "drop":
            replay.drop_oldest(value)
        elif name == "keep":
            stored = replay.sampler.storage.stored_indices()
            replay.keep(stored[np.random.default_rng(value).random(len(stored)) < 0.5])
        elif name == "clear":
            replay.clear()
        elif len(replay.sampler.storage.unmasked_indices()):
            probabilities = replay.sampler.probabilities()
            np.testing.assert_allclose(probabilities, chances_by_definition(replay, sources), rtol=1e-9)
            assert replay.sources is not None
            assert sum(len(own) for own in replay.sources.split()) == len(probabilities)
            assert [len(own) for own in replay.sources.split()] == replay.sources.counts()
    check_replay(replay)

"""Sources of transitions: which transitions are of which worker, and their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from noterl.replay import Prioritized, Replay
from tests.support.replay_invariants import check_replay

pytestmark = pytest.mark.backend_free


def memory(capacity: int, lanes: list[int], sources: tuple[int, ...] = (1, 1), **settings: Any) -> Replay:
    """Return a memory with a transition of each of these lanes, in this order."""
    replay = Replay(capacity, **settings)
    replay.build(spaces.Box(-1e9, 1e9, ()), spaces.Discrete(2))
    replay.set_sources(sources)
    store(replay, lanes)
    return replay


def store(replay: Replay, lanes: list[int]) -> None:
    for lane in lanes:
        replay.add(lane, np.float32(0), 0, float(lane), np.float32(1), True, False)


def test_lanes_of_an_earlier_fit_count_as_those_of_this_one() -> None:
    replay = memory(100, [0, 1, 2, 3] * 20 + [5, 5, 7], (1, 1))
    assert replay.sources is not None and replay.sources.counts() == [40, 43]
    assert [set(replay.sampler.storage.lane[own].tolist()) for own in replay.sources.split()] == [{0, 2}, {1, 3, 5, 7}]


def test_masked_transitions_do_not_count() -> None:
    replay = memory(100, [0, 1] * 40)
    replay.keep(np.concatenate([np.arange(0, 80, 2), np.arange(1, 21, 2)]))
    assert replay.sources is not None and replay.sources.counts() == [40, 10]


def test_size_of_each_worker() -> None:
    replay = memory(100, [0] * 30 + [1] * 20, sampler=Prioritized(alpha=1.0))
    sample = replay.sample_pass(1, generator=np.random.default_rng(0))
    replay.feedback(sample, {"td_error": np.where(sample.indices < 3, 1.0, 1e-9)})
    priorities = replay.sampler.probabilities()
    expected = [own.sum() ** 2 / np.square(own).sum() for own in (priorities[:30], priorities[30:])]
    np.testing.assert_allclose(replay.effective_sample_size(by_worker=True), expected)


operations = st.one_of(
    st.tuples(st.just("add"), st.lists(st.integers(0, 5), max_size=60)),
    st.tuples(st.just("drop"), st.integers(0, 12)),
    st.tuples(st.just("keep"), st.integers(0, 2**16)),
    st.tuples(st.just("clear"), st.none()),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(operations, max_size=25), st.sampled_from([(1, 1), (2, 1), (1, 2, 3), (3,)]))
def test_every_transition_has_the_source_of_its_lane(steps: list[tuple[str, Any]], sources: tuple[int, ...]) -> None:
    replay = memory(23, [], sources)
    for name, value in steps:
        if name == "add":
            store(replay, value)
        elif name == "drop":
            replay.drop_oldest(value)
        elif name == "keep":
            stored = replay.sampler.storage.stored_indices()
            replay.keep(stored[np.random.default_rng(value).random(len(stored)) < 0.5])
        else:
            replay.clear()
        assert replay.sources is not None
        storage = replay.sampler.storage
        worker_of = [worker for worker, count in enumerate(sources) for _ in range(count)]
        expected: list[list[int]] = [[] for _ in sources]
        for index in storage.unmasked_indices().tolist():
            expected[worker_of[storage.lane[index] % sum(sources)]].append(index)
        assert [own.tolist() for own in replay.sources.split()] == expected
        assert replay.sources.counts() == list(map(len, expected))
    check_replay(replay)

"""Prioritized sampling after any history, beside scores in a plain dict; and its state."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noterl.replay import Prioritized
from tests.support.prioritized_memory import built, feed_back, filled, sample_indices, sample_of
from tests.support.replay_model import store

pytestmark = pytest.mark.backend_free


scores = st.sampled_from([0.0, 1e-3, 0.3, 1.0, 7.0, 123.4, np.nan])
operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 15)),
        st.tuples(st.just("add"), st.integers(1, 15)),
        st.tuples(st.just("feedback"), st.lists(st.tuples(st.integers(0, 99), scores), min_size=1, max_size=6)),
        st.tuples(st.just("feedback"), st.lists(st.tuples(st.integers(0, 99), scores), min_size=1, max_size=6)),
        st.tuples(st.just("drop"), st.integers(0, 20)),
        st.tuples(st.just("keep"), st.integers(0, 2**32 - 1)),
        st.tuples(st.just("alpha"), st.sampled_from([0.0, 0.5, 0.7, 1.0])),
        st.tuples(st.just("clear"), st.none()),
        st.tuples(st.just("restore"), st.booleans()),
        st.tuples(st.just("look"), st.none()),
    ),
    max_size=25,
)


class Pair:
    """A memory, and the scores by generation in a plain dict, driven together."""

    def __init__(self, capacity):
        self.replay, self.capacity = built(capacity, Prioritized(alpha=0.7)), capacity
        self.scores, self.hidden, self.added, self.largest = {}, set(), 0, None

    def chances(self, alpha):
        kept = [np.float32(score) for generation, score in sorted(self.scores.items()) if generation not in self.hidden]
        powers = (np.array(kept, np.float64) + 1e-7) ** alpha
        return powers / powers.sum()

    def look(self, _):
        sampler = self.replay.sampler
        self.replay.check()
        np.testing.assert_allclose(sampler.probabilities(), self.chances(sampler.alpha), rtol=1e-10)
        np.testing.assert_allclose(sampler.probabilities(alpha=False), self.chances(1.0), rtol=1e-10)

    def add(self, count):
        for _ in range(count):
            store(self.replay, self.added)
            self.scores[self.added] = 7.0 if self.largest is None else self.largest
            self.scores.pop(self.added - self.capacity, None)
            self.added += 1

    def feedback(self, pairs):
        live = sorted(self.scores)
        if not live:
            return
        pairs = [(live[number % len(live)], score) for number, score in pairs]
        sample = sample_of(self.replay, [[generation % self.capacity for generation, _ in pairs]])
        self.replay.feedback(sample, {"td_error": np.array([[score for _, score in pairs]], np.float32)})
        for generation, score in dict(pairs).items():
            if np.isfinite(score):
                self.scores[generation] = score
                self.largest = max(score, self.largest or 0.0)

    def drop(self, count):
        self.replay.drop_oldest(count)
        for generation in sorted(self.scores)[:count]:
            del self.scores[generation]

    def keep(self, bits):
        live = sorted(self.scores)
        kept = [generation for position, generation in enumerate(live) if bits >> position % 32 & 1]
        self.replay.keep(np.array(kept, np.int64) % self.capacity)
        self.hidden = set(live) - set(kept)

    def alpha(self, alpha):
        self.replay.sampler.alpha = alpha

    def clear(self, _):
        self.replay.clear()
        self.scores, self.largest, self.hidden = {}, None, set()

    def restore(self, used):
        other = filled(self.capacity, 9 if used else 0, Prioritized(alpha=0.1))
        if used:
            feed_back(other, [3.0])
        other.set_state(self.replay.get_state())
        self.replay = other


def run(capacity, operations, look):
    """Drive a memory and a plain model; `look` compares them after each operation."""
    pair = Pair(capacity)
    for operation, argument in operations:
        getattr(pair, operation)(argument)
        if look:
            pair.look(None)
    return pair.replay


@settings(max_examples=150)
@given(capacity=st.integers(1, 40), operations=operations)
def test_any_sequence_of_operations_leaves_the_chances_of_a_plain_list(capacity, operations):
    replay = run(capacity, operations, look=False)
    seen = run(capacity, operations, look=True)
    replay.check()
    assert replay.sampler._tree.equals(seen.sampler._tree)  # whoever looks changes nothing, to the last bit
    if len(replay.sampler.probabilities()):
        rows = sample_indices(replay, 3, 1)
        assert set(rows.ravel()) <= set(replay._storage.unmasked_indices())
        np.testing.assert_array_equal(rows, sample_indices(seen, 3, 1))


@pytest.mark.parametrize("count", [0, 30, 250])
def test_restored_memory_draws_the_same_to_the_last_bit(count):
    replay = filled(100, count)
    generator = np.random.default_rng(0)
    for _ in range(20 if count else 0):
        sample = replay.sample(3, 8, generator=generator)
        replay.feedback(sample, {"td_error": generator.normal(size=sample.indices.shape).astype(np.float32)})
        store(replay, 1)
    other = built(100, Prioritized())
    other.set_state(replay.get_state())
    assert other.sampler._synchronized().equals(replay.sampler._tree)
    for step in range(5):
        store(replay, step)
        store(other, step)
        np.testing.assert_array_equal(sample_indices(replay, 2, 1, step), sample_indices(other, 2, 1, step))
        feed_back(replay, {step: 8.0 + step})
        feed_back(other, {step: 8.0 + step})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("largest"), "keys .*'alpha', 'beta', 'largest', 'scores'"),
        (lambda state: state.update(scores=state["scores"][:-1]), r"float32\[5\]"),
        (lambda state: state.update(scores=state["scores"].astype(np.float64)), r"float32\[5\]"),
        (lambda state: state.update(scores=-state["scores"]), "at least 0"),
        (lambda state: state.update(scores=state["scores"] * np.float32(np.nan)), "finite"),
        (lambda state: state.update(largest=-1.0), "largest"),
        (lambda state: state.update(largest="x"), "largest"),
        (lambda state: state.update(alpha=2.0), "alpha"),
        (lambda state: state.update(beta=None), "beta"),
    ],
)
def test_state_that_cannot_be_changes_nothing(change, message):
    replay = filled(10, 5)
    state, other = replay.get_state(), filled(10, 3)
    change(state["sampler"])
    with pytest.raises(ValueError, match=message):
        other.set_state(state)
    assert len(other) == 3
    assert other.sampler.get_state()["scores"].tolist() == [7, 7, 7]

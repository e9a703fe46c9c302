"""Prioritized sampling: probabilities, weights, feedback, masks, states, arguments."""

import numpy as np
import pytest

import noterl
from noterl.replay import Prioritized, RatioScore, Score, sum_tree
from tests.support.prioritized_memory import built, feed_back, filled, sample_indices, sample_of
from tests.support.replay_invariants import check_replay, equal_trees
from tests.support.replay_model import sample_batch, store

pytestmark = pytest.mark.backend_free


def test_probabilities_are_the_scores_to_the_power_of_alpha():
    replay = filled(10, 4, Prioritized(alpha=0.5))
    feed_back(replay, [0.0, 1.0, -4.0, 9.0])
    expected = np.sqrt(np.array([0.0, 1.0, 4.0, 9.0]) + 1e-7)
    np.testing.assert_allclose(replay.sampler.probabilities(), expected / expected.sum(), rtol=1e-12)
    np.testing.assert_allclose(expected / expected.sum(), [5.27e-5, 0.16666, 0.33331, 0.49997], atol=2e-5)


def test_frequencies_match_the_probabilities():
    replay = filled(8, 8, Prioritized(alpha=1.0))
    feed_back(replay, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    counts = np.bincount(replay.sampler.sample_indices(500, 28, np.random.default_rng(0)).ravel(), minlength=8)
    # 28 parts of a sum of 28: a transition of priority p covers p of them, up to the 1e-7 that are added.
    np.testing.assert_allclose(counts, 500 * np.arange(8), atol=2)
    counts = np.bincount(sample_indices(replay, 20_000, 5).ravel(), minlength=8)
    np.testing.assert_allclose(counts / counts.sum(), replay.sampler.probabilities(), atol=0.003)


def test_each_index_of_a_batch_is_sampled_from_its_own_part():
    replay = filled(100, 100, Prioritized(alpha=1.0))
    feed_back(replay, np.random.default_rng(0).random(100))
    bounds = np.concatenate([[0.0], replay.sampler.probabilities().cumsum()])
    indices = sample_indices(replay, 300, 16)
    part = np.arange(16)
    assert (bounds[indices] < (part + 1) / 16).all()
    assert (bounds[indices + 1] > part / 16).all()
    assert len(np.unique(indices[:, 3])) > 3  # not always the same one


def test_a_pass_samples_by_priority_as_many_batches_as_hold_the_memory():
    replay, generator = filled(8, 8, Prioritized(alpha=1.0, beta=1.0)), np.random.default_rng(0)
    feed_back(replay, [1.0] * 7 + [9.0])
    passes = [replay.sample_pass(3, generator=generator) for _ in range(500)]
    assert {each.indices.shape for each in passes} == {(3, 3)}
    counts = np.bincount(np.concatenate([each.indices.ravel() for each in passes]), minlength=8)
    np.testing.assert_allclose(counts / counts.sum(), replay.sampler.probabilities(), atol=0.02)
    np.testing.assert_array_equal(passes[0].weight, replay.sampler.weights(passes[0].indices))


def test_alpha_zero_is_uniform():
    replay = filled(10, 10, Prioritized(alpha=0.0))
    feed_back(replay, np.arange(10.0))
    np.testing.assert_allclose(replay.sampler.probabilities(), 0.1, rtol=1e-12)
    assert (sample_batch(replay, 2, 8).weight == 1).all()


def test_new_transitions_have_the_initial_error_and_later_the_largest_score_so_far():
    sampler = Prioritized(alpha=1.0, initial_td=7.0)
    replay = filled(10, 2, sampler)
    np.testing.assert_array_equal(sampler.get_state()["scores"], [7, 7])
    feed_back(replay, [3.0])
    store(replay, 2)
    feed_back(replay, {1: 0.5})
    store(replay, 3)
    np.testing.assert_array_equal(sampler.get_state()["scores"], [3, 0.5, 3, 3])
    for step in range(4, 14):  # the transition of error 3 is overwritten, but its error stays the largest
        store(replay, step)
    np.testing.assert_array_equal(sampler.get_state()["scores"], [3] * 10)
    feed_back(replay, {0: 11.0})
    store(replay, 14)
    np.testing.assert_array_equal(sampler.get_state()["scores"], [3] * 5 + [11] + [3] * 3 + [11])


def test_weights_are_those_of_the_paper():
    sampler = Prioritized(alpha=0.7, beta=0.4)
    replay = filled(50, 50, sampler)
    feed_back(replay, np.random.default_rng(1).random(50) * 5)
    batch = sample_batch(replay, 3, 8, np.random.default_rng(2))
    chances = sampler.probabilities()[batch.index]
    expected = (50 * chances) ** -0.4
    expected /= expected.max(1, keepdims=True)
    np.testing.assert_allclose(batch.weight, expected, rtol=1e-6)
    assert batch.weight.dtype == np.float32
    assert (batch.weight.max(1) == 1).all()


@pytest.mark.parametrize(("added", "beta"), [(0, 0.4), (25, 0.55), (50, 0.7), (100, 1.0), (130, 1.0)])
def test_beta_rises_to_one_with_the_environment_steps(added, beta):
    replay = filled(20, added, Prioritized(beta=0.4, beta_steps=100))
    assert replay.sampler.current_beta == pytest.approx(beta)
    if added:
        feed_back(replay, [1.0, 4.0])
        weight = replay.sampler.weights(np.array([[0, 1]]))
        np.testing.assert_allclose(weight, [[1.0, 4.0 ** (-0.7 * beta)]], rtol=1e-5)


def test_beta_is_constant_without_beta_steps_and_can_be_changed():
    replay = filled(20, 200)
    assert replay.sampler.current_beta == 0.4
    replay.sampler.beta = 1.0
    assert replay.sampler.current_beta == 1.0


def test_alpha_can_be_changed():
    replay = filled(10, 3, Prioritized(alpha=1.0))
    feed_back(replay, [1.0, 4.0, 9.0])
    np.testing.assert_allclose(replay.sampler.probabilities(), np.array([1, 4, 9]) / 14, rtol=1e-6)
    replay.sampler.alpha = 0.5
    np.testing.assert_allclose(replay.sampler.probabilities(), np.array([1, 2, 3]) / 6, rtol=1e-6)
    assert replay.sampler._tree.total == pytest.approx(6, rel=1e-6)


def test_last_error_counts_if_an_index_occurs_twice():
    replay = filled(10, 5)
    replay.feedback(
        sample_of(replay, [[1, 2, 1], [3, 1, 2]]), {"td_error": np.array([[1, 2, 3], [4, 5, 6]], np.float32)}
    )
    np.testing.assert_array_equal(replay.sampler.get_state()["scores"], [7, 5, 6, 4, 7])


def test_feedback_is_ignored_for_overwritten_transitions():
    replay = filled(4, 4)
    sample = sample_of(replay, [[0, 1, 2, 3]])
    store(replay, 4)
    store(replay, 5)
    replay.feedback(sample, {"td_error": np.array([[1, 2, 3, 4]], np.float32)})
    np.testing.assert_array_equal(replay.sampler.get_state()["scores"], [3, 4, 7, 7])


@pytest.mark.parametrize("part", [False, True])
def test_feedback_is_ignored_for_overwritten_transitions_even_if_the_new_ones_were_sampled(part):
    replay = filled(4, 4)
    sample = sample_of(replay, [[2, 0, 3, 1]])
    sample = sample.joined(sample)[1:] if part else sample
    for step in range(4, 7):
        store(replay, step)
    later = sample_of(replay, [[2, 0, 3, 1]])
    replay.feedback(sample, {"td_error": sample.indices.astype(np.float32) + 1})
    assert replay.sampler.get_state()["scores"].tolist() == [4, 7, 7, 7]
    replay.feedback(later, {"td_error": np.full((1, 4), 2, np.float32)})
    assert replay.sampler.get_state()["scores"].tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("evict", ["clear", "drop"])
def test_feedback_is_ignored_for_evicted_transitions(evict):
    replay = filled(4, 4)
    sample = sample_of(replay, [[2, 0, 3, 1]])
    if evict == "clear":
        replay.clear()
    else:
        replay.drop_oldest(4)
    for step in range(4):
        store(replay, step)
    replay.feedback(sample, {"td_error": np.ones((1, 4), np.float32)})
    assert replay.sampler.get_state()["scores"].tolist() == [7, 7, 7, 7]


@pytest.mark.parametrize("sample", [np.array([[0, 1]]), [[0, 1]], None])
def test_feedback_needs_a_sample(sample):
    with pytest.raises(ValueError, match="sample must be"):
        filled(8, 4).feedback(sample, {"td_error": np.ones((1, 2))})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_errors_that_are_not_finite_change_nothing(bad):
    replay = filled(10, 4)
    feed_back(replay, [1.0, 2.0])
    feed_back(replay, [bad, 3.0, bad])
    np.testing.assert_array_equal(replay.sampler.get_state()["scores"], [1, 3, 7, 7])
    feed_back(replay, [bad])
    assert replay.sampler.get_state()["largest"] == 3.0
    assert np.isfinite(replay.sampler._tree.total)


def test_largest_errors_of_float32_keep_everything_finite():
    replay = filled(1000, 1000, Prioritized(alpha=1.0))
    feed_back(replay, np.full(999, np.finfo(np.float32).max))
    store(replay, 1000)
    chances = replay.sampler.probabilities()
    assert chances.sum() == pytest.approx(1.0)
    weights = replay.sampler.weights(sample_indices(replay, 2, 64))
    assert np.isfinite(weights).all()
    assert (weights > 0).all()


def test_several_errors_of_a_transition_are_averaged():
    replay = filled(10, 2)
    replay.feedback(sample_of(replay, [[0, 1]]), {"td_error": np.array([[[1, -3], [0, 5]]], np.float32)})
    np.testing.assert_array_equal(replay.sampler.get_state()["scores"], [2, 2.5])


def test_ratio_score():
    sampler = Prioritized(alpha=1.0, initial_td=8.0, score=RatioScore(lambda_=0.25, initial_ratio=3.0))
    replay = filled(10, 3, sampler)
    assert replay.feedback_fields == ("td_error", "ratio")
    np.testing.assert_array_equal(sampler.get_state()["scores"], [3.5, 3.5, 3.5])  # 0.25 * 8 + 0.75 * 2
    values = {"td_error": np.array([[-4, 0]], np.float32), "ratio": np.array([[1.0, 0.2]], np.float32)}
    replay.feedback(sample_of(replay, [[0, 1]]), values)
    np.testing.assert_allclose(sampler.get_state()["scores"], [1.0, 0.6, 3.5], rtol=1e-6)
    with pytest.raises(ValueError, match="feedback must hold ratio"):
        replay.feedback(sample_of(replay, [[0, 1]]), {"td_error": values["td_error"]})


def test_custom_score():
    class Squared(Score):
        def __call__(self, values):
            return np.square(values["td_error"])

        def initial(self, td_error):
            return td_error**2

    sampler = Prioritized(score=Squared())
    replay = filled(10, 2, sampler)
    feed_back(replay, [-3.0])
    np.testing.assert_array_equal(sampler.get_state()["scores"], [9, 49])


def test_negative_scores_change_nothing():
    class Signed(Score):
        def __call__(self, values):
            return values["td_error"]

    replay = filled(10, 3, Prioritized(score=Signed()))
    feed_back(replay, [-1.0, 2.0, -np.inf])
    assert replay.sampler.get_state()["scores"].tolist() == [7, 2, 7]
    check_replay(replay)


def test_masked_transitions_are_never_sampled_even_with_most_of_the_mass():
    replay = filled(1000, 1000, Prioritized(alpha=1.0))
    errors = np.full(1000, 1e6)
    errors[[3, 700]] = 1e-3
    feed_back(replay, errors)
    replay.keep(np.array([3, 700]))
    assert set(sample_indices(replay, 50, 2).ravel()) == {3, 700}
    np.testing.assert_allclose(replay.sampler.probabilities(), [0.5, 0.5])
    feed_back(replay, {5: 1e6})  # masked
    assert set(sample_indices(replay, 50, 2).ravel()) == {3, 700}
    assert store(replay, 1000) == 0  # replaces a masked transition
    feed_back(replay, {0: 1e-3})
    assert set(sample_indices(replay, 50, 3).ravel()) == {0, 3, 700}
    replay.keep(replay._storage.stored_indices())
    assert len(replay.sampler.probabilities()) == 1000
    np.testing.assert_allclose(replay.sampler.get_state()["scores"][:7], [1e6, 1e6, 1e-3, 1e6, 1e6, 1e6, 1e6])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda sampler: sampler._tree.values.__setitem__(3, 0.5), "differs from that of its score"),
        (lambda sampler: sampler._tree.values.__setitem__(9, 0.5), "differs from that of its score"),
        (lambda sampler: sampler._tree._levels[-1].__setitem__(1, 0.5), "differs from that of its"),
        (lambda sampler: sampler._scores.__setitem__(3, 0.5), "differs from that of its score"),
        (lambda sampler: (sampler._scores.__setitem__(3, 70.0), sampler._write(np.array([3]))), "above the largest"),
    ],
)
def test_check_names_the_broken_invariant(damage, message):
    replay = filled(10, 5)
    feed_back(replay, [1.0, 2.0])
    check_replay(replay)
    damage(replay.sampler)
    with pytest.raises(AssertionError, match=message):
        check_replay(replay)


def test_check_finds_a_wrong_sum(monkeypatch):
    monkeypatch.setattr(sum_tree, "ROOT", 8)
    replay = filled(100, 50)
    check_replay(replay)
    replay.sampler._tree._levels[-1][1] += 1
    with pytest.raises(AssertionError, match="a sum of priorities"):
        check_replay(replay)


def test_clear_resets_scores():
    replay = filled(10, 14)
    feed_back(replay, [50.0])
    replay.clear()
    store(replay, 0)
    assert replay.sampler.get_state()["scores"].tolist() == [7]
    assert replay.sampler.probabilities().tolist() == [1.0]
    assert set(sample_indices(replay, 3, 1).ravel()) == {4}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": -0.1}, r"alpha must .*got -0\.1"),
        ({"alpha": 1.5}, "alpha"),
        ({"beta": 2}, "beta"),
        ({"beta": float("nan")}, "beta"),
        ({"beta_steps": 0}, "beta_steps must be a positive int, got 0"),
        ({"beta_steps": 1.5}, "beta_steps"),
        ({"initial_td": -1}, "initial_td"),
        ({"initial_td": 1e39}, "initial_td"),
        ({"score": abs}, "score must be a noterl.replay.Score"),
        ({"score": RatioScore}, "score must be a noterl.replay.Score"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Prioritized(**arguments)


@pytest.mark.parametrize("arguments", [{"lambda_": 1.1}, {"initial_ratio": -1}, {"lambda_": "half"}])
def test_bad_arguments_of_the_ratio_score(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        RatioScore(**arguments)


def test_bad_exponents_raise():
    sampler = Prioritized()
    with pytest.raises(ValueError, match="alpha"):
        sampler.alpha = 1.01
    with pytest.raises(ValueError, match="beta"):
        sampler.beta = -1
    assert (sampler.alpha, sampler.beta) == (0.7, 0.4)


def test_sampler_belongs_to_one_memory():
    sampler = Prioritized()
    built(10, sampler)
    with pytest.raises(ValueError, match="sampler must"):
        built(10, sampler)


def test_names_are_public():
    assert noterl.replay.Prioritized is Prioritized
    assert noterl.registry.lookup("Prioritized") is Prioritized
    assert noterl.registry.lookup("RatioScore") is RatioScore


@pytest.mark.parametrize("count", [0, 30, 250])
def test_restored_memory_samples_the_same_bit_for_bit(count):
    replay = filled(100, count)
    generator = np.random.default_rng(0)
    for _ in range(20 if count else 0):
        sample = replay.sample(3, 8, generator=generator)
        replay.feedback(sample, {"td_error": generator.normal(size=sample.indices.shape).astype(np.float32)})
        store(replay, 1)
    other = built(100, Prioritized())
    other.set_state(replay.get_state())
    assert equal_trees(other.sampler._synchronized(), replay.sampler._tree)
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
def test_bad_sampler_state_raises_and_changes_nothing(change, message):
    replay = filled(10, 5)
    state, other = replay.get_state(), filled(10, 3)
    change(state["sampler"])
    with pytest.raises(ValueError, match=message):
        other.set_state(state)
    assert len(other) == 3
    assert other.sampler.get_state()["scores"].tolist() == [7, 7, 7]

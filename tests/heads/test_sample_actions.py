"""Sampling actions as tensors, from given random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from noterl import backends, heads


def sampled(head: Any, values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    tensors = [backends.ops.convert_to_tensor(each.astype(np.float32)) for each in (values, numbers)]
    return backends.current().fetch(head.sample_actions(*tensors))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_categorical_takes_the_largest_perturbed_logit(rng: np.random.Generator) -> None:
    head = heads.Categorical().bind(spaces.Discrete(4))
    assert (head.sampled_from, head.num_sampled) == ("uniform", 4)
    logits, uniform = rng.normal(size=(50, 4)), rng.random((50, 4))
    actions = sampled(head, logits, uniform)
    assert actions.dtype == np.int32
    np.testing.assert_array_equal(actions, np.argmax(logits - np.log(-np.log(uniform)), axis=1))


def test_frequencies_are_those_of_the_softmax(rng: np.random.Generator) -> None:
    head = heads.Categorical().bind(spaces.Discrete(3))
    logits = np.log([0.2, 0.3, 0.5])
    actions = sampled(head, np.tile(logits, (40_000, 1)), rng.random((40_000, 3)))
    np.testing.assert_allclose(np.bincount(actions) / 40_000, [0.2, 0.3, 0.5], atol=0.01)


def test_probabilities_are_sampled_like_their_logits(rng: np.random.Generator) -> None:
    space = spaces.Discrete(3)
    logits, uniform = rng.normal(size=(50, 3)), rng.random((50, 3))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = sampled(heads.Categorical().bind(space), logits, uniform)
    np.testing.assert_array_equal(sampled(heads.Probabilities().bind(space), probabilities, uniform), expected)


def test_parts_of_a_multi_discrete_space_are_sampled_apart(rng: np.random.Generator) -> None:
    head = heads.Categorical().bind(spaces.MultiDiscrete([2, 3]))
    logits, uniform = rng.normal(size=(50, 5)), rng.random((50, 5))
    perturbed = logits - np.log(-np.log(uniform))
    expected = np.stack([perturbed[:, :2].argmax(axis=1), perturbed[:, 2:].argmax(axis=1)], axis=1)
    np.testing.assert_array_equal(sampled(head, logits, uniform), expected)


def test_value_beside_the_logits_does_not_affect_the_samples(rng: np.random.Generator) -> None:
    head, space = heads.PolicyValue(), spaces.Discrete(3)
    values, uniform = rng.normal(size=(50, 4)), rng.random((50, 3))
    assert (head.bind(space).size, head.bind(space).num_sampled) == (4, 3)
    expected = sampled(heads.Categorical().bind(space), values[:, :3], uniform)
    np.testing.assert_array_equal(sampled(head.bind(space), values, uniform), expected)
    with pytest.raises(ValueError, match="PolicyValue takes Discrete action spaces"):
        head.bind(spaces.MultiDiscrete([2, 3]))


def test_bernoulli_compares_with_the_sigmoid(rng: np.random.Generator) -> None:
    head = heads.Bernoulli().bind(spaces.MultiBinary(3))
    logits, uniform = rng.normal(size=(50, 3)), rng.random((50, 3))
    actions = sampled(head, logits, uniform)
    assert actions.dtype == np.int8
    np.testing.assert_array_equal(actions, uniform < 1 / (1 + np.exp(-logits)))


def test_gaussian_scales_normal_numbers(rng: np.random.Generator) -> None:
    head = heads.Gaussian().bind(spaces.Box(-1.0, 1.0, (2, 1)))
    assert (head.sampled_from, head.num_sampled) == ("normal", 2)
    values, normal = rng.normal(size=(50, 4)), rng.normal(size=(50, 2))
    expected = values[:, :2] + np.exp(values[:, 2:]) * normal
    np.testing.assert_allclose(sampled(head, values, normal), expected.reshape(50, 2, 1), rtol=1e-5, atol=1e-6)


def test_other_heads_are_not_sampled() -> None:
    assert heads.Q().sampled_from is None
    assert heads.Deterministic().sampled_from is None


def test_squashed_gaussian_scales_the_tanh_of_normal_numbers(rng: np.random.Generator) -> None:
    head: Any = heads.SquashedGaussian().bind(spaces.Box(np.float32([-1, 0]), np.float32([3, 1])))
    assert (head.sampled_from, head.num_sampled) == ("normal", 2)
    values, normal = rng.normal(size=(50, 4)), rng.normal(size=(50, 2))
    scaled = np.tanh(values[:, :2] + np.exp(values[:, 2:]) * normal)
    actions = sampled(head, values, normal)
    np.testing.assert_allclose(actions, [1, 0.5] + scaled * [2, 0.5], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(actions, head.unscale(scaled.astype(np.float32)), rtol=1e-4, atol=1e-5)

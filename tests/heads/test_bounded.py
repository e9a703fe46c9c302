"""Heads for bounded actions: actions for environments, scaling, sampling and log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from keras import ops

from noterl.backends import current
from noterl.envs.multi_agent.team import Team
from noterl.explorer import Explorer
from noterl.heads import Deterministic, Joint, SquashedGaussian
from noterl.noise import GaussianWhiteNoiseProcess
from noterl.schedules import Linear

UNEVEN = spaces.Box(np.array([-2.0, 0.0, 5.0], np.float32), np.array([2.0, 1.0, 5.5], np.float32))
FETCH = current().fetch


def tensor(values) -> object:
    return ops.convert_to_tensor(np.asarray(values, np.float32))


@pytest.mark.parametrize("kind", [Deterministic, SquashedGaussian])
@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Discrete(3), ".*Box.*got Discrete"),
        (spaces.Box(0, 9, (2,), np.int64), ".*floats"),
        (spaces.Box(-np.inf, np.inf, (2,)), ".*finite bounds"),
        (spaces.Box(np.array([0.0, -1.0]), np.array([np.inf, 1.0]), dtype=np.float64), ".*finite bounds"),
    ],
)
def test_unsupported_action_space_raises(kind: type, space: spaces.Space, message: str) -> None:
    with pytest.raises(ValueError, match=rf"head {kind.__name__}{message}"):
        kind().bind(space)


def test_bind_does_not_change_the_head() -> None:
    head = Deterministic()
    bound = head.bind(UNEVEN)
    assert bound.action_space is UNEVEN and not hasattr(head, "action_space")


def test_actions_cover_uneven_bounds() -> None:
    head = Deterministic().bind(UNEVEN)
    actions = head.deterministic(np.array([[-40.0, -40.0, -40.0], [0.0, 0.0, 0.0], [40.0, 40.0, 40.0]], np.float32))
    np.testing.assert_array_equal(actions, [UNEVEN.low, [0.0, 0.5, 5.25], UNEVEN.high])
    assert actions.dtype == np.float32
    values = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    expected = UNEVEN.low + (np.tanh(values.astype(float)) + 1) / 2 * (UNEVEN.high - UNEVEN.low)
    np.testing.assert_allclose(head.deterministic(values), expected, rtol=1e-6)
    gaussian = SquashedGaussian().bind(UNEVEN)
    np.testing.assert_array_equal(gaussian.deterministic(np.hstack([values, values])), head.deterministic(values))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_have_shape_and_dtype_of_the_space_and_lie_in_it(dtype: type) -> None:
    low = np.array([[-0.1, 1e-3], [3.3, 7.0]], dtype)
    space = spaces.Box(low, low + np.array([[0.3, 1e-3], [1.1, 0.0]], dtype), dtype=dtype)
    noise = GaussianWhiteNoiseProcess(sigma=2.0, size=4)
    rng = np.random.default_rng(0)
    for head, outputs, explorer in ((Deterministic(), 4, noise), (SquashedGaussian(), 8, Explorer())):
        bound = head.bind(space)
        values = rng.normal(scale=5, size=(200, outputs)).astype(np.float32)
        for actions in (bound.deterministic(values), bound.explore(values, explorer, 0)):
            assert actions.shape == (200, 2, 2) and actions.dtype == dtype
            assert all(space.contains(action) for action in actions)


def test_scale_inverts_the_actions() -> None:
    head = Deterministic().bind(UNEVEN)
    values = np.random.default_rng(1).normal(size=(9, 3)).astype(np.float32)
    np.testing.assert_allclose(FETCH(head.scale(tensor(head.deterministic(values)))), np.tanh(values), atol=2e-5)
    np.testing.assert_allclose(FETCH(head.act(tensor(values))), np.tanh(values), atol=1e-6)
    one = Deterministic().bind(spaces.Box(np.array([2.0], np.float32), np.array([2.0], np.float32)))
    assert FETCH(one.scale(tensor([[2.0]]))).tolist() == [[0.0]], "a dimension of width 0 must not divide by zero"
    square = Deterministic().bind(spaces.Box(-2.0, 2.0, (2, 2)))
    assert FETCH(square.scale(tensor(np.ones((5, 2, 2))))).tolist() == [[0.5] * 4] * 5


def test_noise_is_added_to_the_scaled_action_and_clipped() -> None:
    head = Deterministic().bind(UNEVEN)
    values = np.random.default_rng(2).normal(size=(50, 3)).astype(np.float32)
    noise, same = (GaussianWhiteNoiseProcess(sigma=0.5, size=3) for _ in range(2))
    noise.generator, same.generator = np.random.default_rng(5), np.random.default_rng(5)
    scaled = np.clip(np.tanh(values) + same.sample(50), -1, 1)
    expected = UNEVEN.low + (scaled + 1) / 2 * (UNEVEN.high - UNEVEN.low)
    np.testing.assert_allclose(head.explore(values, noise, 0), expected, rtol=1e-5)
    assert (np.abs(scaled) == 1).any()


def test_noise_uses_its_schedule() -> None:
    head = Deterministic().bind(UNEVEN)
    noise = GaussianWhiteNoiseProcess(sigma=Linear(0.5, 0.0, steps=10), size=3)
    values = np.zeros((2, 3), np.float32)
    assert not np.array_equal(head.explore(values, noise, 0), head.deterministic(values))
    np.testing.assert_array_equal(head.explore(values, noise, 10), head.deterministic(values))


def test_batch_samples_the_same_numbers_as_its_rows() -> None:
    head = SquashedGaussian().bind(UNEVEN)
    values = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)
    whole, single = Explorer(), Explorer()
    whole.generator, single.generator = np.random.default_rng(5), np.random.default_rng(5)
    rows = [head.explore(values[k : k + 1], single, 0)[0] for k in range(4)]
    np.testing.assert_array_equal(head.explore(values, whole, 0), rows)


@pytest.mark.parametrize(("kind", "count"), [(Deterministic, 3), (SquashedGaussian, 6)])
def test_wrong_number_of_outputs_raises(kind: type, count: int) -> None:
    head = kind().bind(UNEVEN)
    head.check((1, count))
    with pytest.raises(ValueError, match=rf"forward .*{count}.*got"):
        head.check((1, 4))


def test_log_probabilities_of_samples_equal_the_squashed_density() -> None:
    """The reference is the change of variables in float64."""
    head = SquashedGaussian().bind(UNEVEN)
    rng = np.random.default_rng(4)
    values, noise = rng.normal(size=(64, 6)), rng.normal(size=(64, 3))
    values[:4, 3:], values[4:8, 3:] = 3.5, -25.0  # beyond the clip on both sides
    scaled, log_probability = head.sample(tensor(values), tensor(noise))
    std = np.exp(np.clip(values[:, 3:], -20, 2))
    unsquashed = values[:, :3] + std * noise
    np.testing.assert_allclose(FETCH(scaled), np.tanh(unsquashed), atol=2e-6)
    near = np.abs(unsquashed).max(axis=1) < 6
    slope = 1 - np.tanh(unsquashed[near]) ** 2
    density = np.exp(-0.5 * noise[near] ** 2) / (std[near] * np.sqrt(2 * np.pi)) / slope
    np.testing.assert_allclose(FETCH(log_probability)[near], np.log(density).sum(axis=1), rtol=2e-5, atol=2e-5)
    assert 40 < near.sum() < 64 and near[4:8].all()


def test_the_density_integrates_to_one() -> None:
    head = SquashedGaussian().bind(spaces.Box(-3.0, 4.0, (1,)))
    noise = np.linspace(-9, 9, 4001)[:, None]
    values = np.tile([[0.4, -0.2]], (4001, 1))
    scaled, log_probability = (FETCH(part).astype(float) for part in head.sample(tensor(values), tensor(noise)))
    density, places = np.exp(log_probability), scaled[:, 0]
    assert np.sum(0.5 * (density[1:] + density[:-1]) * np.diff(places)) == pytest.approx(1.0, abs=1e-3)


def test_log_probability_of_saturated_actions_is_finite_and_exact() -> None:
    head = SquashedGaussian().bind(spaces.Box(-1.0, 1.0, (1,)))
    values = np.array([[60.0, 0.0], [-60.0, 0.0]])
    scaled, log_probability = head.sample(tensor(values), tensor([[0.0], [0.0]]))
    assert FETCH(scaled).tolist() == [[1.0], [-1.0]]
    # log(1 - tanh(u)^2) -> log 4 - 2 |u|
    np.testing.assert_allclose(FETCH(log_probability), -0.5 * np.log(2 * np.pi) - np.log(4) + 120, rtol=1e-6)


def test_log_prob_of_actions_equals_the_squashed_density() -> None:
    """The reference is the change of variables in float64, also at the largest float32 below 1."""
    head = SquashedGaussian().bind(UNEVEN)
    rng = np.random.default_rng(5)
    values, actions = rng.normal(size=(64, 6)), rng.uniform(-0.99, 0.99, size=(64, 3))
    values[:4, 3:] = 3.5  # beyond the clip
    actions[4], actions[5] = [1.0, -1.0, 0.0], [-0.5, 1.0, 1.0]
    actions = actions.astype(np.float32).astype(np.float64)
    inside = np.clip(actions, -1 + 2.0**-24, 1 - 2.0**-24)
    unsquashed, std = 0.5 * np.log((1 + inside) / (1 - inside)), np.exp(np.clip(values[:, 3:], -20, 2))
    density = -0.5 * ((unsquashed - values[:, :3]) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    expected = (density - np.log((1 - inside) * (1 + inside))).sum(axis=1)
    np.testing.assert_allclose(FETCH(head.log_prob(tensor(values), tensor(actions))), expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(FETCH(head.log_prob(tensor(values), tensor(actions)[:, :, None])), expected, rtol=2e-5)


def test_log_prob_of_samples_equals_that_of_sample() -> None:
    head = SquashedGaussian().bind(UNEVEN)
    rng = np.random.default_rng(6)
    values, noise = tensor(rng.normal(size=(64, 6)) * 0.5), tensor(rng.normal(size=(64, 3)))
    scaled, log_probability = head.sample(values, noise)
    np.testing.assert_allclose(FETCH(head.log_prob(values, scaled)), FETCH(log_probability), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("bound", [-1.0, 1.0])
def test_log_prob_at_the_bounds_is_finite(bound: float) -> None:
    head = SquashedGaussian().bind(spaces.Box(-1.0, 1.0, (1,)))
    values = tensor([[0.0, 0.0], [9.0, -1.0], [-9.0, -1.0], [0.0, -30.0]])
    assert np.isfinite(FETCH(head.log_prob(values, tensor(np.full((4, 1), bound))))).all()


def test_actions_of_a_team_lie_in_float64_bounds() -> None:
    narrow = spaces.Box(-0.1, 0.1, (1,), np.float64)
    team, head = Team(["a"], [narrow], [narrow]), Joint().bind(spaces.Tuple([narrow]))
    for output in (20.0, -20.0):
        vectors = head.deterministic(np.array([[output]], np.float32))
        for action in (team.actions(vectors[0])[0], team.batched_actions(vectors)[0][0]):
            assert narrow.contains(action) and abs(action[0]) == 0.1

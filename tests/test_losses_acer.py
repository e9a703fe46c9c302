"""Retrace, truncated importance weights and the trust region of ACER, compared with loops and numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from noterl import losses
from noterl.backends import current

Array = np.ndarray


def tensor(value: Array) -> Array:
    return ops.convert_to_tensor(np.asarray(value, np.float32))


def fetched(value: Array) -> Array:
    return current().fetch(value)


def looped_targets(reward: Array, discount: Array, q: Array, after: Array, ratio: Array, continues: Array) -> Array:
    """Return Retrace targets, written as in algorithm 2: from the end, with the target reset at each end."""
    found = np.zeros(reward.shape)
    for lane in range(reward.shape[1]):
        following = 0.0
        for t in reversed(range(len(reward))):
            bootstrap = following if continues[t, lane] else after[t, lane]
            found[t, lane] = reward[t, lane] + discount[t, lane] * bootstrap
            if t:
                value = after[t - 1, lane]  # V(s_t) of the step that this one follows
                following = min(1.0, ratio[t, lane]) * (found[t, lane] - q[t, lane]) + value
    return found


@pytest.mark.parametrize("length", [1, 2, 7, 20])
def test_retrace_equals_the_loop(length: int) -> None:
    generator = np.random.default_rng(length)
    reward, q, after = generator.normal(size=(3, length, 3))
    discount = np.where(generator.random((length, 3)) < 0.2, 0.0, 0.97)
    continues = ((generator.random((length, 3)) < 0.8) & (discount > 0)).astype(float)
    continues[-1] = 0
    ratio = generator.uniform(0.0, 3.0, (length, 3))
    found = fetched(losses.retrace(*map(tensor, (reward, discount, q, after, ratio, continues))))
    np.testing.assert_allclose(
        found, looped_targets(reward, discount, q, after, ratio, continues), rtol=1e-4, atol=1e-5
    )


def test_retrace_equals_numbers_computed_by_hand() -> None:
    # One lane, gamma 0.5: the ratio 0.5 halves the correction of the second step, the ratio 4 counts as 1.
    found = losses.retrace(
        *map(tensor, ([[1], [2], [4]], np.full((3, 1), 0.5), [[0], [3], [1]], [[6], [2], [8]], [[9], [0.5], [4]])),
        tensor([[1], [1], [0]]),
    )
    # From the end: 4 + 0.5 * 8, then 2 + 0.5 * 2 + 0.5 * 1 * (8 - 1), and 1 + 0.5 * 6 + 0.5 * 0.5 * (6.5 - 3).
    assert fetched(found)[:, 0].tolist() == [4.875, 6.5, 8.0]


def test_importance_coefficients_equal_the_formula() -> None:
    generator = np.random.default_rng(0)
    policy, behavior = generator.dirichlet(np.ones(4), (2, 5, 3))
    action, advantage = generator.integers(4, size=(5, 3)), generator.normal(size=(5, 3))
    advantages, bound = generator.normal(size=(5, 3, 4)), 1.5
    expected = np.zeros((5, 3, 4))
    for place in np.ndindex(5, 3):
        for i in range(4):
            ratio = policy[place][i] / behavior[place][i]
            if i == action[place]:
                expected[place][i] += min(bound, ratio) * advantage[place]
            expected[place][i] += max(0.0, 1 - bound / ratio) * policy[place][i] * advantages[place][i]
    taken = np.eye(4)[action]
    found = losses.truncated_importance(
        *map(tensor, (policy, behavior, taken, advantage, advantages)), tensor(bound), 1e-8
    )
    np.testing.assert_allclose(fetched(found), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bound", [0.0, 0.5, 2.0, 100.0])
def test_truncated_importance_is_unbiased(bound: float) -> None:
    """The mean over actions of mu is the policy gradient's coefficient `pi_i A_i`, for every bound."""
    generator = np.random.default_rng(1)
    policy, behavior = generator.dirichlet(np.ones(4), 2)
    advantages = generator.normal(size=4)
    rows = [np.broadcast_to(row, (4, 4)) for row in (policy, behavior)]
    found = losses.truncated_importance(
        *map(tensor, (*rows, np.eye(4), advantages, np.broadcast_to(advantages, (4, 4)))), tensor(bound), 1e-8
    )
    np.testing.assert_allclose(behavior @ fetched(found), policy * advantages, rtol=1e-4, atol=1e-6)


def test_action_of_probability_zero_has_finite_coefficients() -> None:
    policy, behavior = [[0.0, 1.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]
    found = losses.truncated_importance(
        *map(tensor, (policy, behavior, np.eye(2), [1.0, 1.0], np.ones((2, 2)))), tensor(10.0), 1e-6
    )
    assert np.isfinite(fetched(found)).all()


def test_trust_region_returns_the_nearest_vector_that_keeps_the_limit() -> None:
    """Equation 12: z differs from g along k only, and just enough for `k z <= limit`."""
    generator = np.random.default_rng(2)
    gradient, normal = generator.normal(size=(2, 200, 3))
    limit = 0.3
    z, changed = map(fetched, losses.trust_region(tensor(gradient), tensor(normal), tensor(limit)))
    before, after = (normal * gradient).sum(-1), (normal * z).sum(-1)
    assert 20 < changed.sum() < 180 and set(changed) == {0.0, 1.0}
    np.testing.assert_array_equal(changed > 0, before > limit)
    np.testing.assert_allclose(z[before <= limit], gradient[before <= limit], rtol=1e-5)
    np.testing.assert_allclose(after[before > limit], limit, rtol=1e-3, atol=1e-5)
    # No other vector within the limit is nearer to g.
    distance = np.square(gradient - z).sum(-1)
    for _ in range(50):
        other = z + generator.normal(scale=0.2, size=z.shape)
        allowed = (normal * other).sum(-1) <= limit
        assert (np.square(gradient - other).sum(-1) >= distance - 1e-4)[allowed].all()


def test_functions_of_rows_may_return_tuples() -> None:
    array = np.arange(12.0).reshape(3, 2, 2)
    first, second = losses.map_rows(lambda rows: (rows + 1, ops.sum(rows, axis=-1)), tensor(array))
    np.testing.assert_array_equal(fetched(first), array + 1)
    np.testing.assert_array_equal(fetched(second), array.sum(-1))

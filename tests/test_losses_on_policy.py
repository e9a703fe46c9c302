"""Losses and advantages of on-policy agents, compared with float64 loops and numbers computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from noterl import losses
from noterl.backends import current


def tensor(value):
    return ops.convert_to_tensor(np.asarray(value, np.float32))


def fetched(value) -> np.ndarray:
    return current().fetch(value)


def looped_advantages(reward, discount, value, next_value, decay) -> np.ndarray:
    advantage, after = np.zeros(reward.shape), np.zeros(reward.shape[1])
    for t in reversed(range(len(reward))):
        after = reward[t] + discount[t] * next_value[t] - value[t] + decay[t] * after
        advantage[t] = after
    return advantage


@pytest.mark.parametrize("length", [1, 2, 7, 64])
def test_gae_equals_the_loop(length: int) -> None:
    generator = np.random.default_rng(length)
    reward, value, next_value = generator.normal(size=(3, length, 3))
    discount = np.where(generator.random((length, 3)) < 0.2, 0.0, 0.97)
    decay = np.where(generator.random((length, 3)) < 0.3, 0.0, 0.97 * 0.9)
    arrays = (reward, discount, value, next_value, decay)
    found = fetched(losses.gae(*map(tensor, arrays)))
    np.testing.assert_allclose(found, looped_advantages(*arrays), rtol=1e-5, atol=1e-5)


def test_gae_equals_numbers_computed_by_hand() -> None:
    # Two lanes of three steps, gamma 0.5, lambda 1; the first lane's episode is truncated after its second step.
    reward = [[1, 1], [2, 1], [4, 1]]
    value, next_value = [[0, 0], [0, 0], [8, 0]], [[0, 0], [16, 0], [2, 4]]
    advantage = losses.gae(
        *map(tensor, (reward, np.full((3, 2), 0.5), value, next_value, [[0.5, 0.5], [0, 0.5], [0, 0]]))
    )
    # 4 + 0.5 * 2 - 8; 2 + 0.5 * 16; 1 + 0.5 * 10 and 1 + 0.5 * 4; 1 + 0.5 * 3; 1 + 0.5 * 2.5
    assert fetched(advantage).tolist() == [[6.0, 2.25], [10.0, 2.5], [-3.0, 3.0]]


def looped_targets(reward, discount, value, next_value, ratio, continues) -> np.ndarray:
    target = np.zeros(reward.shape)
    for lane in range(reward.shape[1]):
        for t in reversed(range(len(reward))):
            weight = min(1.0, ratio[t, lane])
            after = target[t + 1, lane] if continues[t, lane] else next_value[t, lane]
            error = reward[t, lane] + discount[t, lane] * next_value[t, lane] - value[t, lane]
            target[t, lane] = (
                value[t, lane] + weight * error + discount[t, lane] * weight * (after - next_value[t, lane])
            )
    return target


def rollout(length: int) -> list[np.ndarray]:
    """Return the arguments of `v_trace` for lanes whose episodes end, terminated or truncated."""
    generator = np.random.default_rng(length)
    reward, value, next_value = generator.normal(size=(3, length, 4))
    terminated, truncated = generator.random((2, length, 4)) < 0.15
    continues = (~terminated & ~truncated).astype(float)
    continues[-1] = 0
    # Where a lane goes on, the next observation is the one of the next row.
    next_value[:-1] = np.where(continues[:-1] > 0, value[1:], next_value[:-1])
    ratio = generator.uniform(0.0, 3.0, (length, 4))
    return [reward, np.where(terminated, 0.0, 0.97), value, next_value, ratio, continues]


@pytest.mark.parametrize("length", [1, 2, 7, 64])
def test_v_trace_equals_the_loop(length: int) -> None:
    arrays = rollout(length)
    found = fetched(losses.v_trace(*map(tensor, arrays)))
    np.testing.assert_allclose(found, looped_targets(*arrays), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_v_trace_equals_gae_for_the_policy_that_acted(decay: float) -> None:
    reward, discount, value, next_value, ratio, continues = map(tensor, rollout(20))
    found = losses.v_trace(reward, discount, value, next_value, ops.ones_like(ratio), decay * continues)
    expected = losses.gae(reward, discount, value, next_value, decay * discount * continues)
    np.testing.assert_allclose(fetched(found - value), fetched(expected), rtol=1e-5, atol=1e-5)


def test_v_trace_equals_numbers_computed_by_hand() -> None:
    # Two lanes of two steps, gamma 0.5; the first lane's episode is truncated after its first step.
    reward, discount = tensor([[1, 1], [2, 2]]), tensor(np.full((2, 2), 0.5))
    value, next_value = tensor([[4, 4], [6, 8]]), tensor([[16, 8], [2, 2]])
    found = losses.v_trace(reward, discount, value, next_value, tensor([[0.5, 3], [1, 0.25]]), tensor([[0, 1], [0, 0]]))
    # 6 + 1 * (2 + 0.5 * 2 - 6) and 8 + 0.25 * (3 - 8); 4 + 0.5 * (1 + 0.5 * 16 - 4) and 1 + 0.5 * 6.75.
    assert fetched(found).tolist() == [[6.5, 4.375], [3.0, 6.75]]


def test_clipped_surrogate_is_the_larger_loss() -> None:
    ratio, advantage = [1.5, 1.5, 0.5, 0.5, 1.1, 0.9], [2.0, -2.0, 2.0, -2.0, 3.0, -3.0]
    found = losses.clipped_surrogate(tensor(np.log(ratio)), tensor(np.zeros(6)), tensor(advantage), 0.25)
    np.testing.assert_allclose(fetched(found), [-2.5, 3.0, -1.0, 1.5, -3.3, 2.7], rtol=1e-6)


def test_value_error_with_and_without_clipping() -> None:
    value, target, old = tensor([3.0, 1.0, 0.0]), tensor([4.0, 0.0, 0.0]), tensor([1.0, 1.0, 5.0])
    assert fetched(losses.value_error(value, target)).tolist() == [1.0, 1.0, 0.0]
    # Clipped to 2, 1 and 4: errors 4, 1 and 16.
    assert fetched(losses.value_error(value, target, old, tensor(1.0))).tolist() == [4.0, 1.0, 16.0]


def test_rows_with_weight_zero_do_not_count() -> None:
    values, weight = tensor([1.0, 2.0, 3.0, 1000.0]), tensor([1.0, 1.0, 1.0, 0.0])
    assert float(fetched(losses.masked_mean(values, weight))) == 2.0
    assert float(fetched(losses.masked_mean(values, tensor(np.zeros(4))))) == 0.0
    found = fetched(losses.normalize(values, weight))[:3]
    np.testing.assert_allclose(found, np.array([-1.0, 0.0, 1.0]) / np.sqrt(2 / 3), rtol=1e-6)


def test_approximate_kl_equals_its_formula() -> None:
    ratio = np.array([0.5, 1.0, 2.0])
    found = losses.approximate_kl(tensor(np.log(ratio)), tensor(np.zeros(3)))
    np.testing.assert_allclose(fetched(found), ratio - 1 - np.log(ratio), atol=1e-6)


def test_normalized_does_not_change_a_single_row() -> None:
    one, several = np.array([3.0], np.float32), np.array([1.0, 3.0], np.float32)
    fetch = ops.convert_to_numpy
    assert fetch(losses.normalize(ops.convert_to_tensor(one), ops.ones((1,)))).tolist() == [3.0]
    np.testing.assert_allclose(fetch(losses.normalize(ops.convert_to_tensor(several), ops.ones((2,)))), [-1.0, 1.0])

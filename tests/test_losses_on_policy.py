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

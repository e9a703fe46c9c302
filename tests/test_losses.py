"""Losses and their gradients, compared with numbers computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from noterl import losses
from noterl.backends import current


def tensor(*values, dtype: str = "float32"):
    return ops.convert_to_tensor(np.array(values, dtype))


def numbers(value) -> list:
    return current().fetch(value).tolist()


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_take_returns_the_values_of_the_actions(dtype: str) -> None:
    values = tensor([1, 2, 3], [4, 5, 6], [7, 8, 9], [-1, -2, -3])
    assert numbers(losses.take(values, tensor(2, 0, 1, 2, dtype=dtype))) == [3, 4, 8, -3]


def test_td_target_of_a_terminated_row_is_its_reward() -> None:
    # reward + discount * next value
    target = losses.td_target(tensor(1, -1, 2), tensor(0.5, 0, 0.25), tensor(4, 100, -8))
    assert numbers(target) == [3, -1, 0]


def test_huber_is_quadratic_up_to_delta_and_linear_beyond() -> None:
    errors = tensor(0, 0.5, -0.5, 1, -1, 3, -3)
    # 0.5 e^2 within 1, |e| - 0.5 beyond
    assert numbers(losses.huber(errors)) == [0, 0.125, 0.125, 0.5, 0.5, 2.5, 2.5]
    # 0.5 e^2 within 2, 2 (|e| - 1) beyond
    assert numbers(losses.huber(errors, delta=2.0)) == [0, 0.125, 0.125, 0.5, 0.5, 4, 4]


def test_squared_is_half_the_square() -> None:
    assert numbers(losses.squared(tensor(0, 0.5, -3))) == [0, 0.125, 4.5]


def test_weighted_mean_divides_by_the_number_of_rows() -> None:
    mean = losses.weighted_mean(tensor(2, 4, 100, 8), tensor(1, 0.5, 0, 1))
    assert numbers(mean) == (2 + 2 + 0 + 8) / 4


@pytest.mark.backends("tensorflow")
def test_gradients_on_tensorflow() -> None:
    import tensorflow as tf

    def gradient(function, start):
        with tf.GradientTape() as tape:
            tape.watch(start)
            value = ops.sum(function(start))
        return tape.gradient(value, start)

    check_gradients(gradient)


@pytest.mark.backends("jax")
def test_gradients_on_jax() -> None:
    import jax

    check_gradients(lambda function, start: jax.grad(lambda x: ops.sum(function(x)))(start))


@pytest.mark.backends("torch")
def test_gradients_on_torch() -> None:
    import torch

    def gradient(function, start):
        start = start.clone().requires_grad_()
        value = ops.sum(function(start))
        return torch.autograd.grad(value, start)[0] if value.requires_grad else None

    check_gradients(gradient)


def check_gradients(gradient) -> None:
    errors = tensor(0, 0.5, -0.5, 3, -3)
    assert numbers(gradient(losses.huber, errors)) == [0, 0.5, -0.5, 1, -1], "the error, clipped to [-1, 1]"
    assert numbers(gradient(lambda e: losses.huber(e, 2.0), errors)) == [0, 0.5, -0.5, 2, -2]
    assert numbers(gradient(losses.squared, errors)) == [0, 0.5, -0.5, 3, -3]
    action = tensor(1, 0, 1, 1, 0, dtype="int32")
    pair = gradient(lambda e: losses.take(ops.stack([e, 10 * e], axis=-1), action), errors)
    assert numbers(pair) == [10, 1, 10, 10, 1]
    target = gradient(lambda e: losses.td_target(e, tensor(0.9) + 0 * e, e), errors)
    assert target is None or not any(numbers(target)), "a target must have no gradient"

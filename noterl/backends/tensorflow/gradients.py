"""Taking gradients and applying optimizers on TensorFlow, and tracking whether all numbers are finite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import keras
import tensorflow as tf

from noterl.backends import replicas
from noterl.backends.common import Stack, split_loss

T = TypeVar("T")

_flags = Stack()


class FiniteFlag:
    """Tracks whether the losses, and unless `losses_only` the gradients, are finite inside the context.

    Attributes:
        value: a boolean tensor. Each `minimize` combines it with its own numbers.
    """

    def __init__(self, *, losses_only: bool) -> None:
        self.losses_only = losses_only
        self.value = tf.constant(True)

    def __enter__(self) -> FiniteFlag:
        _flags.push(self)
        return self

    def __exit__(self, *error: object) -> None:
        _flags.pop()


def minimize(
    loss_fn: Callable[..., Any], trained: Sequence[keras.Variable], optimizer: Any, args: tuple, **unused: Any
) -> tuple[Any, Any]:
    """Take the gradients of `loss_fn(*args)`, apply the optimizer and return `(loss, aux)`.

    Args:
        loss_fn: returns a scalar, or a pair of a scalar and anything.
        trained: the variables to differentiate with respect to.
        optimizer: receives None as the gradient of a variable that the loss does not depend on.
        args: the arguments of `loss_fn`.
        unused: options of the other backends.
    """
    replica: Any = replicas.active()
    take = partial(_gradients_of_loss, loss_fn, trained, args)
    loss, aux, found = take() if replica is None else replica.mean_gradients(take, partial(loss_fn, *args))
    flag = _flags.top
    if flag is not None:
        flag.value &= tf.math.is_finite(loss)
        if not flag.losses_only:
            for gradient in found:
                if gradient is not None:
                    flag.value &= tf.reduce_all(tf.math.is_finite(gradient))
    if replica is None:
        optimizer.apply(found, list(trained))
    else:
        replica.apply(optimizer, found, list(trained))
    return loss, aux


def _gradients_of_loss(
    loss_fn: Callable[..., Any], trained: Sequence[keras.Variable], args: tuple
) -> tuple[Any, Any, list[Any]]:
    """Return the loss, the auxiliary values and the gradients, which are None for unused variables."""
    with tf.GradientTape() as tape:
        loss, aux = split_loss(loss_fn(*args))
    return loss, aux, tape.gradient(loss, [variable.value for variable in trained])


def and_finite(finite: Any) -> None:
    """Combine a boolean tensor with the flag of the current context, if there is one."""
    flag = _flags.top
    if flag is not None:
        flag.value &= finite


def gradients(function: Callable[[], Any], variables: Sequence[keras.Variable]) -> tuple[Any, list[Any]]:
    """Return the scalar `function()` and its gradients, which are zero for unused variables."""
    values = [variable.value for variable in variables]
    with tf.GradientTape() as tape:
        value = function()
    return value, tape.gradient(value, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def hessian_product(
    function: Callable[[], Any], variables: Sequence[keras.Variable]
) -> Callable[[list[Any]], list[Any]]:
    """Return the product of the Hessian of the scalar `function()` with a vector, as a function.

    The vector has one tensor for each variable. The gradient is recorded once, and each product differentiates it, so
    it may be called in a loop of `keras.ops`.
    """
    values = [variable.value for variable in variables]
    with tf.GradientTape(persistent=True) as tape:
        first = gradients(function, variables)[1]

    def product(vector: list[Any]) -> list[Any]:
        return tape.gradient(first, values, vector, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    return product


def isolated(function: Callable[[], T], variables: Sequence[keras.Variable]) -> T:
    """Return `function()`, and undo what it assigns to `variables`; also inside a compiled call."""
    old = [variable.value.read_value() for variable in variables]
    try:
        return function()
    finally:
        for variable, value in zip(variables, old, strict=True):
            variable.value.assign(value)

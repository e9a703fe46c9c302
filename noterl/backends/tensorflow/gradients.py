"""Taking gradients and applying optimizers on TensorFlow, and tracking whether all numbers are finite."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import tensorflow as tf

from noterl.backends import replicas
from noterl.backends.common import Loss, Stack, Variables, no_gradient, split_loss

T = TypeVar("T")

_flags: Stack[Any] = Stack()


class FiniteFlag:
    """Tracks whether the losses, and unless `losses_only` the gradients, are finite inside the context.

    Attributes:
        value: a boolean tensor. Each `minimize` combines the tensor with checks of new numbers.
    """

    def __init__(self, *, losses_only: bool) -> None:
        self.losses_only = losses_only
        self.value = tf.constant(True)

    def __enter__(self) -> FiniteFlag:
        _flags.push(self)
        return self

    def __exit__(self, *error: object) -> None:
        _flags.pop()


def minimize(loss_fn: Loss, trained: Variables, optimizer: Any, args: tuple, **unused: Any) -> tuple[Any, Any]:
    """Take a gradient step; the optimizer receives None for a variable that the loss does not depend on."""
    replica: Any = replicas.active.top
    take = partial(_gradients_of_loss, loss_fn, trained, args)
    loss, aux, grads = take() if replica is None else replica.mean_gradients(take, partial(loss_fn, *args))
    flag = _flags.top
    if flag is not None:
        flag.value &= tf.math.is_finite(loss)
        if not flag.losses_only:
            flag.value &= all_finite(grads)
    if replica is None:
        optimizer.apply(grads, list(trained))
    else:
        replica.apply(optimizer, grads, list(trained))
    return loss, aux


def all_finite(tensors: Iterable[Any]) -> Any:
    """Return whether all floating-point tensors are finite; None, a missing gradient, counts as finite.

    There is one reduction for each dtype: XLA would compute a chain of conditions again for each variable whose new
    value depends on the conditions, and take seconds to compile this.
    """
    of_dtype: dict[Any, list[Any]] = {}
    for tensor in tensors:
        if tensor is not None:
            of_dtype.setdefault(tensor.dtype, []).append(tf.reshape(tensor, [-1]))
    finite = [tf.reduce_all(tf.math.is_finite(tf.concat(values, 0))) for values in of_dtype.values()]
    return tf.reduce_all(tf.stack(finite)) if finite else tf.constant(True)


def _gradients_of_loss(loss_fn: Loss, trained: Variables, args: tuple) -> tuple[Any, Any, list[Any]]:
    """Return the loss, the auxiliary values and the gradients, which are None for unused variables."""
    with tf.GradientTape() as tape:
        loss, aux = split_loss(loss_fn(*args))
    grads = tape.gradient(loss, [_own_value(variable.value) for variable in trained])
    if all(gradient is None for gradient in grads):
        raise no_gradient(loss_fn)
    return loss, aux, grads


def _own_value(value: Any) -> Any:
    """Return the first copy of a variable that was made in the scope of a strategy, which `leave_scope` will keep."""
    return value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value


def and_finite(finite: Any) -> None:
    """Combine a boolean tensor with the flag of the current context, if there is one."""
    flag = _flags.top
    if flag is not None:
        flag.value &= finite


def gradients(function: Callable[[], Any], variables: Variables) -> tuple[Any, list[Any]]:
    """Return the scalar `function()` and the gradients."""
    values = [variable.value for variable in variables]
    with tf.GradientTape() as tape:
        value = function()
    return value, tape.gradient(value, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def hessian_product(function: Callable[[], Any], variables: Variables) -> Callable[[list[Any]], list[Any]]:
    """Return a function that multiplies the Hessian of `function()` by a vector; see `Backend.hessian_product`."""
    values = [variable.value for variable in variables]
    # Persistent, because each product differentiates the recorded gradient again.
    with tf.GradientTape(persistent=True) as tape:
        first = gradients(function, variables)[1]
    return lambda vector: tape.gradient(first, values, vector, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def isolated(function: Callable[[], T], variables: Variables) -> T:
    """Return `function()`, and undo the assignments to `variables`; also inside a compiled call."""
    old = [variable.value.read_value() for variable in variables]
    try:
        return function()
    finally:
        for variable, value in zip(variables, old, strict=True):
            variable.value.assign(value)

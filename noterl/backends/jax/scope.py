"""Pure functions of Keras variables on JAX: scopes that hold the variables' values, and gradients inside of scopes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import keras

from noterl.backends import common, replicas
from noterl.backends.common import Loss, Stack, Variables, count_period, is_dense, no_gradient, split_loss

T = TypeVar("T")

_scopes: Stack[Any] = Stack()


class Scope(keras.StatelessScope):
    """A stateless scope that raises if code uses a variable that was not passed to the scope.

    JAX would compile an unknown variable as a constant, and lose what is assigned to the variable.

    Args:
        variables: the known variables.
        values: the values of the variables.

    Attributes:
        finite: whether every loss and gradient so far is finite.
        finite_losses: whether every loss so far is finite.
    """

    def __init__(self, variables: Sequence[keras.Variable], values: Sequence[Any]) -> None:
        super().__init__()
        self.variables = variables
        self.state_mapping: dict[int, Any] = dict(zip(map(id, variables), values, strict=True))
        self.finite: Any = True
        self.finite_losses: Any = True

    def __enter__(self) -> Scope:
        super().__enter__()
        _scopes.push(self)
        return self

    def __exit__(self, *args: Any, **kwargs: Any) -> None:
        _scopes.pop()
        super().__exit__(*args, **kwargs)

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Return the value of a known variable."""
        self._check(variable, "read")
        return self.state_mapping[id(variable)]

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Assign a value to a known variable."""
        self._check(update[0], "assigned")
        super().add_update(update)

    def values(self) -> list[Any]:
        """Return the current values of the known variables, in order."""
        return [self.state_mapping[id(variable)] for variable in self.variables]

    def _check(self, variable: keras.Variable, verb: str) -> None:
        """Raise a RuntimeError for a variable that was not passed to the scope."""
        if id(variable) not in self.state_mapping:
            raise RuntimeError(
                f"the variable {variable.path!r} of shape {tuple(variable.shape)} is {verb} in a compiled call but "
                "does not belong to the agent: keep the variable, network or seed generator as an attribute of the "
                "agent (or in a list, tuple or dict that is one) before training starts"
            )


def in_scope() -> bool:
    """Whether variables are read and assigned in a scope, as in updates."""
    return _scopes.top is not None


def is_tracing() -> bool:
    """Whether the current code is being compiled: the code runs once, and Python numbers become constants."""
    return in_scope() and not jax.config.jax_disable_jit


def compiler(jit_compile: bool | str) -> Callable[[Callable], Callable]:
    """Return `jax.jit`; if `jit_compile` is False, a decorator that runs each operation eagerly, also in loops."""
    return jax.disable_jit() if jit_compile is False else jax.jit


def loops_are_fast(variables: Sequence[Any]) -> bool:
    """Return whether updates of these variables are fast inside of compiled loops; see `SeparateUpdates`."""
    return is_dense(variables) or jax.default_backend() != "cpu"


def read_values(variables: Sequence[keras.Variable]) -> list[Any]:
    """Return the arrays of variables, outside of any scope."""
    return [variable._value for variable in variables]


def write_values(variables: Sequence[keras.Variable], values: Sequence[Any]) -> None:
    """Replace the arrays of variables, outside of any scope."""
    for variable, value in zip(variables, values, strict=True):
        variable._value = value


def dry_run(function: Callable[[], None], variables: Variables, jit_compile: bool | str = "auto") -> None:
    """Call `function` for the side effects in Python, and discard the assignments to `variables`.

    Unless `jit_compile` is False, only shapes are computed, because computing values would compile each operation.
    """
    run = partial(isolated, function, variables)
    if jit_compile is False:
        with jax.disable_jit():
            run()
    else:
        jax.eval_shape(run)


def isolated(function: Callable[[], T], variables: Sequence[keras.Variable]) -> T:
    """Return `function()`, and discard the assignments to `variables`; also inside a compiled call."""
    # Inside a compiled call, the outer scope has the current values.
    outer = _scopes.top
    scope = Scope(outer.variables, outer.values()) if outer else Scope(variables, read_values(variables))
    with scope:
        return function()


def _objective(
    loss_fn: Loss, trained: Variables, args: tuple, must_depend: bool = False
) -> tuple[Callable[[list[Any]], tuple[Any, tuple[Any, dict[int, Any]]]], list[Any]]:
    """Return `loss_fn(*args)` as a function of the values of `trained`, inside a scope, and the current values.

    The function returns `(loss, (aux, assigned))`; `assigned` are the new values of assigned variables, by position in
    the scope.
    """
    outer: Any = _scopes.top
    positions = {id(variable): position for position, variable in enumerate(trained)}

    def objective(values: list[Any]) -> tuple[Any, tuple[Any, dict[int, Any]]]:
        start = [
            values[positions[id(variable)]] if id(variable) in positions else value
            for variable, value in zip(outer.variables, outer.values(), strict=True)
        ]
        with Scope(outer.variables, start) as inner:
            loss, aux = split_loss(loss_fn(*args))
        # A value that depends on differentiated ones belongs to the same trace of JAX.
        if must_depend and getattr(loss, "_trace", None) is not values[0]._trace:
            raise no_gradient(loss_fn)
        pairs = enumerate(zip(inner.values(), start, strict=True))
        return loss, (aux, {position: new for position, (new, old) in pairs if new is not old})

    return objective, [outer.get_current_value(variable) for variable in trained]


def _gradients(loss_fn: Loss, trained: Variables, args: tuple, must_depend: bool = False) -> tuple[Any, Any, list[Any]]:
    """Return `(loss, aux, gradients)` of `loss_fn(*args)`, inside a scope, which receives the assignments."""
    outer: Any = _scopes.top
    objective, values = _objective(loss_fn, trained, args, must_depend)
    (loss, (aux, assigned)), grads = jax.value_and_grad(objective, has_aux=True)(values)
    # The loss ran in an inner scope, so the outer one has not received the assignments.
    for position, value in assigned.items():
        outer.state_mapping[id(outer.variables[position])] = value
    # Each process has computed the loss of a share of the batch.
    if (over := replicas.active.top) is not None:
        loss, *grads = over.mean_of_all([loss, *grads])
    return loss, aux, grads


def gradients(function: Callable[[], Any], variables: Sequence[keras.Variable]) -> tuple[Any, list[Any]]:
    """Return the scalar `function()` and the gradients."""
    value, _, grads = _gradients(function, variables, ())
    return value, grads


def hessian_product(function: Callable[[], Any], variables: Variables) -> Callable[[list[Any]], list[Any]]:
    """Linearize the gradient once; each product is a linear function of the vector."""
    objective, values = _objective(function, variables, ())
    product: Callable[[list[Any]], list[Any]] = jax.linearize(jax.grad(lambda new: objective(new)[0]), values)[1]
    over = replicas.active.top
    return product if over is None else lambda vector: over.mean_of_all(product(vector))


def minimize(
    loss_fn: Loss, trained: Variables, optimizer: Any, args: tuple, *, known: Variables = (), **unused: Any
) -> tuple[Any, Any]:
    """Take a gradient step; `known` is used outside of a compiled call only."""
    if _scopes.top is None:
        with Scope(known, read_values(known)) as scope:
            result = minimize(loss_fn, trained, optimizer, args)
        write_values(known, scope.values())
        return result
    loss, aux, grads = _gradients(loss_fn, trained, args, must_depend=True)
    outer = _scopes.top
    # Part of the compiled program: the host reads one flag for all updates of a call.
    outer.finite_losses &= jnp.isfinite(loss)
    outer.finite &= outer.finite_losses
    for gradient in grads:
        outer.finite &= jnp.isfinite(gradient).all()
    if isinstance(optimizer, keras.optimizers.Optimizer):  # others record gradients
        count = optimizer._iterations
        # Keras's count would overflow; see `LARGEST_COUNT`.
        count.assign_sub(jnp.where(count.value < common.LARGEST_COUNT, 0, count_period(optimizer)))
    optimizer.apply(grads, list(trained))
    return loss, aux

"""The JAX backend: a group of updates is one jitted while loop over a pure state.

Owns: every import of JAX. The variables of an agent are taken out, threaded through the compiled call with their
buffers donated, and written back after it, so that whoever looks at a variable sees the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from noterl.backends.common import GroupResult, must_loop, split_loss
from noterl.types import Batch

if TYPE_CHECKING:
    from noterl.agent import Agent

_scopes: list[_Scope] = []


class _Scope(keras.StatelessScope):
    """A stateless scope that knows every variable of the agent, and raises for any other.

    A variable outside the mapping would be baked into the compiled function as a constant, and what is assigned to it
    lost.
    """

    def __init__(self, variables: Sequence[keras.Variable], values: Sequence[Any]) -> None:
        super().__init__()
        self.variables = variables
        self.state_mapping = {id(variable): value for variable, value in zip(variables, values, strict=True)}
        self.finite: Any = True

    def __enter__(self) -> _Scope:
        super().__enter__()
        _scopes.append(self)
        return self

    def __exit__(self, *args: Any, **kwargs: Any) -> None:
        _scopes.pop()
        super().__exit__(*args, **kwargs)

    def get_current_value(self, variable: keras.Variable) -> Any:
        self._check(variable, "read")
        return self.state_mapping[id(variable)]

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        self._check(update[0], "assigned")
        super().add_update(update)

    def values(self) -> list[Any]:
        """Return the current value of every known variable, in order."""
        return [self.state_mapping[id(variable)] for variable in self.variables]

    def _check(self, variable: keras.Variable, verb: str) -> None:
        if id(variable) not in self.state_mapping:
            raise RuntimeError(
                f"the variable {variable.path!r} of shape {tuple(variable.shape)} is {verb} in a compiled update but "
                "is no part of the agent: keep the variable, network or seed generator as an attribute of the agent "
                "(or in a list, tuple or dict that is one) before training starts"
            )


def fetch(value: Any) -> np.ndarray:
    """Return a device value (array or `keras.Variable`) as a NumPy array of its own."""
    return np.array(value._value if isinstance(value, keras.Variable) else value)


def device_name() -> str:
    """Return JAX's default device."""
    return str(jax.devices()[0])


class HostWeights:
    """Weights as NumPy arrays of their own: a view would hold on to a buffer that the next call donates.

    Args:
        variables: whose weights.
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        self._variables = variables
        self._seen: list[Any] = [None] * len(variables)
        self._arrays = [np.empty(variable.shape, variable.dtype) for variable in variables]

    def __call__(self) -> list[np.ndarray]:
        """Return the present weights; those whose array is still the one seen last are not fetched again."""
        for position, variable in enumerate(self._variables):
            value = variable._value
            if value is not self._seen[position]:
                np.copyto(self._arrays[position], value)
                self._seen[position] = value
        return self._arrays


@jax.jit
def _copied(values: list[jax.Array]) -> list[jax.Array]:
    return [jnp.copy(value) for value in values]


@jax.jit
def _moved(sources: list[jax.Array], targets: list[jax.Array], tau: float) -> list[jax.Array]:
    return [_polyak(source, target, tau) for source, target in zip(sources, targets, strict=True)]


def _polyak(source: Any, target: Any, tau: Any) -> Any:
    if not jnp.issubdtype(jnp.result_type(target), jnp.floating):
        return source
    return jnp.where(tau == 1.0, source, target + tau * (source - target))


def copy_variables(sources: Sequence[keras.Variable], targets: Sequence[keras.Variable], tau: Any) -> None:
    """Move the targets towards the sources by `tau`; one compiled call on the host, part of the trace inside one."""
    if _scopes:
        coefficient = keras.ops.convert_to_tensor(tau)
        for source, target in zip(sources, targets, strict=True):
            target.assign(_polyak(source.value, target.value, coefficient))
        return
    coefficient = float(tau)
    values = [source._value for source in sources]
    if coefficient == 1.0:
        moved = _copied(values)
    else:
        moved = _moved(values, [target._value for target in targets], coefficient)
    for target, value in zip(targets, moved, strict=True):
        target._value = value


def minimize(
    agent: Agent, loss_fn: Callable[..., Any], variables: Sequence[keras.Variable], optimizer: Any, args: tuple
) -> tuple[Any, Any]:
    """Take the gradient of `loss_fn(*args)` and let the optimizer apply it, inside the scope of the update."""
    if not _scopes:
        return _minimize_eagerly(agent, loss_fn, variables, optimizer, args)
    outer = _scopes[-1]
    trained = {id(variable): position for position, variable in enumerate(variables)}

    def objective(values: list[Any]) -> tuple[Any, tuple[Any, list[Any]]]:
        known = [
            values[trained[id(variable)]] if id(variable) in trained else value
            for variable, value in zip(outer.variables, outer.values(), strict=True)
        ]
        with _Scope(outer.variables, known) as inner:
            loss, aux = split_loss(loss_fn(*args))
        side = [
            value
            for variable, value in zip(outer.variables, inner.values(), strict=True)
            if id(variable) not in trained
        ]
        return loss, (aux, side)

    start = [outer.get_current_value(variable) for variable in variables]
    (loss, (aux, side)), gradients = jax.value_and_grad(objective, has_aux=True)(start)
    others = [variable for variable in outer.variables if id(variable) not in trained]
    for variable, value in zip(others, side, strict=True):
        outer.state_mapping[id(variable)] = value
    finite = jnp.isfinite(loss)
    for gradient in gradients:
        finite &= jnp.isfinite(gradient).all()
    outer.finite &= finite
    optimizer.apply(gradients, list(variables))
    return loss, aux


def _minimize_eagerly(
    agent: Agent, loss_fn: Callable[..., Any], variables: Sequence[keras.Variable], optimizer: Any, args: tuple
) -> tuple[Any, Any]:
    """Run one step outside a compiled update, for whoever calls `Agent.update` by hand."""
    known = agent.all_variables
    with _Scope(known, [variable._value for variable in known]) as scope:
        result = minimize(agent, loss_fn, variables, optimizer, args)
    for variable, value in zip(known, scope.values(), strict=True):
        variable._value = value
    return result


def compile_update(agent: Agent, jit_compile: bool | str) -> Callable[[Batch, int], GroupResult]:
    """Return the function that runs `count` updates on a group's batches `[K, B, ...]` as one call.

    The number of updates is an argument of the compiled loop, not of its shape: any `count <= K` runs the same code, so
    that how updates are split over calls cannot change a result.
    """
    variables, period = agent.all_variables, agent.update_period

    def once(state: list[Any], batch: Batch, index: int = 0) -> tuple[list[Any], Any, tuple[dict, dict]]:
        with _Scope(variables, state) as scope:
            result = agent.update_once(batch, index)
        finite = scope.finite
        # A select, not a branch: XLA fuses it into the write that the optimizer does anyway.
        new = [
            old if value is old else jnp.where(finite, value, old)
            for value, old in zip(scope.values(), state, strict=True)
        ]
        return new, jnp.asarray(finite), result

    # One branch for each index within the period: Python knows it there, and no start of a group needs its own trace.
    branches = [partial(once, index=index) for index in range(period)]

    def numbered(state: list[Any], batch: Batch, number: Any) -> tuple[list[Any], Any, tuple[dict, dict]]:
        return once(state, batch) if period == 1 else jax.lax.switch(number % period, branches, state, batch)

    def group(state: list[Any], batch: Batch, count: Any, start: Any) -> tuple[list[Any], Any, tuple[dict, dict]]:
        agent.trace_counts["update"] += 1
        first = jax.tree.map(lambda array: array[0], batch)
        size = batch.reward.shape[0]
        if size == 1 and not must_loop(variables):
            state, finite, result = numbered(state, first, start)
            return state, finite.astype(jnp.int32), jax.tree.map(lambda value: value[None], result)
        shapes = jax.eval_shape(once, state, first)[2]
        results = jax.tree.map(lambda shape: jnp.zeros((size, *shape.shape), shape.dtype), shapes)

        def unfinished(carry: tuple) -> Any:
            return (carry[0] < count) & carry[1]

        def body(carry: tuple) -> tuple:
            k, _, applied, state, results = carry
            row = jax.tree.map(lambda array: jax.lax.dynamic_index_in_dim(array, k, keepdims=False), batch)
            state, finite, result = numbered(state, row, start + k)
            results = jax.tree.map(lambda stack, value: stack.at[k].set(value), results, result)
            return k + 1, finite, applied + finite.astype(jnp.int32), state, results

        zero = jnp.zeros((), jnp.int32)
        carry = jax.lax.while_loop(unfinished, body, (zero, jnp.asarray(True), zero, state, results))
        return carry[3], carry[2], carry[4]

    compiled = _interpreted(group) if jit_compile is False else jax.jit(group, donate_argnums=0)

    def run(batch: Batch, count: int) -> GroupResult:
        state = [variable._value for variable in variables]
        if len(set(map(id, state))) < len(state):
            state = _unshared(state)
        state, applied, (logs, feedback) = compiled(state, batch, np.int32(count), np.int32(agent.updates % period))
        for variable, value in zip(variables, state, strict=True):
            variable._value = value
        return GroupResult(logs, feedback, int(applied))

    return run


def _interpreted(function: Callable) -> Callable:
    """Run `function` operation by operation, loops included, so that a debugger can step through an update."""

    def run(*args: Any) -> Any:
        with jax.disable_jit():
            return function(*args)

    return run


def _unshared(state: list[Any]) -> list[Any]:
    """Copy arrays that stand for two variables: one buffer cannot be donated twice."""
    seen: set[int] = set()
    unshared = []
    for value in state:
        unshared.append(jnp.copy(value) if id(value) in seen else value)
        seen.add(id(value))
    return unshared


def compile_forward(agent: Agent, jit_compile: bool | str) -> Callable[[Any], np.ndarray]:
    """Return the jitted forward pass from observations `[N, ...]` to host arrays."""
    variables = agent.all_variables

    def forward(state: list[Any], observation: Any) -> Any:
        agent.trace_counts["forward"] += 1
        with _Scope(variables, state):
            return agent.forward(observation)

    compiled = _interpreted(forward) if jit_compile is False else jax.jit(forward)

    def run(observation: Any) -> np.ndarray:
        return np.asarray(compiled([variable._value for variable in variables], observation))

    return run

"""The JAX backend: a group of updates is one jitted while loop over a pure state.

Owns: every import of JAX. The variables of an agent are taken out, threaded through the compiled call, and written back
after it, so that whoever looks at a variable sees the truth. Their buffers are not donated: the state before a call is
what the agent returns to when an update in it is not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from noterl.backends.common import GroupResult, must_loop, settle, split_loss
from noterl.backends.finite import witnesses
from noterl.backends.transfer import Brief
from noterl.types import Batch

if TYPE_CHECKING:
    from noterl.agent import Agent

_scopes: list[_Scope] = []

# (state, row of the batches, number) -> (state, whether it is finite, what the update gave)
_Update = Callable[[list[Any], Batch, Any], tuple[list[Any], Any, tuple[dict, dict]]]


class _Scope(keras.StatelessScope):
    """A stateless scope that knows every variable of the agent, and raises for any other.

    A variable outside the mapping would be baked into the compiled function as a constant, and what is assigned to it
    lost.
    """

    def __init__(self, variables: Sequence[keras.Variable], values: Sequence[Any]) -> None:
        super().__init__()
        self.variables = variables
        self.state_mapping = {id(variable): value for variable, value in zip(variables, values, strict=True)}
        self.finite: Any = True  # whether every loss and gradient so far is finite
        self.finite_losses: Any = True

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


def is_tracing() -> bool:
    """Return whether what runs now is being compiled, so that it is run once and numbers in it never change."""
    return bool(_scopes)


def device_name() -> str:
    """Return JAX's default device."""
    return str(jax.devices()[0])


class HostWeights:
    """Weights as NumPy arrays; on the CPU these are views of JAX's own, which never change.

    Args:
        variables: whose weights.
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        self._variables = variables

    def __call__(self) -> list[np.ndarray]:
        """Return the present weights."""
        return [np.asarray(variable._value) for variable in self._variables]


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
    moved = [source._value for source in sources]  # shared, not copied: arrays never change, and none is donated
    if coefficient != 1.0:
        moved = _moved(moved, [target._value for target in targets], coefficient)
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

    def objective(values: list[Any]) -> tuple[Any, tuple[Any, dict[int, Any]]]:
        known = [
            values[trained[id(variable)]] if id(variable) in trained else value
            for variable, value in zip(outer.variables, outer.values(), strict=True)
        ]
        with _Scope(outer.variables, known) as inner:
            loss, aux = split_loss(loss_fn(*args))
        side = {
            position: value
            for position, (variable, value) in enumerate(zip(outer.variables, inner.values(), strict=True))
            if id(variable) not in trained and value is not known[position]
        }
        return loss, (aux, side)

    start = [outer.get_current_value(variable) for variable in variables]
    (loss, (aux, side)), gradients = jax.value_and_grad(objective, has_aux=True)(start)
    for position, value in side.items():
        outer.state_mapping[id(outer.variables[position])] = value
    outer.finite_losses &= jnp.isfinite(loss)
    outer.finite &= outer.finite_losses
    for gradient in gradients:
        outer.finite &= jnp.isfinite(gradient).all()
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


def rehearse(agent: Agent, known: Sequence[keras.Variable], function: Callable[[], None]) -> None:
    """Call `function` for what it notes about the agent; no number is computed, which would compile each operation."""

    def run() -> tuple:
        with _Scope(known, [variable._value for variable in known]):
            function()
        return ()

    if agent.jit_compile is False:
        function()
    else:
        jax.eval_shape(run)


def compile_update(agent: Agent, jit_compile: bool | str) -> Callable[[Batch, int], GroupResult]:
    """Return the function that runs `count` updates on a group's batches `[K, B, ...]` as one call.

    The number of updates is an argument of the compiled loop, not of its shape: any `count <= K` runs the same code, so
    that how updates are split over calls cannot change a result.
    """
    program = _Program(agent, jit_compile)

    def run(batch: Batch, count: int) -> GroupResult:
        result = program.apply(batch, count)
        if result is not None:
            return result
        located, given = program.locate(batch, count)
        return GroupResult(*given, settle(lambda fewer: program.apply(batch, fewer) is not None, located, count))

    return run


class _Program:
    """The compiled group of an agent.

    Whether all updates of a call are finite is asked once, of their losses and of the state that they leave: a gradient
    that is not finite leaves no finite state. Looking at every gradient as it comes costs a fifth of a small update;
    that is done, by a second program, only to find out which update it was.

    Args:
        agent: built.
        jit_compile: as `Agent.compile` takes it.
    """

    def __init__(self, agent: Agent, jit_compile: bool | str) -> None:
        self._agent, self._variables = agent, agent.all_variables
        self._moved: list[int] | None = None  # positions of the variables that an update assigns
        self._brief = Brief(jnp.concatenate)
        compiled = _interpreted if jit_compile is False else jax.jit
        self._apply, self._locate = compiled(self._group), compiled(self._search)

    def apply(self, batch: Batch, count: int) -> GroupResult | None:
        """Make the updates, and return what they gave; if one of them is not finite, change nothing and return None."""
        state = [variable._value for variable in self._variables]
        if self._moved is None:
            self._moved = self._find_moved(state, batch)
        vector, moved, (logs, feedback) = self._apply(state, batch, *self._numbers(count))
        finite, logs, weights = self._brief.read(np.asarray(vector), logs)
        if not finite:
            return None
        for position, value in zip(self._moved, moved, strict=True):
            self._variables[position]._value = value
        return GroupResult(logs, feedback, count, weights=weights)

    def locate(self, batch: Batch, count: int) -> tuple[int, tuple[dict, dict]]:
        """Return how many updates are finite, up to the first that is not, and what they gave; nothing is changed."""
        state = [variable._value for variable in self._variables]
        applied, result = self._locate(state, batch, *self._numbers(count))
        return int(applied), result

    def _numbers(self, count: int) -> tuple[np.int32, np.int32]:
        return np.int32(count), np.int32(self._agent.updates % self._agent.update_period)

    def _find_moved(self, state: list[Any], batch: Batch) -> list[int]:
        moved: set[int] = set()

        def trace(state: list[Any], batch: Batch) -> None:
            for index in range(self._agent.update_period):
                values = self._once(state, _row(batch, 0), index)[0].values()
                moved.update(k for k, value in enumerate(values) if value is not state[k])

        jax.eval_shape(trace, state, batch)
        return sorted(moved)

    def _once(self, state: list[Any], batch: Batch, index: int) -> tuple[_Scope, tuple[dict, dict]]:
        with _Scope(self._variables, state) as scope:
            result = self._agent.update_once(batch, index)
        return scope, result

    def _group(self, state: list[Any], batch: Batch, count: Any, start: Any) -> tuple[Any, list[Any], tuple]:
        self._agent.trace_counts["update"] += 1
        positions = self._moved or []

        def once(moved: list[Any], row: Batch, index: int = 0) -> tuple[list[Any], Any, tuple[dict, dict]]:
            scope, result = self._once(_with(state, positions, moved), row, index)
            values = scope.values()
            return [values[k] for k in positions], jnp.asarray(scope.finite_losses), result

        numbered, moved = self._numbered(once), [state[k] for k in positions]
        if batch.reward.shape[0] == 1 and not batch.extra and not must_loop(self._variables):
            moved, finite, result = numbered(moved, _row(batch, 0), start)
            result = jax.tree.map(lambda value: value[None], result)
        else:
            _, moved, finite, result = _repeat(numbered, moved, batch, count, start, stop=False)
        finite &= all_finite(moved)
        vector, logs = write_brief(self._agent, self._brief, finite, result[0], _with(state, positions, moved))
        return vector, moved, (logs, result[1])

    def _search(self, state: list[Any], batch: Batch, count: Any, start: Any) -> tuple[Any, tuple[dict, dict]]:
        def once(state: list[Any], row: Batch, index: int = 0) -> tuple[list[Any], Any, tuple[dict, dict]]:
            scope, result = self._once(state, row, index)
            return scope.values(), jnp.asarray(scope.finite), result

        ran, _, finite, result = _repeat(self._numbered(once), state, batch, count, start, stop=True)
        return jnp.where(finite, ran, ran - 1), result

    def _numbered(self, once: Callable) -> _Update:
        """Return `once` for the update of a number: one branch for each index within the period, known to Python."""
        period = self._agent.update_period
        if period == 1:
            return lambda state, row, number: once(state, row)
        branches = [partial(once, index=index) for index in range(period)]
        return lambda state, row, number: jax.lax.switch(number % period, branches, state, row)


def all_finite(values: Sequence[Any]) -> Any:
    """Return whether all floating values are finite; asked of one array, since each reduction has its price."""
    return jnp.isfinite(jnp.concatenate([value.ravel() for value in witnesses(values)])).all()


def write_brief(agent: Agent, brief: Brief, finite: Any, logs: dict, state: Sequence[Any]) -> tuple[Any, dict]:
    """Return the brief of a call that leaves this state, and the logs that are no part of it."""
    known = {id(variable): value for variable, value in zip(agent.all_variables, state, strict=True)}
    weights = [known[id(variable)].ravel() for variable in agent.acting.packed]
    return brief.write(finite.astype(jnp.float32)[None], logs, weights)


def _repeat(
    once: _Update, state: list[Any], batch: Batch, count: Any, start: Any, *, stop: bool
) -> tuple[Any, list[Any], Any, tuple[dict, dict]]:
    """Make `count` updates, each on its row of the batches; with `stop` none after one that is not finite.

    Returns:
        how many ran, the state, whether all were finite, and what they gave, `[K, ...]` each.
    """
    size = batch.reward.shape[0]
    shapes = jax.eval_shape(once, state, _row(batch, 0), start)[2]
    results = jax.tree.map(lambda shape: jnp.zeros((size, *shape.shape), shape.dtype), shapes)

    def unfinished(carry: tuple) -> Any:
        return (carry[0] < count) & carry[2] if stop else carry[0] < count

    def body(carry: tuple) -> tuple:
        k, state, finite, results = carry
        state, good, result = once(state, _apart(batch, k), start + k)
        results = jax.tree.map(lambda stack, value: stack.at[k].set(value), results, result)
        return k + 1, state, finite & good, results

    return jax.lax.while_loop(unfinished, body, (jnp.zeros((), jnp.int32), state, jnp.asarray(True), results))


def _row(batch: Batch, k: Any) -> Batch:
    return jax.tree.map(lambda array: jax.lax.dynamic_index_in_dim(array, k, keepdims=False), batch)


def _apart(batch: Batch, k: Any) -> Batch:
    """Return a row that XLA does not compute anew inside of what uses it.

    Where random numbers are fused into the update, its last bits come to depend on K. A branch is never fused, and that
    `k` is not negative XLA does not know.
    """
    if not batch.extra:
        return _row(batch, k)
    # Interpreted, the batch is still NumPy's, with types that JAX has not.
    zeros = jax.tree.map(lambda array: jnp.zeros(array.shape[1:], jax.dtypes.canonicalize_dtype(array.dtype)), batch)
    return jax.lax.cond(k >= 0, lambda: _row(batch, k), lambda: zeros)


def _with(values: list[Any], positions: Sequence[int], others: Sequence[Any]) -> list[Any]:
    """Return `values` with others at these positions."""
    values = list(values)
    for position, value in zip(positions, others, strict=True):
        values[position] = value
    return values


def _interpreted(function: Callable) -> Callable:
    """Run `function` operation by operation, loops included, so that a debugger can step through an update."""

    def run(*args: Any) -> Any:
        with jax.disable_jit():
            return function(*args)

    return run


def compile_forward(agent: Agent, jit_compile: bool | str) -> Callable[[Any], np.ndarray]:
    """Return the jitted forward pass from observations `[N, ...]` to host arrays."""
    variables = agent.all_variables

    def forward(state: list[Any], observation: Any) -> Any:
        agent.trace_counts["forward"] += 1
        with _Scope(variables, state):
            return agent.outputs(observation)

    compiled = _interpreted(forward) if jit_compile is False else jax.jit(forward)

    def run(observation: Any) -> np.ndarray:
        return np.asarray(compiled([variable._value for variable in variables], observation))

    return run

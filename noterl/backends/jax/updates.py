"""Compiled gradient updates on JAX: one jitted while loop over a pure state.

The buffers of the state are not donated: if an update is not finite, the variables keep the arrays from before the
call. Updates of large networks on the CPU donate the arrays of the state before that one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from noterl.backends.common import GatheredRows, GroupResult, Rows, UpdateProgram, apply_finite, is_single, num_updates
from noterl.backends.finite import finiteness_probes
from noterl.backends.jax.scope import Scope, compiler, read_values, write_values
from noterl.backends.transfer import HostReport
from noterl.types import Batch

# (state, batch, index) -> (state, whether the update is finite or applied, results)
_Once = Callable[..., tuple[list[Any], Any, Any]]


@dataclass(eq=False)
class Updates(UpdateProgram):
    """Updates as a jitted while loop; see `UpdateProgram`.

    With `is_separate`, a call makes one update, without the loop, and reuses the memory of the arrays that the call
    before has replaced.

    All updates of a call are checked once, from the losses and the state after the last update: a gradient that is not
    finite leaves a state that is not finite. Checking every gradient costs a fifth of a small update, so a second
    program checks gradients only to find the first update that failed.
    """

    is_separate: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._reported = self.positions(self.report)
        self._assigned: list[int] | None = None  # positions of the variables that updates assign
        self._host_report = HostReport(jnp.concatenate)
        compiled = compiler(self.jit_compile)
        self._spare = _SpareArrays()
        # Arguments that are not used must stay, because the results take their memory.
        self._run_all = (
            jax.jit(self._all, donate_argnames="spare", keep_unused=True) if self.is_separate else compiled(self._all)
        )
        self._run_until_non_finite = compiled(self._until_non_finite)
        self._run_until_stop = compiled(self.until_stop)
        # An update is traced once for all programs that contain it; `inline` makes the same program as a plain call.
        self._traced_once = jax.jit(self._once, static_argnames=("index", "losses_only"), inline=True)

    def positions(self, variables: Sequence[Any]) -> list[int]:
        """Return the positions of some of the variables."""
        positions = {id(variable): position for position, variable in enumerate(self.variables)}
        return [positions[id(variable)] for variable in variables]

    def __call__(self, rows: Rows, count: int, first: int = 0) -> GroupResult:
        """Make `count` updates, of which the first has the number `first`."""
        start = np.int32(first % self.period)
        if self.stop is not None:
            # The update that is not finite, or after which `stop` is true, is undone.
            arguments = read_values(self.variables), rows, np.int32(count), start
            state, applied, stopped, (logs, feedback) = self._run_until_stop(*arguments)
            write_values(self.variables, state)
            return GroupResult(logs, feedback, int(applied), bool(stopped))
        return apply_finite(
            lambda fewer: self._apply(rows, fewer, start),
            lambda: self._run_until_non_finite(read_values(self.variables), rows, np.int32(count), start),
            count,
        )

    def _apply(self, rows: Rows, count: int, start: np.int32) -> GroupResult | None:
        """Run `count` updates; if one update is not finite, change nothing and return None."""
        state = read_values(self.variables)
        if self._assigned is None:
            self._assigned = self._find_assigned(state, rows)
        old = [state[k] for k in self._assigned]
        spare = self._spare.take(old) if self.is_separate else []
        vector, assigned, (logs, feedback) = self._run_all(state, rows, np.int32(count), start, spare)
        finite, logs, weights = self._host_report.read(np.asarray(vector), logs)
        if not finite:
            return None
        for position, value in zip(self._assigned, assigned, strict=True):
            self.variables[position]._value = value
        if self.is_separate:
            self._spare.arrays = old
        return GroupResult(logs, feedback, count, weights=weights)

    def _find_assigned(self, state: list[Any], rows: Rows) -> list[int]:
        """Return the positions of the variables that updates assign; others stay out of the loop and the results."""
        if isinstance(rows, GatheredRows):
            # Returning the whole state once per rollout costs less than another trace.
            return list(range(len(state)))

        def trace(state: list[Any], rows: Rows) -> list[dict[int, Any]]:
            batch = _row(rows, 0)
            return [self._traced_once(state, batch, index=index)[0] for index in range(self.period)]

        with jax.disable_jit(self.jit_compile is False):
            return sorted(set().union(*jax.eval_shape(trace, state, rows)))

    def _once(
        self, state: list[Any], batch: Batch, *, index: int, losses_only: bool = True
    ) -> tuple[dict[int, Any], Any, tuple[dict, dict]]:
        """Make one update; return the assigned values, by position, whether the update is finite, and the result."""
        with Scope(self.variables, state) as scope:
            result = self.step(batch, index)
        assigned = {k: value for k, value in enumerate(scope.values()) if value is not state[k]}
        return assigned, jnp.asarray(scope.finite_losses if losses_only else scope.finite), result

    def _all(
        self, state: list[Any], rows: Rows, count: Any, start: Any, spare: list[Any]
    ) -> tuple[Any, list[Any], tuple]:
        """Make all updates; pure, except for tracing.

        Returns:
            the vector of `HostReport`, the assigned values, and (the logs that are not in the vector, the feedback).

        The assigned values take the memory of `spare`, or new memory if `spare` is empty.
        """
        self.on_trace()
        positions = self._assigned or []

        def once(assigned: list[Any], batch: Batch, index: int = 0) -> tuple[list[Any], Any, tuple[dict, dict]]:
            values = replaced(state, positions, assigned)
            new, finite, result = self._traced_once(values, batch, index=index)
            return [new.get(k, values[k]) for k in positions], finite, result

        assigned = [state[k] for k in positions]
        # Batches with random numbers use the loop also if K is 1; see `_separate_row`.
        _, assigned, finite, (logs, feedback) = self._repeat(once, assigned, rows, count, start, until_false=False)
        finite &= all_finite(assigned)
        after = replaced(state, positions, assigned)
        weights = [after[k].ravel() for k in self._reported]
        vector, other_logs = self._host_report.write(finite.astype(jnp.float32)[None], logs, weights)
        return vector, assigned, (other_logs, feedback)

    def _until_non_finite(self, state: list[Any], rows: Rows, count: Any, start: Any) -> tuple[Any, tuple[dict, dict]]:
        """Return the number of updates before the first that is not finite, and the results; assign nothing."""
        once = partial(self._whole_state, losses_only=False)
        ran, _, finite, result = self._repeat(once, state, rows, count, start, until_false=True)
        # The loop has run the failed update too.
        return jnp.where(finite, ran, ran - 1), result

    def until_stop(self, state: list[Any], rows: Rows, count: Any, start: Any) -> tuple[list[Any], Any, Any, tuple]:
        """Make updates until one fails; return the state, the number applied, whether `stop` was true, the results."""
        self.on_trace()

        def once(state: list[Any], batch: Batch, index: int = 0) -> tuple[list[Any], Any, tuple]:
            new, finite, result = self._traced_once(state, batch, index=index, losses_only=False)
            with Scope(self.variables, replaced(state, list(new), list(new.values()))) as scope:
                stop = jnp.asarray(False if self.stop is None else self.stop(result[0]))
            finite &= all_finite(scope.values())
            applied = finite & ~stop
            state = replaced(state, list(new), [jnp.where(applied, value, state[k]) for k, value in new.items()])
            return state, applied, (result, finite & stop)

        ran, state, applied, (result, stopped) = self._repeat(once, state, rows, count, start, until_false=True)
        return state, jnp.where(applied, ran, ran - 1), stopped.any(), result

    def update(self, state: list[Any], batch: Batch, number: Any, *, losses_only: bool = True) -> tuple:
        """Make the update with this number; return the state, whether the update is finite, and the result; pure."""
        return self._switched(partial(self._whole_state, losses_only=losses_only))(state, batch, number)

    def _whole_state(self, state: list[Any], batch: Batch, index: int = 0, *, losses_only: bool) -> tuple:
        """Make one update; return the state, whether the update is finite, and the result."""
        new, finite, result = self._traced_once(state, batch, index=index, losses_only=losses_only)
        return replaced(state, list(new), list(new.values())), finite, result

    def _repeat(
        self, once: _Once, state: list[Any], rows: Rows, count: Any, start: Any, *, until_false: bool
    ) -> tuple[Any, list[Any], Any, Any]:
        """Make `count` updates, each on a separate batch; with `until_false`, none after one that returned False.

        Returns:
            the number of updates that ran, the state, whether all returned True, and the results `[K, ...]`.
        """
        once = self._switched(once)
        # XLA rounds the lookup of random numbers differently outside of the loop; see `_separate_row`.
        if self.is_separate or (is_single(rows, self.variables) and not rows.extra):  # type: ignore[union-attr]
            state, good, result = once(state, _row(rows, 0), start)
            return jnp.ones((), jnp.int32), state, good, jax.tree.map(lambda value: value[None], result)
        shapes = jax.eval_shape(once, state, _row(rows, 0), start)[2]
        results = jax.tree.map(lambda shape: jnp.zeros((num_updates(rows), *shape.shape), shape.dtype), shapes)

        def unfinished(carry: tuple) -> Any:
            return (carry[0] < count) & carry[2] if until_false else carry[0] < count

        def body(carry: tuple) -> tuple:
            k, state, good, results = carry
            state, also_good, result = once(state, _separate_row(rows, k), start + k)
            results = jax.tree.map(lambda stack, value: stack.at[k].set(value), results, result)
            return k + 1, state, good & also_good, results

        return jax.lax.while_loop(unfinished, body, (jnp.zeros((), jnp.int32), state, jnp.asarray(True), results))

    def _switched(self, once: _Once) -> _Once:
        """Return `once` for the number of an update, with one branch for each index within the period."""
        period = self.period
        if period == 1:
            return lambda state, batch, number: once(state, batch)
        branches = [partial(once, index=index) for index in range(period)]
        return lambda state, batch, number: jax.lax.switch(number % period, branches, state, batch)


class _SpareArrays:
    """Arrays that a program may overwrite, because only this object refers to these arrays.

    New memory for all values costs page faults: a tenth of an update of the network of Mnih et al. (2015).
    """

    def __init__(self) -> None:
        self.arrays: list[Any] = []

    def take(self, values: Sequence[Any]) -> list[Any]:
        """Hand over the spare arrays, to be donated; where an array has other users, a copy of the value instead.

        JAX itself keeps an array that a NumPy view shows.
        """
        arrays = self.arrays or [None] * len(values)
        self.arrays = []  # the caller donates the arrays, so no later call may take these
        for k, value in enumerate(values):
            is_unused = sys.getrefcount(arrays[k]) <= 2  # this list and the argument
            if not is_unused or arrays[k].sharding != value.sharding:
                arrays[k] = jnp.array(value)  # placed like the value
        return arrays


def all_finite(values: Sequence[Any]) -> Any:
    """Return whether all floating-point values are finite, by one reduction: each has a fixed cost."""
    return jnp.isfinite(jnp.concatenate([value.ravel() for value in finiteness_probes(values)])).all()


def _row(rows: Rows, k: Any) -> Batch:
    """Return batch `k`."""
    if isinstance(rows, GatheredRows):
        return take(rows.data, jax.lax.dynamic_index_in_dim(rows.indices, k, keepdims=False))
    return jax.tree.map(lambda array: jax.lax.dynamic_index_in_dim(array, k, keepdims=False), rows)


def take(data: Any, indices: Any) -> Any:
    """Return the rows of arrays with these indices `[B]`, such as the batch `[B, ...]` of rows `[T N, ...]`."""
    return jax.tree.map(lambda array: jnp.take(array, indices, axis=0, mode="clip"), data)


def _separate_row(rows: Rows, k: Any) -> Batch:
    """Return batch `k`, behind a fusion barrier if the batch contains random numbers.

    If XLA fuses the lookup of random numbers into the update, rounding depends on K. `lax.cond` is never fused, and XLA
    cannot prove `k >= 0`, so XLA keeps the branch.
    """
    if isinstance(rows, GatheredRows) or not rows.extra:
        return _row(rows, k)
    # Without compilation, the arrays are NumPy's, whose dtypes, such as float64, JAX may not have.
    zeros = jax.tree.map(lambda array: jnp.zeros(array.shape[1:], jax.dtypes.canonicalize_dtype(array.dtype)), rows)
    return jax.lax.cond(k >= 0, lambda: _row(rows, k), lambda: zeros)


def replaced(values: list[Any], positions: Sequence[int], others: Sequence[Any]) -> list[Any]:
    """Return `values` with `others` at these positions."""
    values = list(values)
    for position, value in zip(positions, others, strict=True):
        values[position] = value
    return values

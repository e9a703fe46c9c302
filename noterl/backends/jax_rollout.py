"""Rollouts on JAX: one jitted call that prepares a rollout, one for all minibatches of all epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from noterl.backends.common import GroupResult
from noterl.backends.jax import _interpreted, _Scope
from noterl.on_policy import prepared
from noterl.types import Batch

if TYPE_CHECKING:
    from noterl.agent import Agent


def compile_prepare(agent: Agent, jit_compile: bool | str) -> Callable[[Batch], Any]:
    """Return the function from a rollout `[T, N, ...]` on the host to its prepared rows `[T N, ...]` on the device."""
    variables = agent.all_variables
    assigned: list[int] = []

    def prepare(state: list[Any], rollout: Batch) -> tuple[Batch, list[Any]]:
        agent.trace_counts["prepare"] += 1
        with _Scope(variables, state) as scope:
            rows = prepared(agent, rollout)
        after = scope.values()
        assigned[:] = [k for k, value in enumerate(after) if value is not state[k]]
        return rows, [after[k] for k in assigned]

    compiled = _interpreted(prepare) if jit_compile is False else jax.jit(prepare)

    def run(rollout: Batch) -> Any:
        rows, values = compiled([variable._value for variable in variables], rollout)
        for k, value in zip(assigned, values, strict=True):
            variables[k]._value = value
        return rows

    return run


def compile_minibatches(agent: Agent, jit_compile: bool | str) -> Callable[[Any, np.ndarray, int], GroupResult]:
    """Return the function that makes `count` updates on minibatches, given as rows `[K, B]` of a prepared rollout."""
    variables = agent.all_variables

    def once(state: list[Any], batch: Batch) -> tuple[list[Any], tuple, dict]:
        with _Scope(variables, state) as scope:
            logs, _ = agent.update_once(batch)
            enough = agent.enough(logs)
        finite, ended = jnp.asarray(scope.finite), jnp.asarray(False if enough is None else enough)
        applied = finite & ~ended
        new = [
            old if value is old else jnp.where(applied, value, old)
            for value, old in zip(scope.values(), state, strict=True)
        ]
        return new, (applied, finite & ended), logs

    def group(state: list[Any], data: Batch, rows: Any, count: Any) -> tuple:
        agent.trace_counts["update"] += 1

        def taken(k: Any) -> Batch:
            index = jax.lax.dynamic_index_in_dim(rows, k, keepdims=False)
            return jax.tree.map(lambda array: jnp.take(array, index, axis=0, mode="clip"), data)

        shapes = jax.eval_shape(lambda state: once(state, taken(0)), state)[2]
        results = jax.tree.map(lambda shape: jnp.zeros((rows.shape[0], *shape.shape), shape.dtype), shapes)

        def unfinished(carry: tuple) -> Any:
            return (carry[0] < count) & carry[1][0]

        def body(carry: tuple) -> tuple:
            k, _, made, state, results = carry
            state, (applied, ended), logs = once(state, taken(k))
            results = jax.tree.map(lambda stack, value: stack.at[k].set(value), results, logs)
            return k + 1, (applied, ended), made + applied.astype(jnp.int32), state, results

        zero, no = jnp.zeros((), jnp.int32), jnp.asarray(False)
        carry = jax.lax.while_loop(unfinished, body, (zero, (jnp.asarray(True), no), zero, state, results))
        return carry[3], (carry[2], carry[1][1]), carry[4]

    compiled = _interpreted(group) if jit_compile is False else jax.jit(group)

    def run(data: Any, rows: np.ndarray, count: int) -> GroupResult:
        state = [variable._value for variable in variables]
        state, (applied, ended), logs = compiled(state, data, rows, np.int32(count))
        for variable, value in zip(variables, state, strict=True):
            variable._value = value
        return GroupResult(logs, {}, int(applied), bool(ended))

    return run

"""Rollouts on JAX: one jitted call that prepares a rollout, one for all minibatches of all epochs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from noterl.backends.common import GroupResult
from noterl.backends.jax.core import _interpreted, _Scope, all_finite, write_brief
from noterl.backends.transfer import Brief
from noterl.learning.rollout_learner import prepared
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
    """Return the function that makes `count` updates on minibatches, given as rows `[K, B]` of a prepared rollout.

    Unless the agent may have enough of a rollout, all are made without a look, and finite numbers asked for once. Only
    where there are others are they made one by one, up to the offending one.
    """
    variables, brief = agent.all_variables, Brief(jnp.concatenate)
    compiled = _interpreted if jit_compile is False else jax.jit
    unseen, seen = compiled(partial(_unseen, agent, brief)), compiled(partial(_seen, agent))
    may_end = agent.enough(defaultdict(float)) is not None

    def run(data: Any, rows: np.ndarray, count: int) -> GroupResult:
        arguments = [variable._value for variable in variables], data, rows, np.int32(count)
        result = None
        if not may_end:
            state, vector, others = unseen(*arguments)
            finite, logs, weights = brief.read(np.asarray(vector), others)
            result = GroupResult(logs, {}, count, weights=weights) if finite else None
        if result is None:
            state, (applied, ended), logs = seen(*arguments)
            result = GroupResult(logs, {}, int(applied), bool(ended))
        for variable, value in zip(variables, state, strict=True):
            variable._value = value
        return result

    return run


def _unseen(agent: Agent, brief: Brief, state: list[Any], data: Batch, rows: Any, count: Any) -> tuple:
    """Make `count` updates; return the state, the brief, and the logs that it leaves out."""
    agent.trace_counts["update"] += 1

    def once(state: list[Any], k: Any) -> tuple[list[Any], Any, dict]:
        with _Scope(agent.all_variables, state) as scope:
            logs, _ = agent.update_once(_taken(data, rows, k))
        return scope.values(), jnp.asarray(scope.finite_losses), logs

    def body(carry: tuple) -> tuple:
        k, finite, state, results = carry
        state, good, logs = once(state, k)
        results = jax.tree.map(lambda stack, value: stack.at[k].set(value), results, logs)
        return k + 1, finite & good, state, results

    results = _stacks(lambda state: once(state, 0)[2], state, rows.shape[0])
    start = (jnp.zeros((), jnp.int32), jnp.asarray(True), state, results)
    _, finite, state, logs = jax.lax.while_loop(lambda carry: carry[0] < count, body, start)
    return state, *write_brief(agent, brief, finite & all_finite(state), logs, state)


def _seen(agent: Agent, state: list[Any], data: Batch, rows: Any, count: Any) -> tuple:
    """Make updates one by one; return the state, how many and whether the agent had enough of them, and their logs."""
    agent.trace_counts["update"] += 1

    def body(carry: tuple) -> tuple:
        k, _, made, state, results = carry
        state, (applied, ended), logs = _once(agent, state, _taken(data, rows, k))
        results = jax.tree.map(lambda stack, value: stack.at[k].set(value), results, logs)
        return k + 1, (applied, ended), made + applied.astype(jnp.int32), state, results

    zero, no = jnp.zeros((), jnp.int32), jnp.asarray(False)
    results = _stacks(lambda state: _once(agent, state, _taken(data, rows, 0))[2], state, rows.shape[0])
    start = (zero, (jnp.asarray(True), no), zero, state, results)
    carry = jax.lax.while_loop(lambda carry: (carry[0] < count) & carry[1][0], body, start)
    return carry[3], (carry[2], carry[1][1]), carry[4]


def _once(agent: Agent, state: list[Any], batch: Batch) -> tuple[list[Any], tuple, dict]:
    """Make one update, or none if it is not finite or the agent has had enough of the rollout."""
    with _Scope(agent.all_variables, state) as scope:
        logs, _ = agent.update_once(batch)
        enough = agent.enough(logs)
    values = scope.values()
    finite, ended = scope.finite & all_finite(values), jnp.asarray(False if enough is None else enough)
    applied = finite & ~ended
    new = [old if value is old else jnp.where(applied, value, old) for value, old in zip(values, state, strict=True)]
    return new, (applied, finite & ended), logs


def _taken(data: Batch, rows: Any, k: Any) -> Batch:
    index = jax.lax.dynamic_index_in_dim(rows, k, keepdims=False)
    return jax.tree.map(lambda array: jnp.take(array, index, axis=0, mode="clip"), data)


def _stacks(logs: Callable[[list[Any]], dict], state: list[Any], size: int) -> dict:
    """Return zeros `[K, ...]` for the logs of K updates."""
    return jax.tree.map(lambda shape: jnp.zeros((size, *shape.shape), shape.dtype), jax.eval_shape(logs, state))

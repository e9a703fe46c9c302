"""Rollouts on TensorFlow: one `tf.function` that prepares a rollout, one for all minibatches of all epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from noterl.backends.common import GroupResult
from noterl.backends.tensorflow import _finite
from noterl.on_policy import prepared
from noterl.types import Batch

if TYPE_CHECKING:
    from noterl.agent import Agent


def compile_prepare(agent: Agent, jit_compile: bool | str) -> Callable[[Batch], Any]:
    """Return the function from a rollout `[T, N, ...]` on the host to its prepared rows `[T N, ...]` on the device."""

    def prepare(rollout: Batch) -> Batch:
        agent.trace_counts["prepare"] += 1
        return prepared(agent, rollout)

    compiled = prepare if jit_compile is False else tf.function(prepare, jit_compile=True, autograph=False)
    return lambda rollout: compiled(tf.nest.map_structure(tf.convert_to_tensor, rollout))


def compile_minibatches(agent: Agent, jit_compile: bool | str) -> Callable[[Any, np.ndarray, int], GroupResult]:
    """Return the function that makes `count` updates on minibatches, given as rows `[K, B]` of a prepared rollout."""

    def group(data: Batch, rows: Any, count: Any) -> tuple:
        agent.trace_counts["update"] += 1

        def taken(k: Any) -> Batch:
            return tf.nest.map_structure(lambda array: tf.gather(array, rows[k]), data)

        traced = tf.function(lambda: _once(agent, taken(0))[2], autograph=False).get_concrete_function()
        size = rows.shape[0]
        results = tf.nest.map_structure(
            lambda value: tf.zeros((size, *value.shape), value.dtype), traced.structured_outputs
        )

        def unfinished(k: Any, active: Any, ended: Any, made: Any, results: Any) -> Any:
            return (k < count) & active

        def body(k: Any, active: Any, ended: Any, made: Any, results: Any) -> tuple:
            applied, ended, logs = _once(agent, taken(k))
            results = tf.nest.map_structure(
                lambda stack, value: tf.tensor_scatter_nd_update(stack, [[k]], value[None]), results, logs
            )
            return k + 1, applied, ended, made + tf.cast(applied, tf.int32), results

        carry = tf.while_loop(
            unfinished, body, (tf.constant(0), tf.constant(True), tf.constant(False), tf.constant(0), results)
        )
        return carry[3], carry[2], carry[4]

    if jit_compile is False:
        return lambda data, rows, count: _run_eagerly(agent, data, rows, count)
    compiled = tf.function(group, jit_compile=True, autograph=False)

    def run(data: Any, rows: np.ndarray, count: int) -> GroupResult:
        applied, ended, logs = compiled(data, tf.constant(rows), tf.constant(count, tf.int32))
        return GroupResult(logs, {}, int(applied), bool(ended))

    return run


def _once(agent: Agent, batch: Batch) -> tuple[Any, Any, dict]:
    """Make one update, or none if it is not finite or the agent has had enough of the rollout."""
    old = [variable.value.read_value() for variable in agent.all_variables]
    _finite.append(tf.constant(True))
    try:
        logs, _ = agent.update_once(batch)
    finally:
        finite = _finite.pop()
    enough = agent.enough(logs)
    ended = tf.constant(False) if enough is None else finite & enough
    applied = finite & ~ended
    for variable, value in zip(agent.all_variables, old, strict=True):
        variable.value.assign(tf.where(applied, variable.value, value))
    return applied, ended, logs


def _run_eagerly(agent: Agent, data: Batch, rows: np.ndarray, count: int) -> GroupResult:
    found, made, ended = [], 0, False
    for k in range(count):
        applied, ended, logs = _once(agent, tf.nest.map_structure(lambda array, k=k: tf.gather(array, rows[k]), data))
        found.append(logs)
        if not applied:
            break
        made += 1
    return GroupResult(tf.nest.map_structure(lambda *values: tf.stack(values), *found), {}, made, bool(ended))

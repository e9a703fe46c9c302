"""Rollouts on TensorFlow: one `tf.function` that prepares a rollout, one for all minibatches of all epochs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from noterl.backends.common import GroupResult
from noterl.backends.tensorflow.core import (
    all_finite,
    conclude,
    finite_losses,
    finite_numbers,
    flagged,
    pushed,
    rolled,
    stacks_for,
)
from noterl.backends.transfer import Brief
from noterl.learning.rollout_learner import prepared
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
    """Return the function that makes `count` updates on minibatches, given as rows `[K, B]` of a prepared rollout.

    Unless the agent may have enough of a rollout, all are made without a look, and finite numbers asked for once. Only
    where there are others are they made one by one, up to the offending one.
    """
    if jit_compile is False:
        return lambda data, rows, count: _run_eagerly(agent, data, rows, count)
    brief = Brief(lambda parts: tf.concat(parts, 0))
    unseen, seen = (
        tf.function(function, jit_compile=True, autograph=False)
        for function in (partial(_unseen, agent, brief), partial(_seen, agent))
    )
    may_end = agent.enough(defaultdict(float)) is not None

    def run(data: Any, rows: np.ndarray, count: int) -> GroupResult:
        arguments = data, tf.constant(rows), tf.constant(count, tf.int32)
        if not may_end:
            vector, others = unseen(*arguments)
            finite, logs, weights = brief.read(np.asarray(vector), others)
            if finite:
                return GroupResult(logs, {}, count, weights=weights)
        applied, ended, logs = seen(*arguments)
        return GroupResult(logs, {}, int(applied), bool(ended))

    return run


def _unseen(agent: Agent, brief: Brief, data: Batch, rows: Any, count: Any) -> tuple[Any, dict]:
    """Make `count` updates, or none if one of them is not finite; return the brief, and the logs it leaves out."""
    agent.trace_counts["update"] += 1
    old = [variable.value.read_value() for variable in agent.all_variables]

    def once(k: Any) -> tuple[Any, dict]:
        finite, (logs, _) = flagged(finite_losses, agent, _taken(data, rows, k))
        return finite, logs

    traced = tf.function(once, autograph=False).get_concrete_function(tf.constant(0))

    def body(k: Any, finite: Any, results: Any) -> tuple:
        good, logs = traced(k)
        return k + 1, finite & good, pushed(results, logs)

    carry = (tf.constant(0), tf.constant(True), stacks_for(traced.structured_outputs[1], rows.shape[0]))
    _, finite, logs = tf.while_loop(lambda k, finite, results: k < count, body, carry)
    return conclude(agent, brief, finite, rolled(logs, count), old)


def _seen(agent: Agent, data: Batch, rows: Any, count: Any) -> tuple[Any, Any, dict]:
    """Make updates one by one; return how many, whether they ended because the agent had enough, and their logs."""
    agent.trace_counts["update"] += 1

    def unfinished(k: Any, active: Any, ended: Any, made: Any, results: Any) -> Any:
        return (k < count) & active

    traced = tf.function(lambda k: _once(agent, _taken(data, rows, k)), autograph=False)
    traced = traced.get_concrete_function(tf.constant(0))

    def body(k: Any, active: Any, ended: Any, made: Any, results: Any) -> tuple:
        applied, ended, logs = traced(k)
        results = tf.nest.map_structure(
            lambda stack, value: tf.tensor_scatter_nd_update(stack, [[k]], value[None]), results, logs
        )
        return k + 1, applied, ended, made + tf.cast(applied, tf.int32), results

    results = stacks_for(traced.structured_outputs[2], rows.shape[0])
    carry = tf.while_loop(
        unfinished, body, (tf.constant(0), tf.constant(True), tf.constant(False), tf.constant(0), results)
    )
    return carry[3], carry[2], carry[4]


def _taken(data: Batch, rows: Any, k: Any) -> Batch:
    return tf.nest.map_structure(lambda array: tf.gather(array, rows[k]), data)


def _once(agent: Agent, batch: Batch) -> tuple[Any, Any, dict]:
    """Make one update, or none if it is not finite or the agent has had enough of the rollout."""
    variables = [variable.value for variable in agent.all_variables]
    old = [variable.read_value() for variable in variables]
    finite, (logs, _) = flagged(finite_numbers, agent, batch)
    finite &= all_finite(variables)
    enough = agent.enough(logs)
    ended = tf.constant(False) if enough is None else finite & enough
    applied = finite & ~ended
    for variable, value in zip(variables, old, strict=True):
        variable.assign(tf.where(applied, variable, value))
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

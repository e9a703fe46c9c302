"""The TensorFlow backend: a group of updates is one `tf.function` under XLA.

Owns: every import of TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from noterl.backends.common import GroupResult, must_loop, pack, split_loss, unpack
from noterl.types import Batch

if TYPE_CHECKING:
    from noterl.agent import Agent

# The finite flag of the update that is being traced, narrowed by every `minimize` in it.
_finite: list[Any] = []


def fetch(value: Any) -> np.ndarray:
    """Return a device value (tensor or `keras.Variable`) as a NumPy array of its own."""
    tensor = value.value if isinstance(value, keras.Variable) else value
    return np.array(tensor)


def device_name() -> str:
    """Return the first accelerator that TensorFlow sees, or the CPU."""
    accelerators = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return str(accelerators[0].name)


class HostWeights:
    """Weights as NumPy arrays.

    Args:
        variables: whose weights.
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        self._variables = [variable.value for variable in variables]

    def __call__(self) -> list[np.ndarray]:
        """Return the present weights; the bare operation takes a third of the time that `variable.numpy()` does."""
        read = tf.raw_ops.ReadVariableOp
        return [read(resource=variable.handle, dtype=variable.dtype).numpy() for variable in self._variables]


def copy_variables(sources: Sequence[keras.Variable], targets: Sequence[keras.Variable], tau: Any) -> None:
    """Move the targets towards the sources by `tau`."""
    if tf.executing_eagerly() and float(tau) == 1.0:
        for source, target in zip(sources, targets, strict=True):
            target.value.assign(source.value)
        return
    for source, target in zip(sources, targets, strict=True):
        old, new = target.value, source.value
        if target.value.dtype.is_floating:
            coefficient = keras.ops.convert_to_tensor(tau, dtype=target.dtype)
            new = tf.where(coefficient == 1.0, new, old + coefficient * (new - old))
        target.assign(new)


def minimize(
    agent: Agent, loss_fn: Callable[..., Any], variables: Sequence[keras.Variable], optimizer: Any, args: tuple
) -> tuple[Any, Any]:
    """Take the gradient of `loss_fn(*args)` and let the optimizer apply it."""
    variables = list(variables)
    with tf.GradientTape() as tape:
        loss, aux = split_loss(loss_fn(*args))
    gradients = tape.gradient(loss, [variable.value for variable in variables])
    finite = tf.math.is_finite(loss)
    for gradient in gradients:
        if gradient is not None:
            finite &= tf.reduce_all(tf.math.is_finite(gradient))
    if _finite:
        _finite[-1] &= finite
    optimizer.apply(gradients, variables)
    return loss, aux


def compile_update(agent: Agent, jit_compile: bool | str) -> Callable[[Batch, int], GroupResult]:
    """Return the function that runs `count` updates on a group's batches `[K, B, ...]` as one call.

    The number of updates is an argument of the compiled loop, not of its shape: any `count <= K` runs the same code, so
    that how updates are split over calls cannot change a result.
    """
    if jit_compile is False:
        return lambda batch, count: _run_eagerly(agent, batch, count)
    programs: dict[tuple, Any] = {}
    numbers: dict[int, Any] = {}

    def number(value: int) -> Any:
        if value not in numbers:
            numbers[value] = tf.constant(value, tf.int32)
        return numbers[value]

    def run(batch: Batch, count: int) -> GroupResult:
        arrays, plan = pack(batch)
        tensors = [tf.constant(array) for array in arrays]
        if plan not in programs:
            programs[plan] = _program(agent, plan, tensors)
        start = number(agent.updates % agent.update_period)
        applied, (logs, feedback) = programs[plan](number(count), start, *tensors)
        return GroupResult(logs, feedback, int(applied))

    return run


def _program(agent: Agent, plan: tuple, tensors: list[Any]) -> Any:
    """Compile for these shapes, to a concrete function: it is called without looking at types again."""

    def group(count: Any, start: Any, *packed: Any) -> tuple[Any, tuple[dict, dict]]:
        agent.trace_counts["update"] += 1
        batch = unpack(packed, plan)
        if batch.reward.shape[0] == 1 and not must_loop(agent.all_variables):
            finite, result = _numbered(agent, tf.nest.map_structure(lambda array: array[0], batch), start)
            return tf.cast(finite, tf.int32), tf.nest.map_structure(lambda value: value[None], result)
        return _loop(agent, batch, count, start)

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
    compiled = tf.function(group, jit_compile=True, autograph=False)
    return compiled.get_concrete_function(*[tf.TensorSpec((), tf.int32)] * 2, *specs)


def _numbered(agent: Agent, batch: Batch, number: Any) -> tuple[Any, tuple[dict, dict]]:
    """Make the update of this number: one branch for each index within the period, where Python knows it."""
    if agent.update_period == 1:
        return _once(agent, batch)
    branches = [partial(_once, agent, batch, index) for index in range(agent.update_period)]
    return tf.switch_case(number % agent.update_period, branches)


def _once(agent: Agent, batch: Batch, index: int = 0) -> tuple[Any, tuple[dict, dict]]:
    """Make one update, or none if a loss or gradient in it is not finite."""
    old = [variable.value.read_value() for variable in agent.all_variables]
    _finite.append(tf.constant(True))
    try:
        result = agent.update_once(batch, index)
    finally:
        finite = _finite.pop()
    # A select, not a branch: XLA fuses it into the write that the optimizer does anyway.
    for variable, value in zip(agent.all_variables, old, strict=True):
        variable.value.assign(tf.where(finite, variable.value, value))
    return finite, result


def _loop(agent: Agent, batch: Batch, count: Any, start: Any) -> tuple[Any, tuple[dict, dict]]:
    """Make `count` updates, each on its row of the batches, until one is not finite."""
    size, first = batch.reward.shape[0], tf.nest.map_structure(lambda array: array[0], batch)
    traced = tf.function(lambda row: _once(agent, row), autograph=False).get_concrete_function(first)
    results = tf.nest.map_structure(
        lambda value: tf.zeros((size, *value.shape), value.dtype), traced.structured_outputs[1]
    )

    def unfinished(k: Any, finite: Any, applied: Any, results: Any) -> Any:
        return (k < count) & finite

    def body(k: Any, finite: Any, applied: Any, results: Any) -> tuple:
        finite, result = _numbered(agent, tf.nest.map_structure(lambda array: array[k], batch), start + k)
        results = tf.nest.map_structure(
            lambda stack, value: tf.tensor_scatter_nd_update(stack, [[k]], value[None]), results, result
        )
        return k + 1, finite, applied + tf.cast(finite, tf.int32), results

    carry = tf.while_loop(unfinished, body, (tf.constant(0), tf.constant(True), tf.constant(0), results))
    return carry[2], carry[3]


def _run_eagerly(agent: Agent, batch: Batch, count: int) -> GroupResult:
    rows = []
    for k in range(count):
        row = tf.nest.map_structure(lambda array, k=k: tf.convert_to_tensor(array[k]), batch)
        finite, result = _once(agent, row, (agent.updates + k) % agent.update_period)
        rows.append(result)
        if not finite:
            break
    logs, feedback = tf.nest.map_structure(lambda *values: tf.stack(values), *rows)
    return GroupResult(logs, feedback, len(rows) if finite else len(rows) - 1)


def compile_forward(agent: Agent, jit_compile: bool | str) -> Callable[[Any], np.ndarray]:
    """Return the compiled forward pass from observations `[N, ...]` to host arrays."""

    def forward(observation: Any) -> Any:
        agent.trace_counts["forward"] += 1
        return agent.forward(observation)

    compiled = forward if jit_compile is False else tf.function(forward, autograph=False, reduce_retracing=True)

    def run(observation: Any) -> np.ndarray:
        return np.asarray(compiled(tf.nest.map_structure(tf.convert_to_tensor, observation)))

    return run

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

from noterl.backends.common import GroupResult, must_loop, pack, settle, split_loss, unpack
from noterl.backends.finite import witnesses
from noterl.backends.transfer import Brief
from noterl.types import Batch

if TYPE_CHECKING:
    from noterl.agent import Agent

# The finite flags of the update that is being traced, narrowed by every `minimize` in it: of losses and gradients, and
# of losses alone.
finite_numbers: list[Any] = []
finite_losses: list[Any] = []

_hard_copies: dict[tuple[int, ...], tuple[Any, list, list]] = {}


def fetch(value: Any) -> np.ndarray:
    """Return a device value (tensor or `keras.Variable`) as a NumPy array of its own."""
    tensor = value.value if isinstance(value, keras.Variable) else value
    return np.array(tensor)


def is_tracing() -> bool:
    """Return whether what runs now is being compiled, so that it is run once and numbers in it never change."""
    return not tf.executing_eagerly()


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
        copy = _hard_copy(sources, targets)
        copy._call_flat([], copy.captured_inputs)
        return
    for source, target in zip(sources, targets, strict=True):
        old, new = target.value, source.value
        if target.value.dtype.is_floating:
            coefficient = keras.ops.convert_to_tensor(tau, dtype=target.dtype)
            new = tf.where(coefficient == 1.0, new, old + coefficient * (new - old))
        target.assign(new)


def _hard_copy(sources: Sequence[keras.Variable], targets: Sequence[keras.Variable]) -> Any:
    """Return the concrete function that copies these: a sixth of what the assignments cost one by one."""
    key = (*map(id, sources), *map(id, targets))
    if key not in _hard_copies:
        if len(_hard_copies) == 16:
            _hard_copies.clear()
        copy = tf.function(lambda: [t.value.assign(s.value) for s, t in zip(sources, targets, strict=True)] and None)
        # The variables are kept as well, so that their ids cannot come to stand for others.
        _hard_copies[key] = copy.get_concrete_function(), list(sources), list(targets)
    return _hard_copies[key][0]


def minimize(
    agent: Agent, loss_fn: Callable[..., Any], variables: Sequence[keras.Variable], optimizer: Any, args: tuple
) -> tuple[Any, Any]:
    """Take the gradient of `loss_fn(*args)` and let the optimizer apply it."""
    variables = list(variables)
    with tf.GradientTape() as tape:
        loss, aux = split_loss(loss_fn(*args))
    gradients = tape.gradient(loss, [variable.value for variable in variables])
    for flags in (finite_numbers, finite_losses):
        if flags:
            flags[-1] &= tf.math.is_finite(loss)
    for gradient in gradients:
        if gradient is not None and finite_numbers:
            finite_numbers[-1] &= tf.reduce_all(tf.math.is_finite(gradient))
    optimizer.apply(gradients, variables)
    return loss, aux


def rehearse(agent: Agent, known: Sequence[keras.Variable], function: Callable[[], None]) -> None:
    """Call `function` for what it notes about the agent."""
    function()


def compile_update(agent: Agent, jit_compile: bool | str) -> Callable[[Batch, int], GroupResult]:
    """Return the function that runs `count` updates on a group's batches `[K, B, ...]` as one call.

    The number of updates is an argument of the compiled loop, not of its shape: any `count <= K` runs the same code, so
    that how updates are split over calls cannot change a result.
    """
    if jit_compile is False:
        return lambda batch, count: _run_eagerly(agent, batch, count)
    brief = Brief(lambda parts: tf.concat(parts, 0))
    apply, locate = _Compiled(_group(agent, brief)), _Compiled(_search(agent))

    def applied(batch: Batch, count: int) -> GroupResult | None:
        vector, logs, feedback = apply(batch, count, agent.updates % agent.update_period)
        finite, logs, weights = brief.read(np.asarray(vector), logs)
        return GroupResult(logs, feedback, count, weights=weights) if finite else None

    def run(batch: Batch, count: int) -> GroupResult:
        result = applied(batch, count)
        if result is not None:
            return result
        located, (logs, feedback) = locate(batch, count, agent.updates % agent.update_period)
        fewer = settle(lambda some: applied(batch, some) is not None, int(located), count)
        return GroupResult(logs, feedback, fewer)

    return run


class _Compiled:
    """A function compiled for each shape that its batches come in.

    Args:
        function: from `(batch, count, start)` to tensors.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._programs: dict[tuple, Any] = {}
        self._numbers: dict[int, Any] = {}

    def __call__(self, batch: Batch, count: int, start: int) -> Any:
        arrays, plan = pack(batch)
        tensors = [self._number(count), self._number(start), *(tf.constant(array) for array in arrays)]
        if plan not in self._programs:
            self._programs[plan] = self._program(plan, tensors)
        program, captured = self._programs[plan]
        # Past the part that binds arguments by name and type, which costs more than a small update.
        return program._call_flat(tensors, captured)

    def _number(self, value: int) -> Any:
        if value not in self._numbers:
            self._numbers[value] = tf.constant(value, tf.int32)
        return self._numbers[value]

    def _program(self, plan: tuple, tensors: list[Any]) -> Any:
        def run(count: Any, start: Any, *packed: Any) -> Any:
            return self._function(unpack(packed, plan, _cast), count, start)

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
        program = tf.function(run, jit_compile=True, autograph=False).get_concrete_function(*specs)
        return program, program.captured_inputs


def _cast(words: Any, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
    return tf.reshape(tf.bitcast(words, dtype), shape)


def _group(agent: Agent, brief: Brief) -> Callable[..., tuple[Any, dict, dict]]:
    """Return the function that makes `count` updates, or leaves the state alone if one of them is not finite.

    It gives the brief, the logs that are no part of it, and the feedback.

    Whether all are finite is asked once, of their losses and of the state that they leave: a gradient that is not
    finite leaves no finite state. Looking at every gradient as it comes costs a fifth of a small update.
    """
    once = partial(flagged, finite_losses, agent)

    def group(batch: Batch, count: Any, start: Any) -> tuple[Any, dict, dict]:
        agent.trace_counts["update"] += 1
        old = [variable.value.read_value() for variable in agent.all_variables]
        if batch.reward.shape[0] == 1 and not must_loop(agent.all_variables):
            finite, result = _numbered(agent, once)(_row(batch, 0), start)
            result = tf.nest.map_structure(lambda value: value[None], result)
        else:
            _, finite, result = _repeat(_numbered(agent, once), batch, count, start, stop=False)
        return *conclude(agent, brief, finite, result[0], old), result[1]

    return group


def _search(agent: Agent) -> Callable[..., tuple[Any, tuple[dict, dict]]]:
    """Return the function that finds how many updates are finite, up to the first that is not; it changes nothing."""

    def search(batch: Batch, count: Any, start: Any) -> tuple[Any, tuple[dict, dict]]:
        variables = [variable.value for variable in agent.all_variables]
        old = [variable.read_value() for variable in variables]
        ran, finite, result = _repeat(_numbered(agent, partial(_once, agent)), batch, count, start, stop=True)
        for variable, value in zip(variables, old, strict=True):
            variable.assign(value)
        return tf.where(finite, ran, ran - 1), result

    return search


def _once(agent: Agent, row: Batch, index: int = 0) -> tuple[Any, tuple[dict, dict]]:
    """Make one update; return whether its losses and gradients are finite, and what it gave."""
    return flagged(finite_numbers, agent, row, index)


def flagged(flags: list[Any], agent: Agent, row: Batch, index: int = 0) -> tuple[Any, tuple[dict, dict]]:
    """Make one update; return what `minimize` narrowed a flag of this list to, and what the update gave."""
    flags.append(tf.constant(True))
    try:
        result = agent.update_once(row, index)
    finally:
        finite = flags.pop()
    return finite, result


def all_finite(variables: Sequence[Any]) -> Any:
    """Return whether all floating variables are finite."""
    finite = tf.constant(True)
    for value in witnesses(variables):
        finite &= tf.reduce_all(tf.math.is_finite(value))
    return finite


def conclude(agent: Agent, brief: Brief, finite: Any, logs: dict, old: Sequence[Any]) -> tuple[Any, dict]:
    """Keep what updates left if all is finite, else go back to `old`; return the brief and the logs it leaves out."""
    variables = [variable.value for variable in agent.all_variables]
    finite &= all_finite(variables)
    for variable, value in zip(variables, old, strict=True):
        variable.assign(tf.where(finite, variable, value))
    weights = [tf.reshape(variable.value, [-1]) for variable in agent.acting.packed]
    return brief.write(tf.cast(finite, tf.float32)[None], logs, weights)


def _numbered(agent: Agent, once: Callable[..., Any]) -> Callable[[Batch, Any], tuple[Any, tuple[dict, dict]]]:
    """Return `once` for the update of a number: one branch for each index within the period, known to Python."""
    period = agent.update_period
    if period == 1:
        return lambda row, number: once(row)
    return lambda row, number: tf.switch_case(number % period, [partial(once, row, index) for index in range(period)])


def _repeat(
    once: Callable[[Batch, Any], tuple[Any, tuple[dict, dict]]], batch: Batch, count: Any, start: Any, *, stop: bool
) -> tuple[Any, Any, tuple[dict, dict]]:
    """Make `count` updates, each on its row of the batches; with `stop` none after one that is not finite.

    Returns:
        how many ran, whether all were finite, and what they gave, `[K, ...]` each.
    """
    size = batch.reward.shape[0]
    traced = tf.function(once, autograph=False).get_concrete_function(_row(batch, 0), start)
    # XLA rounds otherwise in what it fuses with the row's way out of the batches and the results' way to their stacks,
    # which depend on K. So both are carried: a pass is given its row, and stacks what the one before it gave.
    nothing = tf.nest.map_structure(lambda value: tf.zeros(value.shape, value.dtype), traced.structured_outputs[1])

    def unfinished(k: Any, finite: Any, row: Any, result: Any, stacks: Any) -> Any:
        return (k < count) & finite if stop else k < count

    def body(k: Any, finite: Any, row: Any, result: Any, stacks: Any) -> tuple:
        good, new = traced(row, start + k)
        return k + 1, finite & good, _row(batch, tf.minimum(k + 1, size - 1)), new, pushed(stacks, result)

    begin = tf.constant(0), tf.constant(True), _row(batch, 0), nothing, stacks_for(nothing, size)
    ran, finite, _, result, stacks = tf.while_loop(unfinished, body, begin)
    return ran, finite, rolled(pushed(stacks, result), ran)


def stacks_for(values: Any, size: int) -> Any:
    """Return zeros `[K, ...]` for what K updates give, of which this is one's."""
    return tf.nest.map_structure(lambda value: tf.zeros((size, *value.shape), value.dtype), values)


def rolled(stacks: Any, count: Any) -> Any:
    """Return the stacks with the last `count` values first."""
    return tf.nest.map_structure(lambda stack: tf.roll(stack, count, 0), stacks)


def pushed(stacks: Any, values: Any) -> Any:
    """Return the stacks with each value at its end, and without their first."""
    # To write at k instead would keep XLA on the CPU from running independent operations side by side.
    return tf.nest.map_structure(lambda stack, value: tf.concat([stack[1:], value[None]], 0), stacks, values)


def _row(batch: Batch, k: Any) -> Batch:
    return tf.nest.map_structure(lambda array: array[k], batch)


def _run_eagerly(agent: Agent, batch: Batch, count: int) -> GroupResult:
    rows = []
    for k in range(count):
        old = [variable.value.read_value() for variable in agent.all_variables]
        row = tf.nest.map_structure(lambda array, k=k: tf.convert_to_tensor(array[k]), batch)
        finite, result = _once(agent, row, (agent.updates + k) % agent.update_period)
        rows.append(result)
        if not finite:
            for variable, value in zip(agent.all_variables, old, strict=True):
                variable.value.assign(value)
            break
    logs, feedback = tf.nest.map_structure(lambda *values: tf.stack(values), *rows)
    return GroupResult(logs, feedback, len(rows) if finite else len(rows) - 1)


def compile_forward(agent: Agent, jit_compile: bool | str) -> Callable[[Any], np.ndarray]:
    """Return the compiled forward pass from observations `[N, ...]` to host arrays."""

    def forward(observation: Any) -> Any:
        agent.trace_counts["forward"] += 1
        return agent.outputs(observation)

    if jit_compile is False:
        return lambda observation: np.asarray(forward(tf.convert_to_tensor(observation)))
    programs: dict[tuple, Any] = {}

    def run(observation: Any) -> np.ndarray:
        tensor = tf.convert_to_tensor(observation)
        kind = tensor.dtype, tuple(tensor.shape[1:])
        if kind not in programs:
            # Left to itself, TensorFlow traces two sizes of batches, and warns users who make several agents.
            spec = tf.TensorSpec((None, *kind[1]), tensor.dtype)
            programs[kind] = tf.function(forward, autograph=False).get_concrete_function(spec)
        return np.asarray(programs[kind](tensor))

    return run

"""Compiled gradient updates on TensorFlow: one `tf.function` under XLA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from noterl.backends.common import GatheredRows, GroupResult, Rows, UpdateProgram, apply_finite, is_single, num_updates
from noterl.backends.finite import finiteness_probes
from noterl.backends.tensorflow.cache import align_names, first_call, publish
from noterl.backends.tensorflow.gradients import FiniteFlag, all_finite
from noterl.backends.transfer import HostReport, pack, unpack
from noterl.types import Batch

# (batch, index) -> (whether the update is finite or applied, results)
_Once = Callable[..., tuple[Any, Any]]


class EagerUpdates(UpdateProgram):
    """One update for each call, without compilation; `SeparateUpdates` runs several."""

    def __post_init__(self) -> None:
        self._state = [variable.value for variable in self.variables]

    def __call__(self, rows: Rows, count: int, first: int = 0) -> GroupResult:
        """Make the update of the first batch."""
        applied, (result, stopped) = self._once_or_undone(tf.nest.map_structure(tf.convert_to_tensor, _row(rows, 0)))
        logs, feedback = tf.nest.map_structure(lambda value: value[None], result)
        return GroupResult(logs, feedback, int(applied), bool(stopped))

    def _once_or_undone(self, batch: Batch, index: int = 0) -> tuple[Any, Any]:
        """Make an update; undo the update if a value is not finite or `stop` is true.

        Returns:
            whether the update is applied, the result, and whether `stop` is true.
        """
        old = self._read_state()
        with FiniteFlag(losses_only=False) as flag:
            result = self.step(batch, index)
        finite = flag.value & all_finite(finiteness_probes(self._state))
        stop = finite & (False if self.stop is None else self.stop(result[0]))
        applied = finite & ~stop
        self._write_state(old, keep=applied)
        return applied, (result, stop)

    def _read_state(self) -> list[Any]:
        return [variable.read_value() for variable in self._state]

    def _write_state(self, old: Sequence[Any], *, keep: Any) -> None:
        """Assign the old values to the variables, unless `keep` is true, which keeps the current values."""
        for variable, value in zip(self._state, old, strict=True):
            variable.assign(tf.where(keep, variable, value))


@dataclass(eq=False)
class Updates(EagerUpdates):
    """Updates as a loop that XLA compiles; see `UpdateProgram`.

    With `is_separate`, a call makes one update, without the loop.

    All updates of a call are checked once, from the losses and the state after the last update: a gradient that is not
    finite leaves a state that is not finite. Checking every gradient costs a fifth of a small update, so a second
    program checks gradients only to find the first update that failed.
    """

    is_separate: bool = field(default=False, kw_only=True)
    xla: ClassVar[bool] = True  # whether XLA compiles the whole call

    def __post_init__(self) -> None:
        super().__post_init__()
        self._host_report = HostReport(lambda parts: tf.concat(parts, 0))
        self._run_all, self._run_until_non_finite, self._run_until_stop = (
            _Compiled(function, self.xla) for function in (self._all, self._until_non_finite, self._until_stop)
        )

    def __call__(self, rows: Rows, count: int, first: int = 0) -> GroupResult:
        """Make `count` updates, of which the first has the number `first`."""
        start = first % self.period
        if self.stop is not None:
            applied, stopped, (logs, feedback) = self._run_until_stop(rows, count, start)
            return GroupResult(logs, feedback, int(applied), bool(stopped))
        find = partial(self._run_until_non_finite, rows, count, start)
        return apply_finite(lambda fewer: self._apply(rows, fewer, start), find, count)

    def _apply(self, rows: Rows, count: int, start: int) -> GroupResult | None:
        """Run `count` updates; if one update is not finite, change nothing and return None."""
        vector, logs, feedback = self._run_all(rows, count, start)
        finite, logs, weights = self._host_report.read(np.asarray(vector), logs)
        return GroupResult(logs, feedback, count, weights=weights) if finite else None

    def _all(self, rows: Rows, count: Any, start: Any) -> tuple[Any, dict, dict]:
        """Make all updates, or none if one is not finite.

        Returns:
            the vector of `HostReport`, the logs that are not in the vector, and the feedback for the memory.
        """
        self.on_trace()
        old = self._read_state()
        once = partial(self._once, losses_only=True)
        _, finite, (logs, feedback) = self._repeat(once, rows, count, start, until_false=False)
        finite &= all_finite(finiteness_probes(self._state))
        # If a value is not finite, the old state replaces the result of all updates.
        self._write_state(old, keep=finite)
        weights = [tf.reshape(variable.value, [-1]) for variable in self.report]
        vector, other_logs = self._host_report.write(tf.cast(finite, tf.float32)[None], logs, weights)
        return vector, other_logs, feedback

    def _until_non_finite(self, rows: Rows, count: Any, start: Any) -> tuple[Any, tuple[dict, dict]]:
        """Return the number of updates before the first that is not finite, and the results; change nothing."""
        old = self._read_state()
        once = partial(self._once, losses_only=False)
        ran, finite, result = self._repeat(once, rows, count, start, until_false=True)
        self._write_state(old, keep=False)
        # The loop has run the failed update too.
        return tf.where(finite, ran, ran - 1), result

    def _until_stop(self, rows: Rows, count: Any, start: Any) -> tuple[Any, Any, tuple[dict, dict]]:
        """Make updates until one is undone; return the number applied, whether `stop` was true, and the results."""
        self.on_trace()
        ran, applied, (result, stopped) = self._repeat(self._once_or_undone, rows, count, start, until_false=True)
        return tf.where(applied, ran, ran - 1), tf.reduce_any(stopped), result

    def _once(self, batch: Batch, index: int = 0, *, losses_only: bool) -> tuple[Any, tuple[dict, dict]]:
        """Make one update; return whether the numbers are finite, and the result."""
        with FiniteFlag(losses_only=losses_only) as flag:
            result = self.step(batch, index)
        return flag.value, result

    def _repeat(self, once: _Once, rows: Rows, count: Any, start: Any, *, until_false: bool) -> tuple[Any, Any, Any]:
        """Make `count` updates, each on a separate batch; with `until_false`, none after one that returned False.

        Returns:
            the number of updates that ran, whether all returned True, and the results `[K, ...]`.
        """
        once = self._switched(once)
        if self.is_separate or is_single(rows, self.variables):
            good, result = once(_row(rows, 0), start)
            return tf.constant(1), good, tf.nest.map_structure(lambda value: value[None], result)
        size = num_updates(rows)
        traced = tf.function(once, autograph=False).get_concrete_function(_row(rows, 0), start)
        # XLA fuses the lookup of a batch and the storing of results into the update, and then rounding depends on K.
        # So the loop carries both: an iteration receives its batch, and stores the results of the one before.
        nothing = tf.nest.map_structure(lambda value: tf.zeros(value.shape, value.dtype), traced.structured_outputs[1])
        stacks = tf.nest.map_structure(lambda value: tf.zeros((size, *value.shape), value.dtype), nothing)

        def unfinished(k: Any, good: Any, batch: Any, result: Any, stacks: Any) -> Any:
            return (k < count) & good if until_false else k < count

        def body(k: Any, good: Any, batch: Any, result: Any, stacks: Any) -> tuple:
            also_good, new = traced(batch, start + k)
            return k + 1, good & also_good, _row(rows, tf.minimum(k + 1, size - 1)), new, _pushed(stacks, result)

        begin = tf.constant(0), tf.constant(True), _row(rows, 0), nothing, stacks
        ran, good, _, result, stacks = tf.while_loop(unfinished, body, begin)
        stacks = _pushed(stacks, result)
        return ran, good, tf.nest.map_structure(lambda stack: tf.roll(stack, ran, 0), stacks)

    def _switched(self, once: _Once) -> Callable[[Batch, Any], tuple[Any, Any]]:
        """Return `once` for the number of an update, with one branch for each index within the period."""
        period = self.period
        if period == 1:
            return lambda batch, number: once(batch)
        return lambda batch, number: tf.switch_case(
            number % period, [partial(once, batch, index) for index in range(period)]
        )


class _Compiled:
    """A function that is compiled for each shape of its rows.

    Args:
        function: takes `(rows, count, start)` and returns tensors.
        xla: whether XLA compiles the function; False to trace only.
    """

    def __init__(self, function: Callable[..., Any], xla: bool) -> None:
        self._function = function
        self._xla = xla
        self._programs: dict[tuple, Any] = {}

    def __call__(self, rows: Rows, count: int, start: int) -> Any:
        """Return the result of the function; the first call with rows of new shapes compiles the function."""
        if isinstance(rows, GatheredRows):
            arrays = tf.nest.flatten(rows)
            key: tuple = tuple((tuple(array.shape), str(array.dtype)) for array in arrays)
        else:
            arrays, key = pack(rows)
        tensors = [_number(count), _number(start), *map(tf.convert_to_tensor, arrays)]
        if key not in self._programs:

            def make() -> Callable[[], Any]:
                self._programs[key] = program, captured = self._program(rows, key, tensors)
                return lambda: program._call_flat(tensors, captured)  # XLA compiles in the first call

            result = first_call(make)
            publish()
            return result
        program, captured = self._programs[key]
        # Skips binding arguments by name and type, which takes longer than a small update.
        return program._call_flat(tensors, captured)

    def _program(self, rows: Rows, key: tuple, tensors: list[Any]) -> Any:
        """Return the compiled function of packed rows, and the variables that TensorFlow passes in each call."""
        structure = tf.nest.map_structure(lambda _: 0, rows)  # keeps no array in memory

        def run(count: Any, start: Any, *flat: Any) -> Any:
            gathered = isinstance(structure, GatheredRows)
            inputs = tf.nest.pack_sequence_as(structure, flat) if gathered else unpack(flat, key, _cast)
            return self._function(inputs, count, start)

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
        align_names()
        program = tf.function(run, jit_compile=self._xla, autograph=False).get_concrete_function(*specs)
        return program, program.captured_inputs


@cache
def _number(value: int) -> Any:
    return tf.constant(value, tf.int32)


def _cast(words: Any, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
    return tf.reshape(tf.bitcast(words, dtype), shape)


def _row(rows: Rows, k: Any) -> Batch:
    """Return batch `k`."""
    if isinstance(rows, GatheredRows):
        return tf.nest.map_structure(lambda array: tf.gather(array, rows.indices[k]), rows.data)
    return tf.nest.map_structure(lambda array: array[k], rows)


def _pushed(stacks: Any, values: Any) -> Any:
    """Return the stacks without their first value and with a new last one."""
    # Writing at position k instead keeps XLA on the CPU from running independent operations in parallel.
    return tf.nest.map_structure(lambda stack, value: tf.concat([stack[1:], value[None]], 0), stacks, values)

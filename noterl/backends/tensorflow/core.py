"""The TensorFlow backend; `noterl.backends.interface` documents the functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from noterl.backends.common import CallProgram, Program, SeparateUpdates, Step, Variables, is_dense
from noterl.backends.interface import Backend, Capabilities
from noterl.backends.tensorflow.cache import align_names, first_call
from noterl.backends.tensorflow.gradients import gradients, hessian_product, isolated, minimize
from noterl.backends.tensorflow.updates import EagerUpdates, Updates
from noterl.utils.cores import available_cores

_hard_copies: dict[tuple[int, ...], tuple[Any, list, list]] = {}


def fetch(value: Any) -> np.ndarray:
    """Copy a device value (tensor or `keras.Variable`) to a NumPy array."""
    return np.array(value.value if isinstance(value, keras.Variable) else value)


def is_tracing() -> bool:
    """Whether the current code is being compiled: the code runs once, and Python numbers become constants."""
    return not tf.executing_eagerly()


def device_name() -> str:
    """Return the name of the first GPU that TensorFlow detects, or of the CPU."""
    return str((tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU"))[0].name)


def device_names() -> list[str]:
    """Return the devices that TensorFlow detects."""
    return [
        str(device.name)
        for device_type in ("CPU", "GPU", "TPU")
        for device in tf.config.list_logical_devices(device_type)
    ]


def update_threads(variables: Sequence[keras.Variable], batch_size: int) -> int:
    """Return the number of threads of an update with this batch size, on the CPU; all operations share the threads."""
    chosen = tf.config.threading.get_intra_op_parallelism_threads() or os.environ.get("TF_NUM_INTRAOP_THREADS")
    return int(chosen or available_cores())


def scan(step: Callable[[Any, Any], Any], start: Any, rows: Any) -> Any:
    """Return the values that a compiled loop takes."""
    return tf.scan(step, rows, start)


def weights_reader(variables: Sequence[keras.Variable]) -> Callable[[], list[np.ndarray]]:
    """Return a function that returns the current weights as NumPy arrays."""
    read = tf.raw_ops.ReadVariableOp  # a third of the time of `variable.numpy()`
    values = [variable.value for variable in variables]
    return lambda: [read(resource=value.handle, dtype=value.dtype).numpy() for value in values]


def copy_variables(sources: Sequence[keras.Variable], targets: Sequence[keras.Variable], tau: Any) -> None:
    """Move the targets towards the sources by `tau`."""
    if tf.executing_eagerly() and float(tau) == 1.0:
        copy = _hard_copy(sources, targets)
        copy._call_flat([], copy.captured_inputs)
        return
    for source, target in zip(sources, targets, strict=True):
        old = target.value
        new = source.value
        if target.value.dtype.is_floating:
            coefficient = keras.ops.convert_to_tensor(tau, dtype=target.dtype)
            new = tf.where(coefficient == 1.0, new, old + coefficient * (new - old))
        target.assign(new)


def _hard_copy(sources: Sequence[keras.Variable], targets: Sequence[keras.Variable]) -> Any:
    """Return the concrete function that copies the variables: a sixth of the time of separate assignments."""
    key = (*map(id, sources), *map(id, targets))
    entry = _hard_copies.get(key)
    if entry is None:
        # The stored variables keep deleted agents in memory, so there are at most 16 entries.
        if len(_hard_copies) == 16:
            _hard_copies.clear()

        def copy() -> None:
            for source, target in zip(sources, targets, strict=True):
                target.value.assign(source.value)

        program = tf.function(copy, autograph=False).get_concrete_function()
        # The variables are stored too, so that their ids are not reused.
        entry = _hard_copies[key] = program, list(sources), list(targets)
    return entry[0]


def dry_run(function: Callable[[], None], variables: Variables, jit_compile: bool | str = "auto") -> None:
    """Call `function` for the side effects in Python, and undo the assignments to `variables`."""
    isolated(function, variables)


def leave_scope(variables: Sequence[keras.Variable], optimizers: Iterable[Any]) -> None:
    """Make what was built in a strategy's scope independent of the scope: `fit(strategy=)` makes separate copies."""
    for variable in variables:
        value = variable.value
        if isinstance(value, tf.distribute.DistributedValues):
            variable._value = tf.Variable(value.values[0].read_value(), trainable=value.trainable, name=variable.name)
            _hard_copies.clear()  # they hold the values of before
    for optimizer in optimizers:
        if isinstance(optimizer, keras.optimizers.Optimizer):
            optimizer._distribution_strategy = tf.distribute.get_strategy()


capabilities: Capabilities = {"scopes": leave_scope}


def compile_updates(step: Step, variables: Sequence[Any], *, period: int = 1, **options: Any) -> Program:
    """Compile gradient updates; `UpdateProgram` documents the arguments."""
    if options.get("jit_compile") is False:
        return SeparateUpdates(lambda single: EagerUpdates(single, variables, **options), step, period)
    # On the CPU, gradients of convolutions are slow inside of compiled loops; see `SeparateUpdates`.
    if is_dense(variables) or tf.config.list_logical_devices("GPU"):
        return Updates(step, variables, period=period, **options)
    return SeparateUpdates(lambda single: Updates(single, variables, is_separate=True, **options), step, period)


class Call(CallProgram):
    """A `tf.function`, compiled by XLA unless for acting; see `CallProgram`."""

    def __post_init__(self) -> None:
        self._programs: dict[tuple, Any] = {}

    def __call__(self, inputs: Any) -> Any:
        """Return the result of the function; the first call with inputs of new shapes compiles the function."""
        if self.jit_compile is False:
            self.on_trace()
            result = self.function(tf.nest.map_structure(tf.convert_to_tensor, inputs))
        else:
            flat = [tf.convert_to_tensor(array) for array in tf.nest.flatten(inputs)]
            # Without a signature, TensorFlow traces twice, and warns users who create several agents.
            shapes = [(None, *tensor.shape[1:]) if self.acting else tuple(tensor.shape) for tensor in flat]
            key = tuple(shapes), tuple(tensor.dtype for tensor in flat)
            if key in self._programs:
                result = self._programs[key](*flat)
            else:

                def make() -> Callable[[], Any]:
                    self._programs[key] = self._program(inputs, map(tf.TensorSpec, *key))
                    return lambda: self._programs[key](*flat)

                result = first_call(make)
        return tf.nest.map_structure(np.asarray, result) if self.acting else result

    def _program(self, inputs: Any, specs: Iterable[tf.TensorSpec]) -> Callable[..., Any]:
        """Trace the function for inputs of this structure; the program takes the leaves of the inputs."""
        structure = tf.nest.map_structure(lambda _: 0, inputs)  # keeps no array in memory

        def traced(*flat: Any) -> Any:
            self.on_trace()
            return self.function(tf.nest.pack_sequence_as(structure, flat))

        if not self.acting:
            align_names()
        jit_compile = None if self.acting else True
        return tf.function(traced, jit_compile=jit_compile, autograph=False).get_concrete_function(*specs)


compile_call = Call

if TYPE_CHECKING:
    from noterl.backends.tensorflow import core

    _contract: Backend = core

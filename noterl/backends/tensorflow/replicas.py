"""Updates that the replicas of a `tf.distribute.Strategy` share.

The strategy runs the update on its devices and reduces gradients; the variables are ours. The agent's own variables are
those of the first local replica, and each further device has a copy. While a replica's update is traced, the agent's
variables refer to its copies, and TensorFlow sees no strategy. So networks, optimizers and targets work as on one device, and
XLA compiles what lies between two reductions; it cannot compile a reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import keras
import tensorflow as tf

from noterl.backends.tensorflow.gradients import FiniteFlag, and_finite, replicas
from noterl.backends.tensorflow.updates import Updates
from noterl.types import Batch

T = TypeVar("T")

# The context outside of every strategy, in which optimizers of Keras apply gradients as on one device.
_no_strategy = tf.distribute.get_replica_context()


class _NeedsReduction(Exception):
    """Raised if a loss reduces values over the replicas, so that XLA cannot compile it."""


class Devices:
    """The variables of an agent on the local devices of a strategy.

    Args:
        strategy: its replicas share the updates.
        variables: the agent's variables, which are those of the first device.
    """

    def __init__(self, strategy: tf.distribute.Strategy, variables: Sequence[keras.Variable]) -> None:
        self.strategy, self.variables = strategy, list(variables)
        self.own = [variable.value for variable in variables]
        self.names = strategy.extended.worker_devices
        self.copies = [self.own, *(self._copy(device) for device in self.names[1:])]

    def _copy(self, device: str) -> list[tf.Variable]:
        with tf.device(device):
            copies = [tf.Variable(own, trainable=own.trainable, name=own.name.partition(":")[0]) for own in self.own]
        for copy, own in zip(copies, self.own, strict=True):
            copy._unique_id = own._unique_id  # by which optimizers of Keras find the slots of a variable
        return copies

    def refer_to(self, copies: Sequence[tf.Variable]) -> None:
        """Make the agent's variables refer to those of a device."""
        for variable, value in zip(self.variables, copies, strict=True):
            variable._value = value

    def synchronize(self) -> None:
        """Copy the variables of the first device to the others."""
        for copies in self.copies[1:]:
            for copy, own in zip(copies, self.own, strict=True):
                copy.assign(own)


class Replica:
    """One replica's part of an update while it is traced.

    Args:
        devices: the variables.
        context: the replica's context.
        jit_compile: whether XLA compiles gradients and optimizers.
    """

    def __init__(self, devices: Devices, context: tf.distribute.ReplicaContext, jit_compile: bool) -> None:
        self.devices, self.context, self.jit_compile = devices, context, jit_compile
        self.number = int(tf.get_static_value(context.replica_id_in_sync_group)) % len(devices.copies)
        self._compiling = False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Trace with the variables of this replica, outside of the strategy."""
        replicas.push(self)
        try:
            with _no_strategy:
                self.devices.refer_to(self.devices.copies[self.number])
                yield
        finally:
            self.devices.refer_to(self.devices.own)
            replicas.pop()

    def mean(self, values: Sequence[Any]) -> list[Any]:
        """Return the means of tensors over all replicas, with one reduction for each dtype."""
        if self._compiling:
            raise _NeedsReduction
        means: dict[int, Any] = {}
        for dtype in dict.fromkeys(value.dtype for value in values):
            own = [index for index, value in enumerate(values) if value.dtype == dtype]
            flat = tf.concat([tf.reshape(values[index], [-1]) for index in own], 0)
            with self.context:
                flat = self.context.all_reduce(tf.distribute.ReduceOp.MEAN, flat)
            sizes = [values[index].shape.num_elements() for index in own]
            parts = tf.split(flat, sizes)
            means.update({i: tf.reshape(part, values[i].shape) for i, part in zip(own, parts, strict=True)})
        # Another replica was traced in the meantime, and left the agent's variables referring to its own.
        self.devices.refer_to(self.devices.copies[self.number])
        return [means[index] for index in range(len(values))]

    def mean_gradients(self, take: Callable[[], tuple[Any, Any, list[Any]]]) -> tuple[Any, Any, list[Any]]:
        """Return `take()`: a loss, auxiliary values and gradients; the loss and the gradients are means over all replicas."""
        try:
            loss, aux, found = self.compiled(take)
        except _NeedsReduction:
            loss, aux, found = take()
        used = [gradient for gradient in found if gradient is not None]
        loss, *means = self.mean([loss, *map(tf.convert_to_tensor, used)])
        reduced = iter(means)
        return loss, aux, [None if gradient is None else next(reduced) for gradient in found]

    def compiled(self, function: Callable[[], T]) -> T:
        """Return `function()`, compiled by XLA."""
        if not self.jit_compile or self._compiling:
            return function()
        self._compiling = True
        try:
            result: T = tf.function(function, jit_compile=True, autograph=False)()
        finally:
            self._compiling = False
        return result


@dataclass(eq=False)
class ReplicatedUpdates(Updates):
    """Updates of which each replica computes its share; see `UpdateProgram`.

    TensorFlow runs the loop over updates. Every call starts with the variables of the first device, which callbacks, hard
    copies and restored states change.
    """

    devices: Devices = field(kw_only=True)
    xla = False

    def __post_init__(self) -> None:
        self._own_step, self.step = self.step, self._shared_step  # type: ignore[method-assign]
        super().__post_init__()

    def _repeat(self, *args: Any, **options: Any) -> tuple[Any, Any, Any]:
        self.devices.synchronize()
        return super()._repeat(*args, **options)

    def _shared_step(self, batch: Batch, index: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make one update, of which each replica computes its share; return the global logs and all feedback."""
        strategy = self.devices.strategy
        results = strategy.run(self._share_of_step, args=(batch, index))
        local = strategy.experimental_local_results
        finite, logs, feedback = tf.nest.map_structure(local, results)
        and_finite(finite[0])
        return {name: each[0] for name, each in logs.items()}, {name: tf.concat(each, 0) for name, each in feedback.items()}

    def _share_of_step(self, batch: Batch, index: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        replica = Replica(self.devices, tf.distribute.get_replica_context(), self.jit_compile is not False)
        shares = len(self.devices.copies)
        own = tf.nest.map_structure(lambda array: tf.split(array, shares)[replica.number], batch)
        with replica.active(), FiniteFlag(losses_only=False) as flag:
            logs, feedback = self._own_step(own, index)
            names = [name for name, value in logs.items() if tf.as_dtype(value.dtype).is_floating]
            means = replica.mean([tf.convert_to_tensor(logs[name]) for name in names])
        return flag.value, {**logs, **dict(zip(names, means, strict=True))}, feedback

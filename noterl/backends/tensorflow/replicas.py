"""Updates that the replicas of a `tf.distribute.Strategy` share.

The strategy runs the update on its devices and reduces gradients; the variables are ours. The agent's own variables
belong to the first local replica, and each further device has a copy. While a replica's update is traced, the agent's
variables refer to the replica's copies, and TensorFlow sees no strategy. So networks, optimizers and targets work as on
one device. XLA compiles the code between two reductions, but cannot compile a reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import keras
import tensorflow as tf

from noterl.backends.replicas import averaging, mean_of_step, means_by_dtype
from noterl.backends.tensorflow.gradients import FiniteFlag, and_finite
from noterl.backends.tensorflow.updates import Updates
from noterl.types import Batch

T = TypeVar("T")

# The context outside of every strategy, in which optimizers of Keras apply gradients as on one device.
_no_strategy = tf.distribute.get_replica_context()


class _NeedsReduction(Exception):
    """Raised while a loss is compiled that averages over the replicas, which XLA cannot compile."""


def mirrored() -> tf.distribute.MirroredStrategy:
    """Return a strategy of all GPUs, or of all logical CPUs."""
    if tf.config.list_logical_devices("GPU"):
        return tf.distribute.MirroredStrategy()
    # Collectives between CPUs are slower than a sum on one of them.
    return tf.distribute.MirroredStrategy(cross_device_ops=tf.distribute.ReductionToOneDevice())


def copies_of(values: Sequence[tf.Variable]) -> list[tf.Variable]:
    """Return copies of variables of TensorFlow, which have the same slots in optimizers of Keras."""
    copies = [
        tf.Variable(value.numpy(), trainable=value.trainable, name=value.name.partition(":")[0]) for value in values
    ]
    for copy, value in zip(copies, values, strict=True):
        copy._unique_id = value._unique_id  # by which optimizers find the slots of a variable
    return copies


def refer(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Make variables of Keras refer to these values."""
    for variable, value in zip(variables, values, strict=True):
        variable._value = value


@contextmanager
def tracing_with(replica: Any, variables: Sequence[Any], values: Sequence[Any]) -> Iterator[None]:
    """Trace with these values of variables, outside of the strategy; `replica` averages."""
    before = [variable._value for variable in variables]
    with averaging(replica), _no_strategy:
        refer(variables, values)
        try:
            yield
        finally:
            refer(variables, before)


class Devices:
    """The variables of an agent on the local devices of a strategy.

    Args:
        strategy: the strategy whose replicas share the updates.
        variables: the agent's variables, which the first device uses.
    """

    def __init__(self, strategy: tf.distribute.Strategy, variables: Sequence[keras.Variable]) -> None:
        self.strategy = strategy
        self.variables: list[Any] = list(variables)
        self.own: list[Any] = [variable.value for variable in variables]
        self.copies = [self.own, *(self._copy(device) for device in strategy.extended.worker_devices[1:])]

    def _copy(self, device: str) -> list[tf.Variable]:
        with tf.device(device):
            return copies_of(self.own)

    def synchronize(self) -> None:
        """Copy the variables of the first device to the others."""
        for copies in self.copies[1:]:
            for copy, value in zip(copies, self.own, strict=True):
                copy.assign(value)


class Replica:
    """One replica's part of an update during tracing; see `noterl.backends.replicas.Replicas`.

    Args:
        devices: the variables.
        jit_compile: whether XLA compiles gradients and optimizers.
    """

    def __init__(self, devices: Devices, jit_compile: bool) -> None:
        self._devices = devices
        self._jit_compile = jit_compile
        self._context = tf.distribute.get_replica_context()
        self.count = self._context.num_replicas_in_sync
        self.number: int = int(tf.get_static_value(self._context.replica_id_in_sync_group)) % len(devices.copies)
        self._is_compiling = False
        self._reduced: list[Any] = []  # the means inside of a loss, in their order
        self._reused: Iterator[Any] = iter(())  # those means, for compiling the loss

    def active(self) -> AbstractContextManager[None]:
        """Return the context in which a program is traced with the variables of this replica."""
        return tracing_with(self, self._devices.variables, self._devices.copies[self.number])

    def mean(self, value: Any) -> Any:
        """Return the mean of a tensor over the replicas, without a gradient.

        While XLA compiles a loss, the means from the trace before are returned in order; see `mean_gradients`.

        Raises:
            _NeedsReduction: if XLA compiles the loss, and the mean was not computed before.
        """
        if not self._is_compiling:
            self._reduced += self.mean_of_all([tf.stop_gradient(value)])
            return self._reduced[-1]
        reduced = next(self._reused, None)
        if reduced is None:
            raise _NeedsReduction
        return reduced

    def mean_of_all(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the means of tensors over all replicas, by one reduction for each dtype."""

        def mean(group: list[Any]) -> list[Any]:
            bucket = tf.concat([tf.reshape(tensor, [-1]) for tensor in group], 0)
            with self._context:
                bucket = self._context.all_reduce(tf.distribute.ReduceOp.MEAN, bucket)
            flat_means = tf.split(bucket, [tensor.shape.num_elements() for tensor in group])
            return [tf.reshape(flat, tensor.shape) for flat, tensor in zip(flat_means, group, strict=True)]

        means = means_by_dtype(tensors, mean)
        # Another replica was traced in the meantime, and the variables refer to its copies.
        refer(self._devices.variables, self._devices.copies[self.number])
        return means

    def mean_gradients(
        self, take: Callable[[], tuple[Any, Any, list[Any]]], loss: Callable[[], Any]
    ) -> tuple[Any, Any, list[Any]]:
        """Return `take()`: a loss, auxiliary values and gradients. The loss and gradients are means over all replicas.

        XLA cannot compile the means inside of a loss, such as the means of advantages. Such a loss is traced
        twice: once without XLA for the means, and once with the means as inputs. TensorFlow removes the rest of the
        first trace.
        """
        try:
            value, aux, grads = self._compiled(take)
        except _NeedsReduction:
            self._reduced = []
            loss()
            self._reused = iter(self._reduced)
            value, aux, grads = self._compiled(take)
        dense = [gradient if gradient is None else tf.convert_to_tensor(gradient) for gradient in grads]
        value, means = mean_of_step(self, value, dense)
        return value, aux, means

    def apply(self, optimizer: Any, gradients: list[Any], variables: list[keras.Variable]) -> None:
        """Apply the optimizer to the variables of this replica."""
        self._compiled(lambda: optimizer.apply(gradients, variables))

    def _compiled(self, function: Callable[[], T]) -> T:
        """Return `function()`, compiled by XLA."""
        if not self._jit_compile:
            return function()
        self._is_compiling = True
        try:
            result: T = tf.function(function, jit_compile=True, autograph=False)()
        finally:
            self._is_compiling = False
        return result


@dataclass(eq=False)
class ReplicatedUpdates(Updates):
    """Updates of which each replica computes a share; see `UpdateProgram`.

    TensorFlow runs the loop over updates. Every call starts with the variables of the first device, because callbacks,
    hard copies and restored states change only those.
    """

    devices: Devices = field(kw_only=True)
    axis: int = field(default=0, kw_only=True)  # of a batch, along which replicas share it
    xla = False

    def __post_init__(self) -> None:
        self._own_step = self.step
        self.step = self._shared_step
        super().__post_init__()

    def _repeat(self, *args: Any, **options: Any) -> tuple[Any, Any, Any]:
        """Copy the variables to all devices, and make updates as in `Updates`."""
        self.devices.synchronize()
        return super()._repeat(*args, **options)

    def _shared_step(self, batch: Batch, index: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make one update, of which each replica computes a share; return the global logs and all feedback."""
        strategy = self.devices.strategy
        shares = len(self.devices.copies)
        size = int(batch.reward.shape[self.axis])
        if size % shares:
            name = "num_envs" if self.axis else "batch_size"
            raise ValueError(
                f"{name} must be divisible by the {shares} replicas of the strategy, got {size} rows in an update; "
                "a whole rollout has rollout_steps times the number of environments"
            )
        results = strategy.run(self._share_of_step, args=(batch, index))
        finite, logs, feedback = tf.nest.map_structure(strategy.experimental_local_results, results)
        and_finite(finite[0])
        # Logs are means over all replicas, so every replica has the same.
        means = {name: values[0] for name, values in logs.items()}
        return means, {name: tf.concat(values, 0) for name, values in feedback.items()}

    def _share_of_step(self, batch: Batch, index: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Make one replica's share of an update; return whether all is finite, the global logs and own feedback."""
        replica = Replica(self.devices, self.jit_compile is not False)
        shares = len(self.devices.copies)
        share = tf.nest.map_structure(lambda array: tf.split(array, shares, self.axis)[replica.number], batch)
        with replica.active(), FiniteFlag(losses_only=False) as flag:
            logs, feedback = self._own_step(share, index)
            means = replica.mean_of_all([tf.cast(value, value.dtype) for value in logs.values()])
        return flag.value, dict(zip(logs, means, strict=True)), feedback

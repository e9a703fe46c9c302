"""Strategies of TensorFlow, which run our update by `strategy.run`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from noterl.backends.common import Program, Step
from noterl.distribute.base import Strategy


class Mirrored(Strategy):
    """`strategy="mirrored"`: the devices of one process share each batch.

    The process collects and samples as without a strategy. Each device has a copy of the variables and computes its share
    of the update. TensorFlow averages the gradients of the devices. With one device, updates run as without a strategy.

    Args:
        strategy: a `tf.distribute.MirroredStrategy`; by default one of all GPUs, or of all logical CPUs.
    """

    word, backend = "mirrored", "tensorflow"

    def __init__(self, strategy: Any = None) -> None:
        from noterl.backends.tensorflow import replicas

        self._strategy = replicas.mirrored() if strategy is None else strategy
        self.replicas = int(self._strategy.num_replicas_in_sync)

    def compile_updates(self, step: Step, variables: Sequence[Any], **options: Any) -> Program:
        """Compile updates on batches that are divided among the devices."""
        if self.replicas == 1:
            return super().compile_updates(step, variables, **options)
        from noterl.backends.tensorflow.replicas import Devices, ReplicatedUpdates

        return ReplicatedUpdates(step, variables, devices=Devices(self._strategy, variables), **options)

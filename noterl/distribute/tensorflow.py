"""Strategies of TensorFlow, which run our update by `strategy.run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from noterl.backends.common import Program, Step
from noterl.distribute.base import Strategy, StrategyError
from noterl.distribute.tf_config import Cluster


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

    def check(self, memory: str) -> None:
        """Check that the replicas can share the agent's batches."""
        if memory == "sequences" and self.replicas > 1:
            raise ValueError(
                f"strategy={self.word!r} does not support agents that replay sequences (ACER): replicas share batches of "
                "transitions; use more environments, num_envs=, or workers="
            )

    def compile_updates(self, step: Step, variables: Sequence[Any], **options: Any) -> Program:
        """Compile updates on batches that are divided among the devices."""
        if self.replicas == 1:
            return super().compile_updates(step, variables, **options)
        from noterl.backends.tensorflow.replicas import Devices, ReplicatedUpdates

        return ReplicatedUpdates(step, variables, devices=Devices(self._strategy, variables), **options)


class MultiWorker(Mirrored):
    """`strategy="multiworker"`: each process collects and samples its share; TensorFlow averages their gradients.

    Processes find each other by `TF_CONFIG`. TensorFlow can connect them only before it creates its first tensor, so
    the first agent of a process that has such a `TF_CONFIG` connects it.

    Args:
        strategy: a `tf.distribute.MultiWorkerMirroredStrategy` that the script has made; by default one is made.

    Raises:
        ValueError: if `TF_CONFIG` does not describe the processes, or TensorFlow was used before.
        StrategyError: if the processes cannot connect to each other.
    """

    word = "multiworker"

    def __init__(self, strategy: Any = None) -> None:
        from noterl.backends.tensorflow import workers

        cluster = Cluster.read(self.word)
        self.rank, self.processes = cluster.rank, len(cluster.workers)
        if strategy is None:
            try:
                strategy = workers.connect(cluster.workers, self.rank)
            except workers.ConnectionLost as error:
                raise StrategyError(f"strategy='multiworker': {error}") from error
        super().__init__(strategy)
        self._workers = workers.Workers(strategy, self.rank, self.processes)

    @contextmanager
    def attached(self, variables: Sequence[Any]) -> Iterator[None]:
        """Translate errors of the connection."""
        from noterl.backends.tensorflow.workers import ConnectionLost

        try:
            with self._workers.reporting():
                yield
        except ConnectionLost as error:
            raise StrategyError(f"strategy='multiworker': {error}") from error

    def compile_call(self, function: Callable[[Any], Any], variables: Sequence[Any], **options: Any) -> Any:
        """Compile a function of the data of this process.

        Raises:
            ValueError: when the function is called, if it averages over the processes.
        """
        program = super().compile_call(function, variables, **options)
        if self.processes == 1:
            return program
        from noterl.backends.replicas import averaging

        def run(inputs: Any) -> Any:
            with averaging(_Local()):
                return program(inputs)

        return run

    def agree(self, values: Sequence[float]) -> np.ndarray:
        """Return the values of all processes, `[processes, n]`."""
        return self._workers.agree(values)

    def gather(self, message: bytes) -> list[bytes]:
        """Return the messages of all processes."""
        return self._workers.gather(message)

    def fail(self, error: BaseException) -> None:
        """Abort the operations of the other processes."""
        if self.processes > 1 and not isinstance(error, StrategyError):
            self._workers.fail(f"{type(error).__name__}: {error}")


class _Local:
    """Stands for the replicas while a function runs that computes nothing together with other processes."""

    count = 1

    def mean(self, value: Any) -> Any:
        """Refuse an average."""
        raise ValueError(
            "strategy='multiworker' does not support agents that train in `prepare` (TRPO); use strategy='mirrored', or "
            "'ddp' on torch"
        )

    mean_of_all = mean


@cache
def start() -> None:
    """Connect this process if `TF_CONFIG` lists several workers, before TensorFlow creates its first tensor."""
    from noterl import distribute

    cluster = Cluster.find()
    if cluster is not None and not cluster.servers and len(cluster.workers) > 1:
        distribute.resolve("multiworker")

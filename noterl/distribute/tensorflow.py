"""Strategies of TensorFlow, which run our update by `strategy.run`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

from noterl.backends.common import Function, Options, Program, Step, UpdateOptions, Variables
from noterl.distribute.base import ProcessStrategy, Strategy, StrategyError
from noterl.utils.tf_config import Cluster


class Mirrored(Strategy):
    """`strategy="mirrored"`: the devices of one process share each batch.

    The process collects and samples as without a strategy. Each device has a copy of the variables and computes a share
    of the update. TensorFlow averages the gradients of the devices. With one device, updates run as without a strategy.

    Args:
        strategy: a `tf.distribute.MirroredStrategy`; by default one of all GPUs, or of all logical CPUs.
    """

    word: ClassVar[str] = "mirrored"
    backend: ClassVar[str] = "tensorflow"

    def __init__(self, strategy: Any = None) -> None:
        from noterl.backends.tensorflow import replicas

        self._strategy = replicas.mirrored() if strategy is None else strategy
        self.replicas: int = int(self._strategy.num_replicas_in_sync)

    def compile_updates(self, step: Step, variables: Variables, options: UpdateOptions, axis: int = 0) -> Program:
        """Compile updates on batches that are divided among the devices."""
        if self.replicas == 1:
            return super().compile_updates(step, variables, options)
        from noterl.backends.tensorflow.replicas import Devices, ReplicatedUpdates

        return ReplicatedUpdates(step, variables, devices=Devices(self._strategy, variables), axis=axis, **options)


class MultiWorker(ProcessStrategy, Mirrored):
    """`strategy="multiworker"`: each process collects and samples a share; TensorFlow averages the gradients.

    Processes find each other by `TF_CONFIG`. TensorFlow can connect processes only before the first tensor, so the
    first agent of a process with such a `TF_CONFIG` connects the process.

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
        if strategy is None:
            _check_unused(self.word, "MultiWorkerMirroredStrategy()")
            with self.translated():
                strategy = workers.connect(cluster.workers, cluster.rank, "chief" in cluster.jobs)
        Mirrored.__init__(self, strategy)
        self._workers = workers.Workers(strategy, cluster.rank, len(cluster.workers))
        ProcessStrategy.__init__(self, self._workers)

    @contextmanager
    def attached(self, variables: Variables) -> Iterator[None]:
        """Translate errors of the connection."""
        with self.translated(), self._workers.reporting():
            yield

    def compile_call(self, function: Function, variables: Variables, options: Options) -> Function:
        """Compile a function of the data of this process.

        Raises:
            ValueError: when the function is called, if the function averages over the processes.
        """
        program = super().compile_call(function, variables, options)
        if self.processes == 1:
            return program
        from noterl.backends.replicas import averaging

        def run(inputs: Any) -> Any:
            with averaging(_Local()):
                return program(inputs)

        return run

    def fail(self, error: BaseException) -> None:
        """Abort the operations of the other processes."""
        # A lost connection is the consequence of another error, which has been reported.
        if self.processes > 1 and not isinstance(error, StrategyError):
            self._workers.fail(f"{type(error).__name__}: {error}")


class ParameterServer(Strategy):
    """`strategy="parameter_server"`: the chief collects, and schedules updates on workers. Servers hold the variables.

    The updates of a group run at the same time on all workers, so each may use variables that lack updates of the
    others. In a process that `TF_CONFIG` calls a worker or a server, `fit` serves the chief and then ends the script.

    Args:
        strategy: a `tf.distribute.ParameterServerStrategy` that the chief's script has made; by default one is made.

    Raises:
        ValueError: if `TF_CONFIG` does not describe the processes.
        StrategyError: if the processes cannot connect to each other.
    """

    word: ClassVar[str] = "parameter_server"
    backend: ClassVar[str] = "tensorflow"

    def __init__(self, strategy: Any = None) -> None:
        from noterl.backends.tensorflow import parameter_server as backend

        cluster = Cluster.read(self.word)
        if not cluster.servers or len(cluster.jobs.get("chief", ())) != 1:
            raise ValueError(
                "strategy='parameter_server' needs one 'chief' and at least one 'worker' and 'ps' in the cluster of "
                f"TF_CONFIG, got {', '.join(cluster.jobs)}"
            )
        workers = cluster.jobs["worker"]
        if cluster.task == "chief" and strategy is None:
            _check_unused(
                self.word, "ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())"
            )
        with self.translated():
            if cluster.task != "chief":
                # The process of a worker or a server does nothing but serve the chief.
                backend.serve(cluster.task, cluster.index, cluster.jobs["chief"][0])
                raise SystemExit(0)
            connected = backend.connect(workers, cluster.servers) if strategy is None else strategy
        self._fleet = backend.Fleet(connected, workers, cluster.servers)

    def compile_updates(self, step: Step, variables: Variables, options: UpdateOptions, axis: int = 0) -> Program:
        """Compile updates that the coordinator schedules.

        Raises:
            ValueError: if an update may end the updates on a rollout (`target_kl`): these updates have no order.
        """
        from noterl.backends.tensorflow.parameter_server import ScheduledUpdates

        if options.get("stop") is not None:
            raise ValueError("strategy='parameter_server' does not support agents that stop epochs early (`target_kl`)")
        return ScheduledUpdates(step, variables, fleet=self._fleet, **options)


class _Local:
    """Stands for the replicas while a function runs that computes nothing together with other processes."""

    count = 1

    def mean(self, value: Any) -> Any:
        """Refuse an average."""
        raise ValueError(
            "strategy='multiworker' does not support agents that train in `prepare` (TRPO); use strategy='mirrored', "
            "or 'ddp' on torch"
        )

    mean_of_all = mean


def _check_unused(word: str, made: str) -> None:
    """Check that TensorFlow can still be connected to other processes.

    Raises:
        ValueError: if TensorFlow has created a tensor, such as the weights of a network.
    """
    from noterl.backends.tensorflow import workers

    if workers.is_in_use():
        raise ValueError(
            f"strategy={word!r} must connect this process before TensorFlow creates its first tensor, but a network or "
            "another tensor exists already. Set TF_CONFIG before you make the agent, and make your own networks after "
            f"the strategy:\n    strategy = tf.distribute.{made}\n    network = keras.Sequential([...])\n"
            "    agent = noterl.DQN(env, network=network)\n    agent.fit(..., strategy=strategy)"
        )


@cache
def start() -> None:
    """Connect this process if `TF_CONFIG` lists several workers, before TensorFlow creates the first tensor.

    If there is a tensor, the script may have made the strategy already; otherwise `fit` raises the error.
    """
    from noterl import distribute
    from noterl.backends.tensorflow import workers

    if workers.is_in_use():
        return
    cluster = Cluster.find()
    if cluster is None:
        return
    # Making the strategy connects the process; `resolve` returns the same object to `fit` later.
    if cluster.servers and cluster.task == "chief":
        distribute.resolve("parameter_server")
    elif not cluster.servers and len(cluster.workers) > 1:
        distribute.resolve("multiworker")

"""How many worker processes pay off, from a short measurement of the environment and the learner."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from noterl import envs
from noterl.callback import Callback
from noterl.collect import WorkerError
from noterl.finders.preserving import preserving
from noterl.utils.checks import positive
from noterl.utils.cores import available_cores
from noterl.utils.memory import available_bytes

if TYPE_CHECKING:
    from noterl.agent import BaseAgent

# Seconds of each measurement, and after which one ends although no update was made.
_SECONDS = 2.0
_LIMIT = 20.0

# A further worker must shorten the run by this share, and the workers use at most this share of the free memory.
_GAIN = 0.05
_FREE = 0.75

_MOST = 64
_LISTS = ("policy", "noise")  # arguments of `compile` that may be lists with one object for each worker


@dataclass(frozen=True)
class StepCosts:
    """What one environment step costs.

    Attributes:
        environment: seconds in which the environment steps and an action is chosen.
        learner: seconds in which the learner stores, samples and updates.
        waiting: further seconds of the exchange with a worker.
        cpu_share: the share of a step in which the environment uses a core, 0 to 1.
        worker_bytes: memory that only one worker uses.
    """

    environment: float
    learner: float
    waiting: float
    cpu_share: float
    worker_bytes: int

    def seconds(self, workers: int, cores: int) -> float:
        """Return the seconds of one step with a number of workers, which alternate with the learner."""
        if not workers:
            return self.environment + self.learner
        # An environment that waits leaves its core to others, so more workers than cores may run.
        parallel = min(workers, cores / max(self.cpu_share, cores / _MOST))
        return self.environment / parallel + self.learner + self.waiting

    def best(self, cores: int, memory: float) -> int:
        """Return the number of workers that pays off, within the cores and the memory in bytes."""
        most = math.floor(min(cores / max(self.cpu_share, cores / _MOST), memory / self.worker_bytes))
        seconds = [self.seconds(count, cores) for count in range(most + 1)]
        best = 0
        for count in range(1, most + 1):
            # A further worker must pay off against the best count so far, not against the one before.
            if seconds[count] <= seconds[best] * (1 - _GAIN):
                best = count
        return best


class _Timer(Callback):
    """Ends a `fit` with the first update after some seconds, so that whole rollouts are measured."""

    stops_training = True

    def __init__(self) -> None:
        self.worker_bytes = 0

    def on_train_begin(self, logs: Any) -> None:
        self._updates = self.agent.updates
        self._start = time.monotonic()

    def on_step_end(self) -> None:
        passed = time.monotonic() - self._start
        updates = self.agent.updates
        if (passed > _SECONDS and updates > self._updates) or passed > _LIMIT:
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):  # one that has ended
                    if "noterl.collect.workers.worker" in str(child.cmdline()):
                        self.worker_bytes = max(self.worker_bytes, child.memory_full_info().uss)
            self.agent.stop("measured")
        # Only an update after this time ends the measurement.
        if passed <= _SECONDS:
            self._updates = updates


def suggest_workers(agent: BaseAgent, env: Any = None, memory: float | None = None) -> int:
    """Measure for some seconds, print the figures, and return for how many workers `fit(workers=)` is the fastest.

    The agent is trained for a moment without workers and with one, and is restored exactly afterwards. The suggestion
    assumes one environment for each worker. A worker that shortens the run by less than 5 % is not suggested. If the
    environment waits, for a simulator or a device, there may be more workers than cores.

    Args:
        agent: the agent, with the settings of the run.
        env: the environment, as for `fit`; by default a new copy of the training environment.
        memory: bytes that all workers may use; by default three quarters of the free memory.

    Returns:
        The number of workers; 0 if none pays off, or if the agent or the environment cannot use workers.

    Raises:
        ValueError: if `memory` is not a positive number, or the environment does not fit the agent.

    Example:
    >>> import noterl
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> noterl.suggest_workers(agent)  # doctest: +SKIP
    environment 24 µs and learner 139 µs a step, 52 µs more with a worker of 42 MiB, which uses 100 % of a core
    2 cores and 15000 MiB for workers: workers=0, 6135 steps/s
    0
    """
    allowed = _FREE * available_bytes() if memory is None else positive("memory", memory)
    cores = available_cores()
    with preserving(agent):
        arguments = agent.compile_arguments
        changes = {name: row[0] for name, row in arguments.items() if name in _LISTS and isinstance(row, list | tuple)}
        if agent.memory == "replay":  # otherwise a long warm-up without updates would come first
            changes["learning_starts"] = 0
        if changes:
            agent.compile(**{**arguments, **changes})
        factory = agent.new_environment if env is None else env
        _fit(agent, factory, 0)  # compiles the updates
        split, steps, _ = _fit(agent, factory, 0)
        if "device" in split:
            print("workers=0: the agent trains on the device")
            return 0
        environment = (split["environment"] + split["act"]) / steps
        learner = sum(split[name] for name in ("store", "sample", "learn")) / steps
        try:
            split, steps, worker_bytes = _fit(agent, env, 1)  # no environment of the training is stepped
        except (ValueError, WorkerError) as error:
            print(f"workers=0: {error}")
            return 0
        taken = sum(seconds for name, seconds in split.items() if name != "callbacks") / steps
        cpu_share = _cpu_share(agent, factory)
    waiting = max(taken - environment - learner, 0.0)
    costs = StepCosts(environment, learner, waiting, cpu_share, max(worker_bytes, 1))
    count = costs.best(cores, allowed)
    print(
        f"environment {1e6 * environment:.0f} µs and learner {1e6 * learner:.0f} µs a step, {1e6 * waiting:.0f} µs "
        f"more with a worker of {worker_bytes / 2**20:.0f} MiB, which uses {cpu_share:.0%} of a core"
    )
    print(
        f"{cores} cores and {allowed / 2**20:.0f} MiB for workers: workers={count}, "
        f"{1 / costs.seconds(count, cores):.0f} steps/s"
    )
    return count


def _fit(agent: BaseAgent, env: Any, workers: int) -> tuple[dict[str, float], int, int]:
    """Train with one environment; return the time split, the steps and the memory of the worker."""
    before = agent.steps
    timer = _Timer()
    history = agent.fit(env, num_envs=1, workers=workers, callbacks=[timer], verbose=0)
    return history.time_split, agent.steps - before, timer.worker_bytes


def _cpu_share(agent: BaseAgent, env: Any) -> float:
    """Return the share of a core that the environment uses during steps with random actions."""
    source = envs.resolve(env)
    environment = source.make_evaluation()
    try:
        environment.reset(seed=0)
        environment.action_space.seed(0)
        begun = time.perf_counter()
        used = time.process_time()
        while time.perf_counter() - begun < 0.25 * _SECONDS:
            *_, terminated, truncated, _ = environment.step(environment.action_space.sample())
            if terminated or truncated:
                environment.reset()
        return min((time.process_time() - used) / (time.perf_counter() - begun), 1.0)
    finally:
        environment.close()
        if source is not env:
            source.close()

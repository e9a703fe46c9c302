"""Worker pools without a backend: an actor with a NumPy network, and helpers that look at processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from noterl import envs, heads, policies
from noterl.acting import numpy_layers
from noterl.acting.actor import Actor
from noterl.collect import PoolLanes, ScalarLanes, Workers
from noterl.collect.workers.process import WorkerHandle
from noterl.collect.workers.rounds import WorkerRounds
from noterl.envs.observation import copy_observation
from noterl.random import Generators
from noterl.types import Transition

SEGMENTS = ("/memfd:noterl", "/dev/shm/noterl-")


def _linear(x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    return numpy_layers.dense(x, *weights)


class LinearForward:
    """A linear network with the interface of `HostForward`."""

    stale = False
    noise_places = ()

    def __init__(self, inputs: int, outputs: int, in_numpy: bool = True) -> None:
        rng = np.random.default_rng(0)
        self._weights = [rng.normal(size=(inputs, outputs)).astype(np.float32), np.zeros(outputs, np.float32)]
        self._program = _linear
        self.program = self._program if in_numpy else None

    def weights(self) -> list[np.ndarray]:
        return self._weights

    def set(self, value: float) -> None:
        self._weights = [np.full_like(weight, value) for weight in self._weights]

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return numpy_layers.run_program(self._program, observations, self._weights)


def actor_for(source: envs.EnvSource, generators: Generators, in_numpy: bool = True, eps: float = 0.5) -> Actor:
    space: Any = source.action_space
    inputs = envs.observation.ObservationEncoder(source.observation_space).space.shape[0]
    forward = LinearForward(inputs, int(space.n), in_numpy)
    return Actor(forward, heads.Q().bind(space), policies.EpsGreedyQPolicy(eps), generators, np.float32)


class Pool:
    """Lanes, their actor, and a loop without a learner."""

    def __init__(
        self, env: Any, num_envs: int, workers: Any = 0, *, seed: int = 3, in_numpy: bool = True, **fields: Any
    ) -> None:
        self.source, self.generators = envs.resolve(env), Generators(seed)
        self.actor = actor_for(self.source, self.generators, in_numpy)
        settings = Workers(workers) if isinstance(workers, int) and workers else workers
        self.lanes: Any = (
            PoolLanes(self.source, num_envs, self.generators, settings, **fields)
            if settings
            else ScalarLanes(self.source, num_envs, self.generators, **fields)
        )
        self.steps = self.episodes = 0
        self.cut: list[int] = []
        self.ahead: float | None = None  # how many rounds workers may be ahead

    def start(self) -> Pool:
        if isinstance(self.lanes, PoolLanes):
            self.lanes.start(self.actor)
        return self

    def round(self) -> list[Transition]:
        """Collect one round; if workers have failed, cut the episodes and try again."""
        lanes, found = self.lanes, []
        while lanes.actions is None:
            self.cut += lanes.interrupted
            lanes.interrupted = []
            for lane in lanes.idle():
                lanes.reset(lane, self.episodes, self.steps)
                self.episodes += 1
            if lanes.interrupted:
                continue
            if isinstance(lanes, PoolLanes) and isinstance(lanes.rounds, WorkerRounds):
                lanes.rounds.collect(self.steps, self.ahead)
            else:
                lanes.begin_round(self.actor.choose_actions(lanes.observations(), self.steps)[0])
        while lanes.actions is not None:
            for transition in lanes.tick(self.steps + 1):
                self.steps += 1
                before, after = (
                    copy_observation(self.source.observation_space, observation)
                    for observation in (transition.observation, transition.next_observation)
                )
                found.append(transition._replace(observation=before, next_observation=after))
                if transition.terminated or transition.truncated:
                    lanes.ledger.finish(transition.lane)
        return found

    def rounds(self, count: int) -> list[Transition]:
        return [transition for _ in range(count) for transition in self.round()]

    def processes(self) -> list[int]:
        return [process.pid for process in self.lanes.supervisor.processes]


def time_hung_worker(patch: pytest.MonkeyPatch, flag: Path) -> None:
    """Let no worker be late but the one whose number is in a file: on a busy machine, a sound worker may be late too.

    Args:
        patch: until when.
        flag: the file of a `FaultyEnv`.
    """
    for kind in WorkerHandle, *WorkerHandle.__subclasses__():
        inside = kind.seconds_inside

        def seconds(self: Any, inside: Any = inside) -> float:
            return inside(self) if flag.exists() and flag.read_text() == str(self.pid) else 0.0

        patch.setattr(kind, "seconds_inside", seconds)


@contextmanager
def pool(*arguments: Any, **options: Any) -> Iterator[Pool]:
    """Start a pool and end its processes."""
    made = Pool(*arguments, **options)
    try:
        yield made.start()
    finally:
        if isinstance(made.lanes, PoolLanes):
            made.lanes.close(kill=True)


def children() -> list[int]:
    """Return the processes that this one has started and that run, except for those of Python and pytest."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE and "noterl.collect.workers.worker" in " ".join(child.cmdline()):
                found.append(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def running(pids: list[int]) -> list[int]:
    """Return the processes that have not ended."""
    return [pid for pid in pids if _runs(pid)]


def wait_until_gone(pids: list[int]) -> None:
    """Wait until processes have ended. A process that stays ends the test by the timeout of pytest."""
    while running(pids):
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def descriptors() -> int:
    """Return the number of open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else psutil.Process().num_fds()


def segments() -> list[str]:
    """Return noterl's shared memory: what this process has mapped, and what has a name in /dev/shm."""
    if not os.path.isdir("/dev/shm"):
        return []
    mapped = [line.split(maxsplit=5)[-1] for line in _maps()]
    named = [f"/dev/shm/{name}" for name in os.listdir("/dev/shm")]
    return sorted(path for path in mapped + named if path.startswith(SEGMENTS))


def mapped_bytes() -> int:
    """Return the size of noterl's shared memory that this process has mapped; 0 without /proc."""
    ranges = [line.split()[0].split("-") for line in _maps() if line.split(maxsplit=5)[-1].startswith(SEGMENTS)]
    return sum(int(end, 16) - int(start, 16) for start, end in ranges)


def _maps() -> list[str]:
    path = Path("/proc/self/maps")
    return path.read_text().splitlines() if path.exists() else []

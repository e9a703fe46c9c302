"""What the runs of noterl and of its peers share: the clock, the evaluation episodes and the output."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from benchmarks.tasks import Task

EPISODES = 100
# Not a training seed, and the same for all participants.
FIRST_SEED = 10_000


class Clock:
    """Time of a run: of the whole run, and without its first tenth, which compiles and fills the memory.

    Args:
        steps: of the run.
        timer: returns seconds: of the wall, or of the processor.
    """

    def __init__(self, steps: int, timer: Callable[[], float] = time.perf_counter) -> None:
        self._threshold = steps / 10
        self._mark: tuple[int, float] | None = None
        self._timer = timer
        self._start = timer()

    def tick(self, steps: int) -> None:
        """Record the time at the first call after a tenth of the steps."""
        if self._mark is None and steps >= self._threshold:
            self._mark = (steps, self._timer())

    def stop(self, steps: int) -> dict[str, float | None]:
        """Return the steps, the seconds and both speeds."""
        end = self._timer()
        seconds = end - self._start
        steady = (steps - self._mark[0]) / (end - self._mark[1]) if self._mark and self._mark[0] < steps else None
        return {
            "steps": steps,
            "seconds": seconds,
            "steps_per_second": steps / seconds,
            "steady_steps_per_second": steady,
        }


def num_evaluation_episodes(task: Task) -> int:
    """Return the number of evaluation episodes in `learning.py`: more if the runs are compared with others."""
    is_compared = task.learning is not None and (task.learning.peers or "precision" in task.settings)
    return EPISODES if is_compared else 20


def evaluate(act: Callable[[np.ndarray], Any], environment: str, episodes: int = EPISODES) -> list[float]:
    """Return the return of each episode; episode i is reset with the seed FIRST_SEED + i.

    Args:
        act: `[episodes, ...]` observations -> `[episodes]` actions. The batch keeps its size when episodes end, so that
            each framework compiles once.
        environment: id of gymnasium.
        episodes: how many; all run at the same time.
    """
    environments = [gymnasium.make(environment) for _ in range(episodes)]
    observations = np.stack([one.reset(seed=FIRST_SEED + i)[0] for i, one in enumerate(environments)])
    returns = [0.0] * episodes
    running = set(range(episodes))
    while running:
        actions = np.asarray(act(observations))
        for i in sorted(running):
            observations[i], reward, terminated, truncated, _ = environments[i].step(actions[i])
            returns[i] += float(reward)
            if terminated or truncated:
                running.remove(i)
    for one in environments:
        one.close()
    return returns


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def print_json(run: dict[str, Any]) -> None:
    """Write a run to standard output as one line of JSON."""
    sys.stdout.write(json.dumps(run) + "\n")
    sys.stdout.flush()

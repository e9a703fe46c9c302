"""A model of the steps per second of several processes: its formula, and the program that measures its constants.

The documentation imports this module where neither noterl nor a framework is installed.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPEATS = 3
# Two ranks share the cores of a machine, so each process computes with one thread.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# The units of the network whose speeds check the model, and those of networks that give the constants of reductions.
UNITS, OTHER_UNITS = 256, (64, 512)
# (units, ranks, workers of each rank, whether it updates). Of the runs with `UNITS`, the first two give constants, and
# the others check the formula.
RUNS = (
    *((UNITS, 1, 1, False), (UNITS, 1, 1, True), (UNITS, 1, 2, True), (UNITS, 2, 1, True)),
    *((units, ranks, 1, True) for units in OTHER_UNITS for ranks in (1, 2)),
)
PREDICTED = ((8, 1), (64, 1))

# Trains DQN on CartPole with steps of 0.3 ms, and prints the speed. A rank without workers has a core for itself, as if
# it were a machine.
PROGRAM = """
import json, os, sys, time
word, (units, ranks, workers, updates) = sys.argv[1], map(int, sys.argv[2:])
rank = int(os.environ.get("RANK") or 0)
if workers == 1 and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[rank : rank + 1])
import gymnasium
import numpy as np
import noterl
from noterl.callbacks import Callback, Every

STEPS, SHARE, GROUP = 3_000, 64, 16

class Slow(gymnasium.Wrapper):
    def step(self, action):
        end = time.perf_counter() + 3e-4
        result = self.env.step(action)
        while time.perf_counter() < end:
            pass
        return result

def make():
    return Slow(gymnasium.make("CartPole-v1"))

class Clock(Callback):
    every = Every(200, "steps", at="step")
    def __init__(self):
        self.marks = []
    def on_due(self, logs):
        self.marks.append((self.agent.steps, time.perf_counter()))
    def speed(self):
        (first, began), (last, ended) = self.marks[len(self.marks) // 3], self.marks[-1]
        return (last - first) / (ended - began)

def main():
    agent, clock = noterl.DQN(make, hidden=(units, units), seed=1), Clock()
    every = GROUP * ranks if updates else 10**9
    agent.compile(batch_size=SHARE * ranks, learning_starts=0, update_every=every, updates=GROUP)
    strategy = word if ranks > 1 else None
    agent.fit(
        steps=STEPS * ranks, num_envs=4, workers=workers if workers > 1 else 0, strategy=strategy,
        callbacks=[clock], verbose=0
    )
    size = 4 * sum(int(np.prod(variable.shape)) for variable in agent.trained_variables())
    if rank == 0:
        print("RESULT", json.dumps({"speed": clock.speed(), "bytes": size}))

if __name__ == "__main__":
    main()
"""


def reduction_seconds(ranks: int, constants: dict[str, float]) -> float:
    """Return the seconds of the reduction of an update's gradients in a ring of processes."""
    part = constants["bytes"] / ranks / constants["bandwidth"]
    return 2 * (ranks - 1) * (constants["latency"] + part)


def steps_per_second(ranks: int, workers: int, constants: dict[str, float]) -> float:
    """Return the environment steps of all ranks in a second.

    Each rank makes an update of its own share of the batch after each of its steps.
    """
    collect = constants["collect"] / workers
    return ranks / (collect + constants["update"] + reduction_seconds(ranks, constants))


def measure(execute: Callable[[list[str], bool], Any], word: str) -> dict[str, Any]:
    """Return the constants of the model and the measured speeds.

    Args:
        execute: runs a script with arguments, in two processes if its second argument is True, and returns its result.
        word: of the strategy.
    """
    found: dict[tuple[int, int, int, bool], list[dict[str, Any]]] = {run: [] for run in RUNS}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "model.py")
        script.write_text(PROGRAM)
        for _ in range(REPEATS):
            for units, ranks, workers, updates in RUNS:
                arguments = [str(script), word, *map(str, (units, ranks, workers, int(updates)))]
                found[units, ranks, workers, updates].append(execute(arguments, ranks > 1))
    speeds = {run: statistics.median(one["speed"] for one in results) for run, results in found.items()}
    # A step of two ranks takes 2 / (their speed). What it takes longer than that of one rank is the reduction.
    reductions = [
        (float(found[units, 1, 1, True][0]["bytes"]), 2 / speeds[units, 2, 1, True] - 1 / speeds[units, 1, 1, True])
        for units in OTHER_UNITS
    ]
    latency, bandwidth = fit_reductions(reductions)
    collect = 1 / speeds[UNITS, 1, 1, False]
    constants = {
        "collect": collect,
        "update": 1 / speeds[UNITS, 1, 1, True] - collect,
        "latency": latency,
        "bandwidth": bandwidth,
        "bytes": float(found[UNITS, 1, 1, True][0]["bytes"]),
    }
    runs = [
        {
            "units": units,
            "ranks": ranks,
            "workers": workers,
            "updates": updates,
            "speeds": [one["speed"] for one in results],
        }
        for (units, ranks, workers, updates), results in found.items()
    ]
    return {"constants": constants, "runs": runs}


def fit_reductions(times: list[tuple[float, float]]) -> tuple[float, float]:
    """Return latency and bandwidth from two pairs (bytes, seconds) of two ranks: `2 latency + bytes / bandwidth`.

    Both are at least a little above 0, even if noise has made the reduction of the larger network the faster one.
    """
    (small, least), (large, most) = times
    seconds_per_byte = max((most - least) / (large - small), 1e-15)
    return max(least - small * seconds_per_byte, 1e-9) / 2, 1 / seconds_per_byte

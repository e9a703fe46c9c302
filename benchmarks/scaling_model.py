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
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NPROC": "1"}
# (ranks, workers of each rank, whether it updates): the first two runs give constants, the others check the formula.
RUNS = ((1, 1, False), (1, 1, True), (1, 2, True), (2, 1, True))
PREDICTED = ((8, 1), (64, 1))

# Trains DQN on CartPole with steps of 0.3 ms; prints the speed, and the times of reductions with two processes.
PROGRAM = """
import json, os, sys, time
import gymnasium
import numpy as np
import noterl
from noterl import distribute
from noterl.callbacks import Callback, Every

STEPS, SHARE, GROUP, SIZES = 3_000, 64, 16, (1, 10_000, 100_000, 1_000_000)

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

def reduce_on_torch(processes, size, count):
    import torch
    values = torch.zeros(size)
    for _ in range(count):
        processes.mean_of_all([values])

def reduce_on_jax(processes, size, count):
    import jax
    from jax.sharding import PartitionSpec
    key = size, count
    if key not in programs:
        loop = lambda values: jax.lax.fori_loop(0, count, lambda _, each: processes.mean_of_all([each])[0], values)
        programs[key] = processes.program(loop, lambda values: (PartitionSpec(),), PartitionSpec())
    np.asarray(programs[key](processes.equal(np.zeros(size, np.float32))))

programs = {}

def reductions(word):
    processes, found = distribute.resolve(word)._messages, {}
    reduce = reduce_on_torch if word == "ddp" else reduce_on_jax
    for size in SIZES:
        reduce(processes, size, 50)
        started = time.perf_counter()
        reduce(processes, size, 50)
        found[4 * size] = (time.perf_counter() - started) / 50
    return found

def main(word, ranks, workers, updates):
    agent, clock = noterl.DQN(make, hidden=(256, 256), seed=1), Clock()
    every = GROUP * ranks if updates else 10**9
    agent.compile(batch_size=SHARE * ranks, learning_starts=0, update_every=every, updates=GROUP)
    strategy = word if ranks > 1 else None
    agent.fit(
        steps=STEPS * ranks, num_envs=4, workers=workers if workers > 1 else 0, strategy=strategy,
        callbacks=[clock], verbose=0
    )
    rank = os.environ.get("RANK") or os.environ.get("KERAS_DISTRIBUTION_PROCESS_ID") or "0"
    found = {"speed": clock.speed() if rank == "0" else 0}
    found["bytes"] = 4 * sum(int(np.prod(variable.shape)) for variable in agent.trained_variables())
    if ranks > 1:
        found["reductions"] = reductions(word)
    if rank == "0":
        print("RESULT", json.dumps(found))

if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
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
    found: dict[tuple[int, int, bool], list[dict[str, Any]]] = {run: [] for run in RUNS}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "model.py")
        script.write_text(PROGRAM)
        for _ in range(REPEATS):
            for ranks, workers, updates in RUNS:
                arguments = [str(script), word, str(ranks), str(workers), str(int(updates))]
                found[ranks, workers, updates].append(execute(arguments, ranks > 1))
    speeds = {run: statistics.median(one["speed"] for one in results) for run, results in found.items()}
    both = [one for (ranks, _, _), results in found.items() if ranks > 1 for one in results]
    latency, bandwidth = fit_reductions(
        [(float(size), seconds) for one in both for size, seconds in one["reductions"].items()]
    )
    collect = 1 / speeds[1, 1, False]
    constants = {
        "collect": collect,
        "update": 1 / speeds[1, 1, True] - collect,
        "latency": latency,
        "bandwidth": bandwidth,
        "bytes": float(both[0]["bytes"]),
    }
    runs = [
        {"ranks": ranks, "workers": workers, "updates": updates, "speeds": [one["speed"] for one in results]}
        for (ranks, workers, updates), results in found.items()
    ]
    return {"constants": constants, "runs": runs}


def fit_reductions(times: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the latency and the bandwidth of pairs (bytes, seconds) of two ranks: `2 latency + bytes / bandwidth`.

    The latency is that of the smallest size, and the bandwidth that of the largest one; medians over the repeats.
    """
    sizes = sorted({size for size, _ in times})
    ends = (sizes[0], sizes[-1])
    least, most = (statistics.median(seconds for size, seconds in times if size == end) for end in ends)
    return least / 2, (sizes[-1] - sizes[0]) / max(most - least, 1e-9)

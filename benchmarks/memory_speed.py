"""Compare speed and scores of recurrent PPO with RecurrentPPO of Stable-Baselines3 Contrib, in alternating runs.

    python -m benchmarks.memory_speed cartpole --backend jax --pairs 5 --steps 100000 --out result.json

Both train with the settings of `peers/ppo_lstm.py`, an LSTM of 64 in actor and critic, and the same seed. Each run is a
process of its own with one thread. `make peers` creates the peers' environment. "after 10 %" leaves the first tenth of
the steps out.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import stats
from benchmarks.evaluation import print_json
from benchmarks.processes import BACKENDS, ROOT, machine, run_pair, store, warn_if_busy

TASKS = {"cartpole": "memory-cartpole-ppo", "pendulum": "memory-pendulum-ppo"}
SPEEDS = {"whole run": "steps_per_second", "after 10 %": "steady_steps_per_second"}


def train(task: str, seed: int, steps: int) -> dict[str, float]:
    """Train noterl's agent in this process."""
    from benchmarks.memory_tasks import MEMORY_TASKS
    from noterl import Callback

    class Clock(Callback):
        def __init__(self) -> None:
            self.first: tuple[int, float] | None = None

        def on_batch_begin(self, batch: int, logs: Any) -> None:
            if self.first is None and self.agent.steps >= steps / 10:
                self.first = self.agent.steps, time.perf_counter()

    found, clock = MEMORY_TASKS[TASKS[task]], Clock()
    agent = found.make("lstm", seed, steps)
    started = time.perf_counter()
    agent.fit(steps=steps, num_envs=found.num_envs, callbacks=[clock], verbose=0)
    ended = time.perf_counter()
    first_step, first = clock.first or (0, started)
    result = agent.evaluate(episodes=100 if steps >= 10_000 else 1, num_envs=10, seed=1_000)
    return {
        "steps_per_second": steps / (ended - started),
        "steady_steps_per_second": (steps - first_step) / max(ended - first, 1e-9),
        "score": float(result["reward_mean"]),
    }


def commands_of(arguments: argparse.Namespace, seed: int) -> dict[str, tuple[list[str], str | None]]:
    """Return the commands of noterl and the peer with one seed."""
    task, *numbers = arguments.task, str(seed), str(arguments.steps)
    ours = [sys.executable, "-m", "benchmarks.memory_speed", task, "--one", *numbers]
    theirs = [arguments.peer_python, "-m", "benchmarks.peers.ppo_lstm", task, *numbers]
    return {"noterl": (ours, arguments.backend), "contrib": (theirs, None)}


def compare(pairs: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return the ratios of the speeds with their intervals, and the scores."""
    ratios = {
        name: stats.paired_ratio(*([pair[who][key] for pair in pairs] for who in ("noterl", "contrib")))
        for name, key in SPEEDS.items()
    }
    return {"ratios": ratios, "scores": {who: [pair[who]["score"] for pair in pairs] for who in pairs[0]}}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--backend", choices=BACKENDS, default="jax")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--peer-python", default=str(ROOT / ".venv-peers" / "bin" / "python"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=2, type=int, help=argparse.SUPPRESS)  # a run of noterl: seed and steps
    arguments = parser.parse_args(words)
    if arguments.one:
        print_json(train(arguments.task, *arguments.one))
        return
    before = machine()
    warn_if_busy(before)
    pairs = []
    for seed in range(arguments.pairs):
        pairs.append(run_pair(commands_of(arguments, seed), seed))
        print(
            {who: {name: round(value, 1) for name, value in run.items()} for who, run in pairs[-1].items()}, flush=True
        )
    result = {"task": arguments.task, "backend": arguments.backend, "steps": arguments.steps, "machine": before}
    result |= {"runs": pairs, **compare(pairs)}
    print(result["ratios"], result["scores"])
    if arguments.out:
        store(result, arguments.out)


if __name__ == "__main__":
    main()

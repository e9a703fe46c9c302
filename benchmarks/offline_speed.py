"""Compare updates per second of TD3BC and IQL with those of d3rlpy, in alternating runs.

    python -m benchmarks.offline_speed TD3BC --backend jax --peer-python .venv-d3rlpy/bin/python --out result.json

Both train on the same 100,000 random rows of Hopper's sizes, with networks of two layers of 256 units, batches of 256
rows and otherwise their defaults. Each run is a process of its own with one thread; the time begins when the first call
of `fit` has ended, so no compilation is in it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks import stats
from benchmarks.evaluation import print_json, versions
from benchmarks.processes import BACKENDS, ROOT, machine, run_pair, store, warn_if_busy

STEPS, EPISODE, OBSERVATION, ACTIONS = 100_000, 1_000, 11, 3
HIDDEN, BATCH = (256, 256), 256
AGENTS = ("TD3BC", "IQL")
PACKAGES = ("noterl", "keras", "numpy", "jax", "torch", "tensorflow-cpu")


def rows() -> dict[str, np.ndarray]:
    """Return the rows under D4RL's names: observations `[T, 11]`, actions `[T, 3]`, the others `[T]`."""
    generator = np.random.default_rng(0)
    timeouts = np.arange(1, STEPS + 1) % EPISODE == 0
    return {
        "observations": generator.normal(size=(STEPS, OBSERVATION)).astype(np.float32),
        "actions": generator.uniform(-1, 1, (STEPS, ACTIONS)).astype(np.float32),
        "rewards": generator.normal(size=STEPS).astype(np.float32),
        "terminals": np.zeros(STEPS, np.float32),
        "timeouts": timeouts.astype(np.float32),
    }


def train(name: str, updates: int) -> dict[str, float]:
    """Train noterl's agent in this process."""
    from gymnasium import spaces

    import noterl

    arrays = rows()
    observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)
    episodes = {key: np.split(arrays[key], STEPS // EPISODE) for key in ("observations", "actions", "rewards")}
    # An episode of noterl has one more observation than actions; random rows have none after a timeout.
    observations = [np.concatenate([episode, episode[-1:]]) for episode in episodes["observations"]]
    data = noterl.Dataset(
        observations,
        episodes["actions"],
        episodes["rewards"],
        [False] * len(observations),
        observation_space=observation_space,
        action_space=action_space,
    )
    agent = getattr(noterl, name)((observation_space, action_space), hidden=HIDDEN)
    agent.compile(batch_size=BATCH)

    def fit(count: int) -> None:
        agent.fit(dataset=data, updates=count, updates_per_epoch=count, verbose=0)

    fit(max(1, updates // 10))
    started = time.perf_counter()
    fit(updates)
    return {"updates_per_second": updates / (time.perf_counter() - started)}


def commands_of(arguments: argparse.Namespace) -> dict[str, tuple[list[str], str | None]]:
    """Return the commands of noterl and d3rlpy."""
    agent, updates = arguments.agent, str(arguments.updates)
    ours = [sys.executable, "-m", "benchmarks.offline_speed", agent, "--one", updates]
    theirs = [arguments.peer_python, "-m", "benchmarks.peers.offline_speed", agent, updates]
    return {"noterl": (ours, arguments.backend), "d3rlpy": (theirs, None)}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("agent", choices=AGENTS)
    parser.add_argument("--backend", choices=BACKENDS, default="jax")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--updates", type=int, default=2_000)
    parser.add_argument("--peer-python", default=str(ROOT / ".venv-d3rlpy" / "bin" / "python"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)  # a run of noterl: the updates
    arguments = parser.parse_args(words)
    if arguments.one:
        print_json(train(arguments.agent, arguments.one))
        return
    before = machine()
    warn_if_busy(before)
    pairs = []
    for number in range(arguments.pairs):
        runs = run_pair(commands_of(arguments), number)
        pairs.append({who: float(run["updates_per_second"]) for who, run in runs.items()})
        print({who: round(speed, 1) for who, speed in pairs[-1].items()}, flush=True)
    ratio = stats.paired_ratio(*([pair[who] for pair in pairs] for who in ("noterl", "d3rlpy")))
    print(ratio)
    if arguments.out:
        settings = {"agent": arguments.agent, "backend": arguments.backend, "updates": arguments.updates}
        described = {"machine": before, "versions": versions(PACKAGES)}
        store({**settings, **described, "ratio": ratio, "runs": pairs}, arguments.out)


if __name__ == "__main__":
    main()

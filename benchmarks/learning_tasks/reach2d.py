"""SAC with and without hindsight on Reach2D, where the agent moves to a goal in a plane.

The task and its goal, a mean return of -5, are those of Note_rl's hindsight example. The shortest paths take four or
five steps.
"""

from __future__ import annotations

import argparse
from typing import Any

import noterl
from benchmarks.learning_tasks.bitflip import draw, summarize, table
from noterl.envs import Reach2D
from noterl.replay import Hindsight

__all__ = ["SEEDS", "add_arguments", "draw", "run", "summarize", "table"]

SEEDS = 5
EVERY, EPISODES = 1_000, 100
SETTINGS = {
    "hidden": [64, 64],
    "gamma": 0.95,
    "capacity": 20_000,
    "batch_size": 128,
    "learning_starts": 1_000,
    "update_every": 16,
    "updates": 16,
    "num_envs": 8,
}
MEMORIES = {"hindsight": lambda: Hindsight("future", ratio=0.8), "without": lambda: None}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=8_000, help="environment steps of each run")


def run(seeds: int, *, steps: int) -> dict[str, Any]:
    runs = [train(name, seed, steps) for seed in range(seeds) for name in MEMORIES]
    settings = {**SETTINGS, "steps": steps, "every": EVERY, "evaluation episodes": EPISODES}
    return {"title": "SAC, Reach2D", "settings": settings, "runs": runs}


def train(memory: str, seed: int, steps: int) -> dict[str, Any]:
    """Return success rate and mean return after every `EVERY` steps; all evaluations use the same goals."""
    agent = noterl.SAC(Reach2D, hidden=SETTINGS["hidden"], gamma=SETTINGS["gamma"], seed=seed)
    agent.compile(
        replay=noterl.Replay(SETTINGS["capacity"], relabel=MEMORIES[memory]()),
        **{name: SETTINGS[name] for name in ("batch_size", "learning_starts", "update_every", "updates")},
    )
    results = []
    for _ in range(steps // EVERY):
        agent.fit(steps=EVERY, num_envs=SETTINGS["num_envs"], verbose=0)
        results.append(agent.evaluate(episodes=EPISODES, num_envs=EPISODES, seed=1))
    agent.close()
    return {
        "memory": memory,
        "seed": seed,
        "success": [result["success_rate"] for result in results],
        "return": [result["reward_mean"] for result in results],
    }

"""DQN with and without hindsight on BitFlip with 15 bits, as in figure 1 of the HER paper.

Andrychowicz et al., "Hindsight experience replay" (2017), section 3.1. A random policy almost never reaches one of the
2^15 goals, so without hindsight nearly every reward is -1. The score is the greedy policy's success rate.
"""

from __future__ import annotations

import argparse
from typing import Any

import keras
import numpy as np

import noterl
from benchmarks import stats
from benchmarks.report import iqm, markdown_table
from noterl.envs import BitFlip
from noterl.policies import EpsGreedyQPolicy
from noterl.replay import Hindsight, Prioritized

SEEDS = 5
EVERY, EPISODES = 1_500, 100
SETTINGS = {
    "hidden": [256],
    "gamma": 0.98,
    "learning_rate": 1e-3,
    "epsilon": 0.1,
    "capacity": 200_000,
    "batch_size": 128,
    "learning_starts": 1_000,
    "update_every": 64,
    "updates": 16,
    "target_update": 0.05,
    "num_envs": 8,
}
MEMORIES = {
    "hindsight": lambda: {"relabel": Hindsight("future", ratio=0.8)},
    "hindsight, prioritized, 3 steps": lambda: {
        "relabel": Hindsight("future", ratio=0.8),
        "sampler": Prioritized(),
        "n_step": 3,
    },
    "without": dict,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=24_000, help="environment steps of each run")
    parser.add_argument("--bits", type=int, default=15)


def run(seeds: int, *, steps: int, bits: int) -> dict[str, Any]:
    runs = [
        {"memory": name, "seed": seed, "success": train(name, seed, steps, bits)}
        for seed in range(seeds)
        for name in MEMORIES
    ]
    settings = {**SETTINGS, "bits": bits, "steps": steps, "every": EVERY, "evaluation episodes": EPISODES}
    return {"title": f"DQN, BitFlip with {bits} bits", "settings": settings, "runs": runs}


def summarize(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the last success rates of the seeds, by memory."""
    curves = by_memory(result["runs"])
    return {name: stats.summarize_scores([curve[-1] for curve in some]) for name, some in curves.items()}


def by_memory(runs: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    names = dict.fromkeys(run["memory"] for run in runs)
    return {name: [run["success"] for run in runs if run["memory"] == name] for name in names}


def train(memory: str, seed: int, steps: int, bits: int) -> list[float]:
    """Return the success rate after every `EVERY` steps; all evaluations use the same goals."""
    agent = noterl.DQN(
        lambda: BitFlip(bits), double=False, hidden=SETTINGS["hidden"], gamma=SETTINGS["gamma"], seed=seed
    )
    schedule = ("batch_size", "learning_starts", "update_every", "updates", "target_update")
    agent.compile(
        keras.optimizers.Adam(SETTINGS["learning_rate"]),
        policy=EpsGreedyQPolicy(SETTINGS["epsilon"]),
        replay=noterl.Replay(SETTINGS["capacity"], **MEMORIES[memory]()),
        **{name: SETTINGS[name] for name in schedule},
    )
    rates = []
    for _ in range(steps // EVERY):
        agent.fit(steps=EVERY, num_envs=SETTINGS["num_envs"], verbose=0)
        rates.append(agent.evaluate(episodes=EPISODES, num_envs=EPISODES, seed=1)["success_rate"])
    agent.close()
    return rates


def steps_to_success(curve: list[float], every: int) -> int | None:
    """Return the steps of the first evaluation with a success rate of at least 90 %; None if there is none."""
    return next((every * (place + 1) for place, rate in enumerate(curve) if rate >= 0.9), None)


def table(result: dict[str, Any]) -> str:
    curves, every, rows = by_memory(result["runs"]), result["settings"]["every"], []
    for name, one in result["summary"].items():
        steps = [steps_to_success(curve, every) for curve in curves[name]]
        by_seed = ", ".join("never" if each is None else f"{each:,}" for each in steps)
        rows.append((name, f"{one['median']:.2f}", iqm(one, digits=2), f"{one['worst']:.2f}", by_seed))
    return markdown_table(("memory", "median", "IQM (95 % interval)", "worst seed", "steps to 90 %, by seed"), rows)


def draw(result: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    for name, curves in by_memory(result["runs"]).items():
        steps = result["settings"]["every"] * np.arange(1, len(curves[0]) + 1)
        (line,) = axes.plot(steps, np.median(curves, axis=0), label=name, linewidth=2)
        for curve in curves:
            axes.plot(steps, curve, color=line.get_color(), alpha=0.25, linewidth=0.8)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("success rate")
    axes.set_ylim(-0.03, 1.03)
    axes.set_title(f"{result['title']}: median and {result['seeds']} seeds")
    axes.legend()
    axes.grid(alpha=0.3)
    return figure

"""Hindsight: DQN flips 15 bits into an order it is asked for, with hindsight and without (the HER paper's figure 1).

Andrychowicz et al., "Hindsight experience replay" (2017), section 3.1: of 2^15 goals hardly any is ever met by chance,
so without hindsight every reward is -1 and nothing can be learned. Shown is the share of goals that the greedy policy
reaches.
"""

from __future__ import annotations

import argparse
from typing import Any

import keras
import numpy as np

import noterl
from benchmarks.figures import interquartile_mean
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
    return {"title": f"DQN, BitFlip with {bits} bits", "settings": settings, "summary": summarize(runs), "runs": runs}


def summarize(runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return what seeds reached in the end, by memory."""
    last = {name: [curve[-1] for curve in curves] for name, curves in by_memory(runs).items()}
    return {
        name: {"median": float(np.median(rates)), "iqm": interquartile_mean(rates), "worst": min(rates)}
        for name, rates in last.items()
    }


def by_memory(runs: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    names = dict.fromkeys(run["memory"] for run in runs)
    return {name: [run["success"] for run in runs if run["memory"] == name] for name in names}


def train(memory: str, seed: int, steps: int, bits: int) -> list[float]:
    """Return the success rate after every `EVERY` steps; the evaluation's goals are the same for all."""
    agent = noterl.DQN(lambda: BitFlip(bits), hidden=SETTINGS["hidden"], gamma=SETTINGS["gamma"], seed=seed)
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


def _reached(curve: list[float], every: int) -> int | None:
    """Return the steps at which nine goals of ten were first reached; None if they never were."""
    return next((every * (place + 1) for place, rate in enumerate(curve) if rate >= 0.9), None)


def table(result: dict[str, Any]) -> str:
    lines = ["| memory | median | inter-quartile mean | worst seed | steps to 90 %, by seed |", "| --- " * 5 + "|"]
    curves, every = by_memory(result["runs"]), result["settings"]["every"]
    for name, one in result["summary"].items():
        reached = [_reached(curve, every) for curve in curves[name]]
        steps = ", ".join("never" if each is None else f"{each:,}" for each in reached)
        lines.append(f"| {name} | {one['median']:.2f} | {one['iqm']:.2f} | {one['worst']:.2f} | {steps} |")
    return "\n".join(lines)


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
    axes.set_ylabel("share of goals reached")
    axes.set_ylim(-0.03, 1.03)
    axes.set_title(f"{result['title']}: median and {result['seeds']} seeds")
    axes.legend()
    axes.grid(alpha=0.3)
    return figure

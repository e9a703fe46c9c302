"""PPO on CartPole on the device: all seeds train as one `Population`, with the settings of benchmarks/device.py."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import noterl
from benchmarks.device import LANES, STEPS, solving_agent
from benchmarks.report import markdown_table

SEEDS = 10
EPISODES = 100  # of the evaluation
GOAL = 475.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=STEPS, help="environment steps of each member")


def run(seeds: int, *, steps: int) -> dict[str, Any]:
    population = noterl.Population(solving_agent(0), seeds=seeds)
    started = time.perf_counter()
    history = population.fit(steps=steps, num_envs=LANES, verbose=0)
    seconds = time.perf_counter() - started
    found = population.evaluate(EPISODES, seed=1_000)["reward_mean"].tolist()
    records = zip(population.seeds, found, history.members, strict=True)
    return {
        "title": "PPO on the device, CartPole",
        "settings": {"num_envs": LANES, "steps": steps, "evaluation": EPISODES},
        "training": round(seconds, 1),
        "runs": [{"seed": seed, "return": mean, "curve": curve(member)} for seed, mean, member in records],
    }


def curve(member: dict[str, list[Any]], points: int = 50) -> list[list[float]]:
    """Return steps and the mean return of consecutive episodes, in about `points` groups."""
    groups = np.array_split(np.arange(len(member["reward"])), min(points, len(member["reward"])))
    steps, rewards = np.array(member["steps"]), np.array(member["reward"])
    return [[float(steps[group[-1]]), float(rewards[group].mean())] for group in groups]


def summarize(result: dict[str, Any]) -> dict[str, Any]:
    returns = [run["return"] for run in result["runs"]]
    solved = sum(value >= GOAL for value in returns)
    return {"runs": len(returns), "returns": returns, "solved": solved, "lowest": min(returns)}


def table(result: dict[str, Any]) -> str:
    summary = result["summary"]
    head = ("members", f"with a mean return of at least {GOAL:g}", "lowest", "seconds of all")
    row = (str(summary["runs"]), str(summary["solved"]), f"{summary['lowest']:.1f}", f"{result['training']:.1f}")
    return markdown_table(head, [row])


def draw(result: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for run in result["runs"]:
        axes.plot(*np.transpose(run["curve"]), alpha=0.6, linewidth=0.9, label=f"seed {run['seed']}")
    axes.axhline(GOAL, color="tab:gray", linestyle=":")
    axes.set(xlabel="environment steps of each member", ylabel="return", title=result["title"])
    axes.legend(fontsize="small", ncols=2)
    axes.grid(alpha=0.3)
    return figure

"""AlphaZero on CartPole-v1, whose state the search restores, judged by the network's action without a search."""

from __future__ import annotations

import argparse
import time
from typing import Any

import noterl
from benchmarks.report import markdown_table

SEEDS = 5
EPISODES = 100  # of each evaluation
LANES, EVERY = 16, 5_000
SETTINGS: dict[str, Any] = {"simulations": 8, "hidden": (64, 64), "temperature": 0.5}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps of each run")


def run(seeds: int, *, steps: int) -> dict[str, Any]:
    return {
        "title": "AlphaZero, CartPole-v1",
        "settings": {**SETTINGS, "num_envs": LANES, "steps": steps, "every": EVERY, "evaluation": EPISODES},
        "runs": [train(seed, steps) for seed in range(seeds)],
    }


def train(seed: int, steps: int) -> dict[str, Any]:
    agent, curve, seconds = noterl.AlphaZero("CartPole-v1", seed=seed, **SETTINGS), [], 0.0
    while agent.steps < steps:
        started = time.perf_counter()
        agent.fit(steps=min(EVERY, steps - agent.steps), num_envs=LANES, verbose=0)
        seconds += time.perf_counter() - started
        curve.append([agent.steps, agent.evaluate(episodes=10, num_envs=10)["reward_mean"]])
    final = agent.evaluate(episodes=EPISODES, seed=1_000, num_envs=25)
    agent.close()
    return {
        "seed": seed,
        "return": final["reward_mean"],
        "curve": curve,
        "updates": agent.updates,
        "seconds": round(seconds, 1),
    }


def summarize(result: dict[str, Any]) -> dict[str, Any]:
    """Return the returns and their mean."""
    returns = [run["return"] for run in result["runs"]]
    return {"runs": len(returns), "returns": returns, "mean": sum(returns) / len(returns), "lowest": min(returns)}


def table(result: dict[str, Any]) -> str:
    rows = [(str(run["seed"]), f"{run['return']:.1f}", f"{run['seconds']:.0f}") for run in result["runs"]]
    heading = f"mean return of {result['settings']['evaluation']} episodes"
    return markdown_table(("seed", heading, "seconds of training"), rows)


def draw(result: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    for run in result["runs"]:
        steps, returns = zip(*run["curve"], strict=True)
        axes.plot(steps, returns, label=f"seed {run['seed']}")
    axes.axhline(475, color="tab:gray", linestyle="--")
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return")
    axes.set_title(result["title"])
    axes.legend()
    axes.grid(alpha=0.3)
    return figure

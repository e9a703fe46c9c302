"""What the learning tasks of several agents share: MADDPG beside independent DDPG, at the same settings.

A module of `learning_tasks` makes what it offers of `task`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import noterl
from benchmarks.figures import difference

# Of the paper's appendix, and of its authors' code what the paper does not say: the norm that gradients are clipped to.
SETTINGS = {
    "hidden": [64, 64],
    "gamma": 0.95,
    "learning_rate": 1e-2,
    "clipnorm": 0.5,
    "capacity": 500_000,
    "batch_size": 1_024,
    "learning_starts": 1_024,
    "update_every": 100,
    "target_update": 0.01,
}
LEARNERS = {"MADDPG": False, "independent DDPG": True}
EVALUATIONS, EPISODES, LAST_EPISODES = 10, 20, 100


def task(title: str, make: Callable[[], Any], steps: int) -> tuple[Any, ...]:
    """Return the `SEEDS`, `add_arguments`, `run`, `table` and `draw` of a module of `learning_tasks`.

    Args:
        title: of the figure.
        make: makes the environment.
        steps: environment steps of each run, unless the command line says otherwise.
    """

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--steps", type=int, default=steps, help="environment steps of each run")

    def run_task(seeds: int, *, steps: int) -> dict[str, Any]:
        return run(title, make, seeds, steps)

    return 3, add_arguments, run_task, table, draw


def run(title: str, make: Callable[[], Any], seeds: int, steps: int) -> dict[str, Any]:
    """Train both on every seed, and say how they compare."""
    runs = [
        {"learner": name, "seed": seed, **train(make, independent, seed, steps)}
        for seed in range(seeds)
        for name, independent in LEARNERS.items()
    ]
    chance = by_chance(make)
    last = {name: [run["last"] for run in runs if run["learner"] == name] for name in LEARNERS}
    return {
        "title": title,
        "settings": {**SETTINGS, "steps": steps, "evaluation episodes": LAST_EPISODES},
        "chance": chance,
        # The best return is near 0, so what chance earns is about the task's range.
        "comparison": difference(*last.values(), span=abs(chance), fewest=3),
        "runs": runs,
    }


def agent_of(make: Callable[[], Any], independent: bool, seed: int) -> noterl.MADDPG:
    """Return an agent at the settings."""
    agent = noterl.MADDPG(make, hidden=SETTINGS["hidden"], gamma=SETTINGS["gamma"], independent=independent, seed=seed)
    schedule = ("batch_size", "learning_starts", "update_every", "target_update")
    agent.compile(
        keras.optimizers.Adam(SETTINGS["learning_rate"], clipnorm=SETTINGS["clipnorm"]),
        replay=noterl.Replay(SETTINGS["capacity"]),
        **{name: SETTINGS[name] for name in schedule},
    )
    return agent


def train(make: Callable[[], Any], independent: bool, seed: int, steps: int) -> dict[str, Any]:
    """Return the mean returns of the team after every tenth of the steps, and in the end over more episodes."""
    agent, returns = agent_of(make, independent, seed), []
    for _ in range(EVALUATIONS):
        agent.fit(steps=steps // EVALUATIONS, verbose=0)
        returns.append(agent.evaluate(episodes=EPISODES, seed=1)["reward_mean"])
        print(f"seed {seed}, independent {independent}: {agent.steps} steps, {returns[-1]:.2f}", file=sys.stderr)
    last = agent.evaluate(episodes=LAST_EPISODES, seed=2)["reward_mean"]
    agent.close()
    return {"curve": returns, "last": last}


def by_chance(make: Callable[[], Any]) -> float:
    """Return the mean return of the team where every action is as likely as any other."""
    agent = agent_of(make, False, 0)
    agent.compile(learning_starts=10**9)
    rewards = agent.fit(episodes=LAST_EPISODES, verbose=0).history["reward"]
    agent.close()
    return float(np.mean(rewards))


def table(result: dict[str, Any]) -> str:
    lines = ["| learner | median | by seed |", "| --- " * 3 + "|"]
    for name in LEARNERS:
        last = [run["last"] for run in result["runs"] if run["learner"] == name]
        lines.append(f"| {name} | {np.median(last):.1f} | {', '.join(f'{value:.1f}' for value in last)} |")
    lines.append(f"| chance | {result['chance']:.1f} | |")
    one = result["comparison"]
    interval = "" if one["low"] is None else f" (95 % interval {one['low']:+.1f} to {one['high']:+.1f})"
    lines.append(f"\nMADDPG against independent DDPG: {one['difference']:+.1f}{interval}: {one['verdict']}")
    return "\n".join(lines)


def draw(result: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    steps = result["settings"]["steps"] / EVALUATIONS * np.arange(1, EVALUATIONS + 1)
    for name in LEARNERS:
        curves = [run["curve"] for run in result["runs"] if run["learner"] == name]
        (line,) = axes.plot(steps, np.median(curves, axis=0), label=name, linewidth=2)
        for curve in curves:
            axes.plot(steps, curve, color=line.get_color(), alpha=0.25, linewidth=0.8)
    axes.axhline(result["chance"], color="grey", linestyle=":", label="chance")
    axes.set_ylim(bottom=1.3 * result["chance"])  # at first all are worse than chance, by far
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return of the team")
    axes.set_title(f"{result['title']}: median and {result['seeds']} seeds")
    axes.legend()
    axes.grid(alpha=0.3)
    return figure

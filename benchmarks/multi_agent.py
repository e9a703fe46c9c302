"""What the multi-agent learning tasks share: MADDPG and independent DDPG with the same settings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import noterl
from benchmarks import stats
from benchmarks.report import difference, markdown_table

# From the appendix of the MADDPG paper; the gradient norm, which it does not give, is from the code of its authors.
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
    """Return the `SEEDS`, `add_arguments`, `run`, `summarize`, `table` and `draw` of a module of `learning_tasks`.

    Args:
        title: of the figure.
        make: returns a new environment.
        steps: default number of environment steps of each run.
    """

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--steps", type=int, default=steps, help="environment steps of each run")

    def run_task(seeds: int, *, steps: int) -> dict[str, Any]:
        return run(title, make, seeds, steps)

    return 3, add_arguments, run_task, summarize, table, draw


def run(title: str, make: Callable[[], Any], seeds: int, steps: int) -> dict[str, Any]:
    """Train both learners on every seed."""
    runs = [
        {"learner": name, "seed": seed, **train(make, independent, seed, steps)}
        for seed in range(seeds)
        for name, independent in LEARNERS.items()
    ]
    return {
        "title": title,
        "settings": {**SETTINGS, "steps": steps, "evaluation episodes": LAST_EPISODES},
        "chance": random_return(make),
        "runs": runs,
    }


def last_returns(result: dict[str, Any], name: str) -> list[float]:
    """Return the mean returns of a learner after training, one per seed."""
    return [run["last"] for run in result["runs"] if run["learner"] == name]


def summarize(result: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of each learner, and the difference of MADDPG from independent DDPG."""
    scores = [last_returns(result, name) for name in LEARNERS]
    return {
        "scores": {name: stats.summarize_scores(some) for name, some in zip(LEARNERS, scores, strict=True)},
        # The best return is near 0, so the return of random actions is about the task's range.
        "difference": stats.difference(*scores, span=abs(result["chance"])),
    }


def make_agent(make: Callable[[], Any], independent: bool, seed: int) -> noterl.MADDPG:
    """Return an agent with the settings."""
    agent = noterl.MADDPG(make, hidden=SETTINGS["hidden"], gamma=SETTINGS["gamma"], independent=independent, seed=seed)
    schedule = ("batch_size", "learning_starts", "update_every", "target_update")
    agent.compile(
        keras.optimizers.Adam(SETTINGS["learning_rate"], clipnorm=SETTINGS["clipnorm"]),
        replay=noterl.Replay(SETTINGS["capacity"]),
        **{name: SETTINGS[name] for name in schedule},
    )
    return agent


def train(make: Callable[[], Any], independent: bool, seed: int, steps: int) -> dict[str, Any]:
    """Return the team's mean return after every tenth of the steps, and over more episodes after training."""
    agent, returns = make_agent(make, independent, seed), []
    for _ in range(EVALUATIONS):
        agent.fit(steps=steps // EVALUATIONS, verbose=0)
        returns.append(agent.evaluate(episodes=EPISODES, seed=1)["reward_mean"])
        print(f"seed {seed}, independent {independent}: {agent.steps} steps, {returns[-1]:.2f}", file=sys.stderr)
    last = agent.evaluate(episodes=LAST_EPISODES, seed=2)["reward_mean"]
    agent.close()
    return {"curve": returns, "last": last}


def random_return(make: Callable[[], Any]) -> float:
    """Return the team's mean return with uniformly random actions."""
    agent = make_agent(make, False, 0)
    agent.compile(learning_starts=10**9)
    rewards = agent.fit(episodes=LAST_EPISODES, verbose=0).history["reward"]
    agent.close()
    return float(np.mean(rewards))


def table(result: dict[str, Any]) -> str:
    rows = [
        (name, f"{one['median']:.1f}", ", ".join(f"{score:.1f}" for score in one["scores"]))
        for name, one in result["summary"]["scores"].items()
    ]
    rows.append(("random actions", f"{result['chance']:.1f}", ""))
    found = result["summary"]["difference"]
    outcome = f"{difference(found)}: {found['outcome']} ({result['seeds']} seeds)"
    scores = markdown_table(("learner", "median", "by seed"), rows)
    return f"{scores}\n\nMADDPG less independent DDPG (95 % interval): {outcome}"


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
    axes.axhline(result["chance"], color="grey", linestyle=":", label="random actions")
    axes.set_ylim(bottom=1.3 * result["chance"])  # the first evaluations are far worse than random actions
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return of the team")
    axes.set_title(f"{result['title']}: median and {result['seeds']} seeds")
    axes.legend()
    axes.grid(alpha=0.3)
    return figure

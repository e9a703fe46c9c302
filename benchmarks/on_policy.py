"""What the learning tasks of on-policy agents share: training over seeds, the table and the figure.

Returns are evaluated without exploration over 20 episodes of the agent's own evaluation seeds, after training and at
equal distances in between; evaluation changes nothing of the run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import noterl

EPISODES, POINTS = 20, 10


class Task(NamedTuple):
    """An environment with an agent's settings, and what is to be reached.

    Attributes:
        environment: a gymnasium id.
        steps: of training.
        num_envs: environments side by side.
        make: from a seed and the steps to the compiled agent.
        settings: what `make` sets, for the record.
        least: the median over seeds that is asked for.
        published: a published figure beside it.
        callbacks: makes what listens to a run.
    """

    environment: str
    steps: int
    num_envs: int
    make: Callable[[int, int], noterl.Agent]
    settings: dict[str, Any]
    least: float
    published: str
    callbacks: Callable[[], list[Any]] = list


def add_arguments(task: Task) -> Callable[[argparse.ArgumentParser], None]:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--steps", type=int, default=task.steps, help="environment steps of each run")
        parser.add_argument("--points", type=int, default=POINTS, help="evaluations of each run")

    return add


def run(task: Task) -> Callable[..., dict[str, Any]]:
    def run_all(seeds: int, *, steps: int, points: int) -> dict[str, Any]:
        runs = [train(task, seed, steps, points) for seed in range(seeds)]
        last = [each["returns"][-1] for each in runs]
        return {
            "settings": {**task.settings, "steps": steps, "num_envs": task.num_envs, "evaluation episodes": EPISODES},
            "summary": {
                "median": float(np.median(last)),
                "worst": min(last),
                "best": max(last),
                "least": task.least,
                "published": task.published,
                "seconds": float(np.median([each["seconds"] for each in runs])),
            },
            "runs": runs,
        }

    return run_all


def train(task: Task, seed: int, steps: int, points: int) -> dict[str, Any]:
    """Train one agent; return the mean returns, at which steps they were evaluated, and the seconds of training."""
    agent, callbacks, seconds = task.make(seed, steps), task.callbacks(), 0.0
    at, returns = [], []
    for share in np.diff(np.linspace(0, steps, points + 1).astype(int)).tolist():
        begun = time.perf_counter()
        agent.fit(steps=share, num_envs=task.num_envs, callbacks=callbacks, verbose=0)
        seconds += time.perf_counter() - begun
        at.append(agent.steps)
        returns.append(agent.evaluate(episodes=EPISODES, num_envs=EPISODES)["reward_mean"])
    agent.close()
    print(f"seed {seed}: {returns[-1]:.1f} in {seconds:.0f} s")
    return {"seed": seed, "steps": at, "returns": returns, "seconds": round(seconds, 1)}


def table(result: dict[str, Any]) -> str:
    summary, steps = result["summary"], result["settings"]["steps"]
    return "\n".join(
        [
            "| task | backend | steps | seeds | median | worst | best | asked for | published | s a run |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
            f"| {result['task']} | {result['backend']} | {steps:,} | {result['seeds']} | {summary['median']:.1f} | "
            f"{summary['worst']:.1f} | {summary['best']:.1f} | {summary['least']:g} | {summary['published']} | "
            f"{summary['seconds']:.0f} |",
        ]
    )


def draw(result: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for each in result["runs"]:
        axes.plot(each["steps"], each["returns"], color="tab:blue", alpha=0.3)
    medians = np.median([each["returns"] for each in result["runs"]], axis=0)
    axes.plot(result["runs"][0]["steps"], medians, color="tab:blue", label="median of the seeds")
    axes.axhline(result["summary"]["least"], color="tab:gray", linestyle=":", label="asked for")
    axes.set(xlabel="environment steps", ylabel="mean return of 20 episodes", title=result["task"])
    axes.legend()
    return figure

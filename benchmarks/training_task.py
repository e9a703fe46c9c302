"""A task of `tasks.py` as `learning.py` runs it: train noterl and its peers, and compare the returns.

Each run is a process of its own and is stored when it ends. A stored run with the same settings is not repeated, so an
interrupted task continues where it stopped.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import study
from benchmarks.evaluation import num_evaluation_episodes
from benchmarks.processes import BACKENDS, PEERS, RESULTS, ROOT, command, execute, machine
from benchmarks.report import learning_table
from benchmarks.summaries import summarize_learning
from benchmarks.tasks import TASKS

LEARNING_RESULTS = RESULTS / "learning"
# Evaluations during training, for the learning curve.
POINTS = 10


class TrainingTask:
    """A task of `tasks.py` with the members of a module of `learning_tasks` that `learning.py` uses.

    Args:
        name: of the task.

    Raises:
        ValueError: if the task only measures speed.
    """

    def __init__(self, name: str) -> None:
        self.name, self.task = name, TASKS[name]
        if self.task.learning is None:
            raise ValueError(f"task must be one that learning.py trains; {name!r} only measures speed")
        self.learning = self.task.learning
        self.SEEDS = self.learning.seeds
        self.__doc__ = f"{self.task.algorithm.upper()} on {self.task.environment}: {self.task.source}"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        steps = self.learning.steps or self.task.steps
        parser.add_argument("--steps", type=int, default=steps, help="environment steps of each run")
        parser.add_argument("--backends", nargs="*", choices=BACKENDS, default=list(self.learning.backends))
        parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(self.learning.peers))
        parser.add_argument("--peer-python", default=str(ROOT / ".venv-peers" / "bin" / "python"))
        parser.add_argument("--repeat", action="store_true", help="repeat runs that are stored already")

    def run(
        self,
        seeds: int,
        *,
        steps: int,
        backends: list[str],
        peers: list[str],
        peer_python: str,
        repeat: bool,
        folder: Path | None,
    ) -> dict[str, Any]:
        """Do the runs that `folder` does not hold, store each when it ends, and return the result of all."""
        path = None if folder is None else folder / f"{self.name}.json"
        settings = json.loads(json.dumps(self.settings(steps)))

        def train_one(key: tuple[str, int]) -> tuple[dict[str, Any], str]:
            who, seed = key
            run = execute(*command(who, self.name, seed, steps, peer_python, POINTS))
            line = f"seed {seed} {who}: {float(np.mean(run['returns'])):.1f} in {run['seconds']:.0f} s"
            return {"who": who, "seed": seed, "machine": machine(), **run}, line

        participants = (*(f"noterl-{backend}" for backend in backends), *peers)
        return study.complete(
            study.stored_runs(None if repeat else path, lambda result: result["settings"] == settings),
            [(who, seed) for seed in range(seeds) for who in participants],
            key_of=lambda each: (each["who"], each["seed"]),
            train=train_one,
            result_of=lambda runs: self.result(runs, steps),
            path=path,
        )

    def settings(self, steps: int) -> dict[str, Any]:
        return {
            **self.task.settings,
            "steps": steps,
            "episodes": self.learning.episodes,
            "evaluation episodes": num_evaluation_episodes(self.task),
        }

    def result(self, runs: list[dict[str, Any]], steps: int) -> dict[str, Any]:
        order = [f"noterl-{backend}" for backend in BACKENDS] + list(PEERS)
        runs = sorted(runs, key=lambda each: (order.index(each["who"]), each["seed"]))
        return {
            "task": self.name,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "source": self.task.source,
            "settings": self.settings(steps),
            "summary": summarize_learning(self.task, runs),
            "runs": runs,
        }

    def table(self, result: dict[str, Any]) -> str:
        return learning_table([result])

    def draw(self, result: dict[str, Any]) -> Any:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        for who in result["summary"]:
            curves = [each["curve"] for each in result["runs"] if each["who"] == who]
            points = min(len(curve["steps"]) for curve in curves)
            at, returns = ([curve[name][:points] for curve in curves] for name in ("steps", "reward_mean"))
            (line,) = axes.plot(np.median(at, axis=0), np.median(returns, axis=0), label=who, linewidth=2)
            for steps, values in zip(at, returns, strict=True):
                axes.plot(steps, values, color=line.get_color(), alpha=0.25, linewidth=0.8)
        if self.learning.median is not None:
            axes.axhline(self.learning.median, color="tab:gray", linestyle=":", label="goal")
        axes.set(xlabel="environment steps", ylabel="mean return of 20 episodes", title=self.name)
        axes.legend()
        axes.grid(alpha=0.3)
        return figure

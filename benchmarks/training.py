"""What `learning.py` does with a task of `tasks.py`: train it with noterl, and with peers, and say what was reached.

Each run is a process of its own. Runs that are kept already, of the same settings and as many steps, are not made
again, so that a task that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import figures
from benchmarks.evaluation import evaluations
from benchmarks.processes import BACKENDS, PEERS, ROOT, command, execute, machine, store
from benchmarks.tasks import TASKS, Task

RESULTS = ROOT / "benchmarks" / "results" / "learning"
POINTS = 10
HEAD = ("task", "steps", "", "seeds", "median", "IQM", "worst seed", "asked for", "published")


class Training:
    """A task of `tasks.py`, as `learning.py` runs its tasks (see `learning_tasks`).

    Args:
        name: of the task.
    """

    def __init__(self, name: str) -> None:
        self.name, self.task = name, TASKS[name]
        if self.task.learning is None:
            raise ValueError(f"{name} is a task of speed alone")
        self.learning = self.task.learning
        self.SEEDS = self.learning.seeds
        self.__doc__ = f"{self.task.algorithm.upper()} on {self.task.environment}: {self.task.source}"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        steps = self.learning.steps or self.task.steps
        parser.add_argument("--steps", type=int, default=steps, help="environment steps of each run")
        parser.add_argument("--backends", nargs="*", choices=BACKENDS, default=list(self.learning.backends))
        parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(self.learning.peers))
        parser.add_argument("--peer-python", default=str(ROOT / ".venv-peers" / "bin" / "python"))
        parser.add_argument("--afresh", action="store_true", help="make runs again that are kept")

    def run(
        self,
        seeds: int,
        *,
        steps: int,
        backends: list[str],
        peers: list[str],
        peer_python: str,
        afresh: bool,
        folder: Path | None,
        kept: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Make the runs that `folder` does not hold, keep each there as it ends, and return the result of all.

        `kept` is called whenever one has been kept.
        """
        path = None if folder is None else folder / f"{self.name}.json"
        runs = [] if afresh or path is None else self.known(path, steps)
        made = {(each["who"], each["seed"]) for each in runs}
        for seed in range(seeds):
            for who in (*(f"noterl-{backend}" for backend in backends), *peers):
                if (who, seed) in made:
                    continue
                found = execute(*command(who, self.name, seed, steps, peer_python, POINTS))
                runs.append({"who": who, "seed": seed, "machine": machine(), **found})
                mean = float(np.mean(found["returns"]))
                print(f"seed {seed} {who}: {mean:.1f} in {found['seconds']:.0f} s", file=sys.stderr, flush=True)
                if path is not None:
                    store(self.result(runs, steps), path)
                    kept()
        return self.result(runs, steps)

    def known(self, path: Path, steps: int) -> list[dict[str, Any]]:
        """Return the runs that are kept, if they are of these settings."""
        if not path.exists():
            return []
        result = json.loads(path.read_text())
        asked = json.loads(json.dumps(self.settings(steps)))
        return list(result["runs"]) if result["settings"] == asked else []

    def settings(self, steps: int) -> dict[str, Any]:
        return {
            **self.task.settings,
            "steps": steps,
            "episodes": self.learning.episodes,
            "evaluation episodes": evaluations(self.task),
        }

    def result(self, runs: list[dict[str, Any]], steps: int) -> dict[str, Any]:
        order = [f"noterl-{backend}" for backend in BACKENDS] + list(PEERS)
        runs = sorted(runs, key=lambda each: (order.index(each["who"]), each["seed"]))
        return {
            "task": self.name,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "source": self.task.source,
            "settings": self.settings(steps),
            "summary": summarize(self.task, runs),
            "runs": runs,
        }

    def table(self, result: dict[str, Any]) -> str:
        return table([result])

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
            axes.axhline(self.learning.median, color="tab:gray", linestyle=":", label="asked for")
        axes.set(xlabel="environment steps", ylabel="mean return of 20 episodes", title=self.name)
        axes.legend()
        axes.grid(alpha=0.3)
        return figure


def summarize(task: Task, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what each participant reached, and of noterl whether that is what was asked for."""
    of: dict[str, list[dict[str, Any]]] = {}
    for each in runs:
        of.setdefault(each["who"], []).append(each)
    summary = {}
    for who, some in of.items():
        summary[who] = {
            **figures.returns([each["returns"] for each in some]),
            "seeds": len(some),
            "seconds": float(np.median([each["seconds"] for each in some])),
        }
        if some[0].get("success") is not None:
            summary[who]["success"] = float(np.median([each["success"] for each in some]))
            summary[who]["episodes"] = max(each["episodes"] for each in some)
        if who.startswith("noterl-"):
            summary[who]["met"] = met(task, summary[who])
            summary[who]["peers"] = {
                peer: figures.difference(
                    *([float(np.mean(each["returns"])) for each in side] for side in (some, of[peer])),
                    task.return_range[1] - task.return_range[0],
                    task.learning.seeds if task.learning else figures.FEWEST,
                )
                for peer in of
                if not peer.startswith("noterl-")
            }
    return summary


def met(task: Task, reached: dict[str, Any]) -> bool | None:
    """Return whether the figures asked for are reached; None if none are, or seeds are missing."""
    asked = task.learning
    if asked is None or reached["seeds"] < asked.seeds or (asked.median, asked.success) == (None, None):
        return None
    if asked.share is not None:
        return float(np.mean(np.asarray(reached["seed_means"]) >= asked.median)) >= asked.share
    bounds = [
        (reached["median"], asked.median),
        (reached["worst"], asked.worst),
        (reached.get("success"), asked.success),
    ]
    return all(value >= least for value, least in bounds if least is not None)


def table(results: list[dict[str, Any]]) -> str:
    """Return results as one Markdown table."""
    lines = ["| " + " | ".join(HEAD) + " |", "| --- " * len(HEAD) + "|"]
    for result in results:
        asked = TASKS[result["task"]].learning
        for who, one in result["summary"].items():
            steps = result["settings"]["steps"]
            cells = (
                result["task"],
                f"{steps:,}" if asked.episodes is None else f"{asked.episodes:,} episodes",
                who,
                str(one["seeds"]),
                *(f"{one[name]:.1f}" for name in ("median", "iqm", "worst")),
                asked_for(asked, one) if who.startswith("noterl-") else "",
                asked.published,
            )
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def asked_for(asked: Any, one: dict[str, Any]) -> str:
    """Return what was asked for, and whether it was reached."""
    verdict = {True: ": met", False: ": missed", None: ""}[one["met"]]
    parts = []
    if asked.share is not None:
        reached = int(np.sum(np.asarray(one["seed_means"]) >= asked.median))
        parts.append(f"{asked.median:g} in {asked.share:.0%} of the seeds{verdict} ({reached} of {one['seeds']})")
    elif asked.median is not None:
        worst = "" if asked.worst is None else f", worst {asked.worst:g}"
        parts.append(f"{asked.median:g}{worst}{verdict}")
    if asked.success is not None:
        parts.append(f"success {asked.success:.0%}{verdict} ({one['success']:.1%})")
    elif "success" in one:
        parts.append(f"success {one['success']:.1%}")
    for peer, difference in one["peers"].items():
        interval = "" if difference["low"] is None else f" ({difference['low']:+.1f} to {difference['high']:+.1f})"
        parts.append(f"{peer} {difference['difference']:+.1f}{interval}: {difference['verdict']}")
    return "; ".join(parts)

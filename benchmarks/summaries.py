"""Summaries of finished runs; `benchmarks/refresh.py` computes those in benchmarks/results/ again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks import stats
from benchmarks.tasks import Task


def summarize_speed(task: Task, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarize the runs of `compare.py`: each participant, and each backend beside each peer, paired by seed."""
    by_who = _group(sorted(runs, key=lambda run: run["seed"]))
    ours = [who for who in by_who if who.startswith("noterl-")]
    peers = [who for who in by_who if not who.startswith("noterl-")]
    return {
        "participants": {who: _participant(of_who) for who, of_who in by_who.items()},
        "comparisons": [_comparison(task, by_who, one, peer) for one in ours for peer in peers],
    }


def _group(runs: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    by_who: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        by_who.setdefault(run["who"], []).append(run)
    return by_who


def mean_returns(runs: Sequence[dict[str, Any]]) -> list[float]:
    """Return the score of each run: its mean return over the evaluation episodes."""
    return [float(np.mean(run["returns"])) for run in runs]


def _participant(runs: list[dict[str, Any]]) -> dict[str, Any]:
    summary = {
        "steps_per_second": _median(run["steps_per_second"] for run in runs),
        "steady_steps_per_second": _median(run["steady_steps_per_second"] for run in runs),
        "updates": runs[0]["updates"],
        "returns": stats.summarize_scores(mean_returns(runs)),
    }
    if "time_split" in runs[0]:
        summary["time_split"] = {
            name: float(np.median([run["time_split"][name] / run["seconds"] for run in runs]))
            for name in runs[0]["time_split"]
        }
    return summary


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _comparison(task: Task, by_who: dict[str, list[dict[str, Any]]], one: str, peer: str) -> dict[str, Any]:
    pairs = list(zip(by_who[one], by_who[peer], strict=True))
    speed = _ratio(pairs, "steps_per_second")
    bar = task.bars.get(peer, {}).get(one.removeprefix("noterl-"))
    return {
        "ours": one,
        "peer": peer,
        "speed": speed,
        "steady_speed": _ratio(pairs, "steady_steps_per_second"),
        "bar": bar,
        "met": None if bar is None or speed["low"] is None else speed["low"] >= bar,
        "returns": stats.difference(mean_returns(by_who[one]), mean_returns(by_who[peer]), task.span),
    }


def _ratio(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], key: str) -> dict[str, Any] | None:
    """Return the ratio of a speed over the pairs; None if a run has none."""
    speeds = [(ours[key], theirs[key]) for ours, theirs in pairs]
    return stats.paired_ratio(*zip(*speeds, strict=True)) if all(all(pair) for pair in speeds) else None


def summarize_learning(task: Task, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarize the runs of `learning.py`: what each participant reached, and whether noterl meets the goals."""
    assert task.learning is not None
    by_who, summary = _group(runs), {}
    for who, some in by_who.items():
        one = summary[who] = {
            **stats.summarize_scores(mean_returns(some)),
            "seeds": len(some),
            "seconds": float(np.median([each["seconds"] for each in some])),
        }
        if some[0].get("success") is not None:
            one["success"] = float(np.median([each["success"] for each in some]))
            one["episodes"] = max(each["episodes"] for each in some)
        if who.startswith("noterl-"):
            one["met"] = goal_met(task, one)
            one["peers"] = {
                peer: stats.difference(one["scores"], mean_returns(by_who[peer]), task.span, task.learning.min_seeds)
                for peer in by_who
                if not peer.startswith("noterl-")
            }
    return summary


def goal_met(task: Task, reached: dict[str, Any]) -> bool | None:
    """Return whether all goals of the task are reached; None if it has none or there are too few seeds."""
    goal = task.learning
    if goal is None or reached["seeds"] < goal.min_seeds or (goal.median, goal.success) == (None, None):
        return None
    if goal.share is not None:
        return float(np.mean(np.asarray(reached["scores"]) >= goal.median)) >= goal.share
    bounds = [
        (reached["median"], goal.median),
        (reached["worst"], goal.worst),
        (reached.get("success"), goal.success),
    ]
    return all(value >= least for value, least in bounds if least is not None)


def summarize_pairs(ours: Sequence[float], theirs: Sequence[float], bar: float | None) -> dict[str, Any]:
    """Summarize paired times: the medians, their ratio and whether the upper end of its interval is within the bar."""
    ratio = stats.paired_ratio(ours, theirs)
    return {
        "ours": float(np.median(ours)),
        "theirs": float(np.median(theirs)),
        "ratio": ratio,
        "bar": bar,
        "met": None if bar is None or ratio["high"] is None else ratio["high"] <= bar,
    }


def summarize_rates(ours: Sequence[float], theirs: Sequence[float], bar: float | None) -> dict[str, Any]:
    """Summarize paired rates: the medians, their ratio and whether the lower end of its interval meets the bar."""
    found = summarize_pairs(ours, theirs, bar)
    low = found["ratio"]["low"]
    return {**found, "met": None if bar is None or low is None else low >= bar}

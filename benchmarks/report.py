"""Finished runs -> a summary, and the summary as a table for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from benchmarks import figures
from benchmarks.tasks import Task


def summarize(task: Task, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarise the runs of each participant, and compare each of ours with each peer, paired by seed."""
    by_who: dict[str, list[dict[str, Any]]] = {}
    for run in sorted(runs, key=lambda run: run["seed"]):
        by_who.setdefault(run["who"], []).append(run)
    ours = [who for who in by_who if who.startswith("noterl-")]
    peers = [who for who in by_who if not who.startswith("noterl-")]
    return {
        "participants": {who: _participant(of_who) for who, of_who in by_who.items()},
        "comparisons": [_comparison(task, by_who, one, peer) for one in ours for peer in peers],
    }


def _participant(runs: list[dict[str, Any]]) -> dict[str, Any]:
    summary = {
        "steps_per_second": _median(run["steps_per_second"] for run in runs),
        "steady_steps_per_second": _median(run["steady_steps_per_second"] for run in runs),
        "updates": runs[0]["updates"],
        "returns": figures.returns([run["returns"] for run in runs]),
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
    steady = [(ours["steady_steps_per_second"], theirs["steady_steps_per_second"]) for ours, theirs in pairs]
    speed = figures.ratio(*zip(*((a["steps_per_second"], b["steps_per_second"]) for a, b in pairs), strict=True))
    bar = task.bars.get(peer, {}).get(one.removeprefix("noterl-"))
    return {
        "ours": one,
        "peer": peer,
        "speed": speed,
        "steady_speed": figures.ratio(*zip(*steady, strict=True)) if all(all(pair) for pair in steady) else None,
        "bar": bar,
        "met": None if bar is None or len(pairs) < figures.FEWEST else speed["low"] >= bar,
        "returns": figures.difference(
            [float(np.mean(run["returns"])) for run in by_who[one]],
            [float(np.mean(run["returns"])) for run in by_who[peer]],
            task.return_range[1] - task.return_range[0],
        ),
    }


def tables(result: dict[str, Any]) -> str:
    """Return the result as Markdown, which reads well in a terminal too."""
    summary = result["summary"]
    seeds = len({run["seed"] for run in result["runs"]})
    parts = [
        f"{result['task']}: {result['steps']:,} steps, {seeds} seed{'s' * (seeds != 1)}, {result['date']}, "
        f"{result['machine']['processor']}, {result['machine']['cores']} cores",
        _table(
            ("", "steps/s", "after 10 %", "updates", "return: median", "IQM", "worst seed"),
            [_participant_row(who, one) for who, one in summary["participants"].items()],
        ),
    ]
    if summary["comparisons"]:
        head = ("ratio of steps/s", "90 % interval", "bar", "after 10 %", "difference of return", "95 % interval", "")
        parts.append(_table(head, [_comparison_row(one) for one in summary["comparisons"]]))
    splits = {who: one["time_split"] for who, one in summary["participants"].items() if "time_split" in one}
    if splits:
        names = list(next(iter(splits.values())))
        rows = [(who, *(f"{100 * split[name]:.0f} %" for name in names)) for who, split in splits.items()]
        parts.append(_table(("share of the time", *names), rows))
    return "\n\n".join(parts)


def _participant_row(who: str, one: dict[str, Any]) -> tuple[str, ...]:
    returns = one["returns"]
    speeds = (f"{one[key]:,.0f}" if one[key] else "" for key in ("steps_per_second", "steady_steps_per_second"))
    return (who, *speeds, f"{one['updates']:,}", *(f"{returns[key]:.1f}" for key in ("median", "iqm", "worst")))


def _comparison_row(one: dict[str, Any]) -> tuple[str, ...]:
    returns = one["returns"]
    verdict = {True: "met", False: "missed", None: "not judged"}[one["met"]]
    return (
        f"{one['ours']} / {one['peer']}: {one['speed']['ratio']:.2f}",
        _interval(one["speed"], ".2f"),
        f"{one['bar']:g}: {verdict}" if one["bar"] is not None else "",
        f"{one['steady_speed']['ratio']:.2f}" if one["steady_speed"] else "",
        f"{returns['difference']:+.1f}",
        _interval(returns, "+.1f"),
        returns["verdict"],
    )


def _interval(figure: dict[str, Any], form: str) -> str:
    return f"{figure['low']:{form}} to {figure['high']:{form}}" if figure["low"] is not None else ""


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (head, *rows)
    ]
    lines.insert(1, "| " + " | ".join("-" * max(width, 3) for width in widths) + " |")
    return "\n".join(lines)

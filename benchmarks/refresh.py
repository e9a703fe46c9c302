"""Compute the summaries and tables of all stored results again, from their runs.

python -m benchmarks.refresh
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import adapting_defaults, first_programs, learning_rates, offline
from benchmarks.learning import MODULES, load
from benchmarks.memory_tasks import MEMORY_TASKS
from benchmarks.processes import RESULTS, store
from benchmarks.summaries import summarize_learning, summarize_pairs, summarize_rates, summarize_speed
from benchmarks.tasks import TASKS


def refresh(results: Path = RESULTS) -> None:
    """Compute the summaries and tables of all results again, from their runs."""
    for name, task in TASKS.items():
        for folder, summarize in ((results / "compare", summarize_speed), (results / "learning", summarize_learning)):
            if (path := folder / f"{name}.json").exists():
                result = json.loads(path.read_text())
                store({**result, "summary": summarize(task, result["runs"])}, path)
    for name in (*MODULES, *MEMORY_TASKS):
        if (path := results / "learning" / f"{name}.json").exists():
            result, module = json.loads(path.read_text()), load(name)
            result["summary"] = module.summarize(result)
            store({**result, "table": module.table(result).splitlines()}, path)
    if (path := results / "offline" / "offline.json").exists():
        runs = json.loads(path.read_text())["runs"]
        store({"summary": offline.summarize(runs), "runs": runs}, path)
    for folder in ("atari", "device", "limit", "replay", "solve"):
        refresh_rows(results / folder, summarize_pairs)
    refresh_rows(results / "pool", summarize_rates)
    for module, cases in (
        (first_programs, first_programs.PROGRAMS),
        (adapting_defaults, adapting_defaults.TASKS),
        (learning_rates, learning_rates.CASES),
    ):
        refresh_cases(results / module.FOLDER.name, module.summarize, cases)


def refresh_rows(folder: Path, summarize: Callable[..., dict[str, Any]]) -> None:
    """Compute the ratios of all results in a folder again, from the paired runs of each row."""
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        for row in result["runs"]:
            if row.get("theirs") is not None:
                row.update(summarize(**row["runs"], bar=row["bar"]))
        store(result, path)


def refresh_cases(folder: Path, summarize: Callable[..., dict[str, Any]], cases: Mapping[str, Any]) -> None:
    """Compute the summaries of all results in a folder again, whose names are those of cases."""
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        store({**result, "summary": summarize(cases[path.stem], result["runs"])}, path)


if __name__ == "__main__":
    refresh()

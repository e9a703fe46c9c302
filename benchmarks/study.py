"""Do the runs that a stored result does not hold, and store the result after each of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.processes import store

Run = dict[str, Any]


def stored_runs(path: Path | None, is_same: Callable[[dict[str, Any]], bool] = lambda result: True) -> list[Run]:
    """Return the runs of a stored result; none if there is no file, or the result has other settings."""
    if path is None or not path.exists():
        return []
    result = json.loads(path.read_text())
    return list(result["runs"]) if is_same(result) else []


def complete(
    runs: list[Run],
    wanted: Iterable[Hashable],
    *,
    key_of: Callable[[Run], Hashable],
    train: Callable[..., tuple[Run, str]],
    result_of: Callable[[list[Run]], dict[str, Any]],
    path: Path | None,
) -> dict[str, Any]:
    """Do the missing runs in their order, and return the result of all.

    Args:
        runs: those that are stored.
        wanted: the keys of the runs that the result shall have.
        key_of: returns the key of a run.
        train: key -> the run, and a line to print.
        result_of: runs -> the result.
        path: file of the result; None to store nothing.
    """
    finished = {key_of(one) for one in runs}
    for key in wanted:
        if key in finished:
            continue
        run, line = train(key)
        runs.append(run)
        print(line, file=sys.stderr, flush=True)
        if path is not None:
            store(result_of(runs), path)
    return result_of(runs)

"""Measure updates in bfloat16 beside updates in float32, for SAC and TD3 with 256 and 1,024 units.

    python -m benchmarks.precision --backend torch

Both sides run in one process, in blocks that alternate. The ratio is the time in bfloat16 divided by that in float32.
It depends on the processor: some have instructions for products in bfloat16. The result is stored in
benchmarks/results/precision/BACKEND.json.
"""

from __future__ import annotations

import argparse
import datetime
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.evaluation import versions
from benchmarks.limit import BACKENDS, BLOCKS, CASES, SECONDS, THREADS, Case, alternate, make_ours, prepare
from benchmarks.processes import RESULTS, machine, store, warn_if_busy
from benchmarks.report import precision_table
from benchmarks.summaries import summarize_pairs

FOLDER = RESULTS / "precision"
SIZED: dict[str, Case] = {
    f"{name}-{units}": replace(CASES[name], hidden=(units, units), updates=updates)
    for name in ("sac", "td3")
    for units, updates in ((256, 16), (1_024, 2))
}


def measure(case: Case, blocks: int, seconds: float) -> dict[str, Any]:
    """Return the microseconds of an update in bfloat16 and in float32, and the ratio."""
    sides = []
    for precision in ("bfloat16", "float32"):
        one = replace(case, precision=precision)
        sides.append(make_ours(one, prepare(one)[0]))
    times = alternate(sides, blocks, seconds)
    ours, theirs = ([1e6 * each / case.updates for each in side] for side in times)
    found = summarize_pairs(ours, theirs, 1.0)
    return {"bfloat16": found["ours"], "float32": found["theirs"], "ratio": found["ratio"]}


def main(words: list[str] | None = None) -> None:
    """Measure the cases, store them and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", required=True, choices=BACKENDS)
    parser.add_argument("--cases", nargs="+", choices=list(SIZED), default=list(SIZED))
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--results", type=Path, default=FOLDER, help="the folder of the results")
    arguments = parser.parse_args(words)
    os.environ["KERAS_BACKEND"] = arguments.backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    start = machine()
    warn_if_busy(start)
    threads = {name: os.environ[name] for name in THREADS if name in os.environ}
    runs = [{"case": name, **measure(SIZED[name], arguments.blocks, SECONDS)} for name in arguments.cases]
    result = {
        "task": "precision",
        "backend": arguments.backend,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": start,
        "threads": threads,
        "versions": versions(("noterl", "numpy", "keras", "jax", "torch", "tensorflow", "tensorflow-cpu")),
        "runs": runs,
    }
    print(precision_table(result))
    if set(arguments.cases) == set(SIZED):
        store(result, arguments.results / f"{arguments.backend}.json")


if __name__ == "__main__":
    main()

"""Measure updates with several numbers of threads, alone and beside a program that keeps one core busy.

    python -m benchmarks.threads --repeats 5

The cases are those of limit.py. "default" sets no environment variable: noterl chooses on torch, and XLA and TensorFlow
take all cores. "one" and, on torch, "all" set the number by the variable of the framework. Each run is a process of its
own, and the runs of a repeat take turns. The busy program is pinned to the first core on Linux. Times are medians. The
bar holds for the default on torch, which keeps half of its speed beside the busy program. Results of at least three
repeats are stored in benchmarks/results/threads/, one file for each backend.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.evaluation import print_json, versions
from benchmarks.limit import CASES, THREADS, alternate, make_sides
from benchmarks.processes import RESULTS, execute, machine, store, variables, warn_if_busy
from benchmarks.report import threads_table

FOLDER = RESULTS / "threads"
VARIABLE = {"tensorflow": "TF_NUM_INTRAOP_THREADS", "jax": "NPROC", "torch": "OMP_NUM_THREADS"}
BLOCKS, SECONDS = 7, 0.25
KEPT = 0.5  # the bar
BUSY_PROGRAM = """
import os
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(flush=True)
while True:
    pass
"""


def measure(name: str) -> None:
    """Print the microseconds of an update of noterl, the median of some blocks."""
    (times,) = alternate(make_sides(CASES[name])[:1], BLOCKS, SECONDS)
    print_json({"microseconds": 1e6 * statistics.median(times) / CASES[name].updates})


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core busy."""
    with subprocess.Popen([sys.executable, "-c", BUSY_PROGRAM], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def run(backend: str, name: str, threads: int | None) -> float:
    """Return the microseconds of an update in a process of its own; `threads` is None for the default."""
    chosen = {} if threads is None else {VARIABLE[backend]: str(threads)}
    words = [sys.executable, "-m", "benchmarks.threads", "--measure", name]
    return float(execute(words, {**variables(backend), **chosen})["microseconds"])


def runs_of(backend: str, names: list[str], repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the results of all runs."""
    labels = {"default": None, "one": 1, **({"all": os.cpu_count()} if backend == "torch" else {})}
    for repeat in range(repeats):
        for name in names:
            for label, threads in labels.items():
                alone = run(backend, name, threads)
                with busy_core():
                    beside = run(backend, name, threads)
                yield {"case": name, "repeat": repeat, "threads": label, "alone": alone, "beside": beside}


def summarize(backend: str, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the medians by case, and the share of the speed that the default keeps beside the busy program."""
    rows = []
    for name in dict.fromkeys(each["case"] for each in runs):
        row: dict[str, Any] = {"case": name}
        of_case = [each for each in runs if each["case"] == name]
        for kind in ("alone", "beside"):
            times: dict[str, list[float]] = {}
            for each in of_case:
                times.setdefault(each["threads"], []).append(each[kind])
            row[kind] = {label: statistics.median(found) for label, found in times.items()}
        row["kept"] = row["alone"]["default"] / row["beside"]["default"]
        row["met"] = row["kept"] >= KEPT if backend == "torch" else None
        rows.append(row)
    return rows


def main(words: list[str] | None = None) -> None:
    """Measure the backends and store their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", choices=list(VARIABLE), default=list(VARIABLE))
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=["dqn", "ppo", "sac", "td3"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=FOLDER, help="the folder of the results")
    parser.add_argument("--measure", metavar="CASE", choices=list(CASES), help="measure one case in this process")
    arguments = parser.parse_args(words)
    if arguments.measure:
        measure(arguments.measure)
        return
    if any(name in os.environ for name in THREADS):
        parser.error(f"unset {', '.join(name for name in THREADS if name in os.environ)}, which the runs set")
    for backend in arguments.backends:
        start = machine()
        warn_if_busy(start)
        runs = list(runs_of(backend, arguments.cases, arguments.repeats))
        result = {
            "task": "threads",
            "backend": backend,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": start,
            "versions": versions(("noterl", "numpy", "keras", "jax", "torch", "tensorflow", "tensorflow-cpu")),
            "bar": KEPT,
            "summary": summarize(backend, runs),
            "runs": runs,
        }
        print(threads_table(result), flush=True)
        if arguments.repeats >= 3:
            store(result, arguments.output / f"{backend}.json")


if __name__ == "__main__":
    main()

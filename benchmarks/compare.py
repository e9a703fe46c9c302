"""Train a task with noterl and its peers in alternating runs, and compare speed and return.

    python -m benchmarks.compare cartpole-dqn --backends tensorflow jax torch --peers sb3 sbx --seeds 5

Each run is a process of its own. `make peers` creates the peers' environment. benchmarks/README.md explains the result,
which is printed and stored in benchmarks/results/compare/. The backends "jax-warm" and "tensorflow-warm" have a
compilation cache, which a run before the others fills; all others compile in each run.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.processes import (
    BACKENDS,
    PEERS,
    RESULTS,
    ROOT,
    WARM,
    command,
    execute,
    machine,
    store,
    warn_if_busy,
)
from benchmarks.report import speed_section
from benchmarks.summaries import summarize_speed
from benchmarks.tasks import TASKS


def run_order(backends: list[str], peers: list[str], seed: int) -> list[str]:
    """Return the order of the runs of one seed: noterl and peers in turn, with another first run for each seed.

    If the machine gets slower or faster over time, this order favors no participant.
    """
    ours = [f"noterl-{backend}" for backend in backends]
    longest = max(len(ours), len(peers))
    turns = [name for i in range(longest) for name in (*ours[i : i + 1], *peers[i : i + 1])]
    start = seed % len(turns)
    return turns[start:] + turns[:start]


def compare(arguments: argparse.Namespace, execute: Callable[..., dict[str, Any]] = execute) -> dict[str, Any]:
    """Do all runs and return the result; tests replace `execute`."""
    task = TASKS[arguments.task]
    steps = arguments.steps or task.steps
    start = machine()
    warn_if_busy(start)
    runs = []
    with tempfile.TemporaryDirectory(prefix="noterl-compare-") as cache:

        def run(who: str, seed: int) -> dict[str, Any]:
            words, added = command(who, arguments.task, seed, steps, arguments.peer_python)
            return execute(words, {**added, "NOTERL_CACHE": cache} if who.endswith(WARM) else added)

        for backend in arguments.backends:
            if backend.endswith(WARM):
                run(f"noterl-{backend}", 0)
        for seed in range(arguments.seeds):
            for who in run_order(arguments.backends, arguments.peers, seed):
                found = run(who, seed)
                runs.append({"who": who, "seed": seed, **found})
                mean = sum(found["returns"]) / len(found["returns"])
                print(
                    f"seed {seed} {who}: {found['steps_per_second']:,.0f} steps/s, return {mean:.1f}", file=sys.stderr
                )
    return {
        "task": arguments.task,
        "source": task.source,
        "settings": task.settings,
        "steps": steps,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": start,
        "versions": {run["who"]: run.pop("versions") for run in reversed(runs)},
        "summary": summarize_speed(task, runs),
        "runs": runs,
    }


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], prog="compare.py")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--backends", nargs="*", choices=BACKENDS, default=["tensorflow", "jax", "torch"])
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--seeds", type=int, default=5, help="runs of each participant; bars and outcomes need five")
    parser.add_argument("--steps", type=int, help="fewer environment steps; stored only with --output")
    parser.add_argument("--output", type=Path, help="file of the result (default: results/compare/TASK.json)")
    parser.add_argument("--peer-python", default=str(ROOT / ".venv-peers" / "bin" / "python"))
    arguments = parser.parse_args(words)
    if arguments.seeds < 1 or (arguments.steps is not None and arguments.steps < 1):
        parser.error("--seeds and --steps must be at least 1")
    if not arguments.backends and not arguments.peers:
        parser.error("--backends and --peers must not both be empty")
    if arguments.peers and not shutil.which(arguments.peer_python):
        parser.error(f"there is no {arguments.peer_python}: run `make peers`, or pass --peer-python or --peers")
    return arguments


def main(words: list[str] | None = None) -> None:
    arguments = parse(words)
    result = compare(arguments)
    print(speed_section(result))
    default = RESULTS / "compare" / f"{arguments.task}.json" if arguments.steps is None else None
    if path := arguments.output or default:
        store(result, path)
        print(f"\nstored in {path}")


if __name__ == "__main__":
    main()

"""Compare the speed of two versions of noterl in pairs of short runs.

    python -m benchmarks.old_against_new v0.1 --backend jax --pairs 15
    python -m benchmarks.old_against_new ../old-checkout HEAD --backend torch --tasks pendulum-sac --out result.json

Each version is a folder with a checkout, or a git revision, which is checked out in a temporary git worktree. The new
version is this checkout by default. Both run in processes of this interpreter, with this checkout's tasks and clock.
Each pair has its own seed. "Same episodes" counts the pairs with bit-for-bit equal episode returns.

The two runs of a pair share one core: the kernel alternates between them every few milliseconds, so that both meet the
same machine, however busy other programs are. Their speeds are steps per second of the processor.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report, stats
from benchmarks.processes import BACKENDS, ROOT, execute, machine, store

# Environment steps of the short runs: a few seconds each, compilation included.
STEPS = {"cartpole-dqn": 15_000, "cartpole-ppo": 30_000, "pendulum-sac": 1_500}
SPEEDS = {"whole run": "steps_per_second", "after 10 %": "steady_steps_per_second"}
# One run: noterl comes from the first folder on the path, the benchmark from ROOT.
SCRIPT = """
import hashlib, os, sys, time
if hasattr(os, "sched_setaffinity"):  # not on macOS
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import noterl
sys.path.insert(0, sys.argv[1])
from benchmarks.evaluation import print_json
from benchmarks.run import TASKS, train
task, seed, steps = sys.argv[2:]
agent, history, times = train(TASKS[task], int(seed), int(steps), time.process_time)
returns = hashlib.sha256(repr([float(value) for value in history.history["reward"]]).encode()).hexdigest()
files = {module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "noterl"}
print_json({**times, "updates": agent.updates, "returns": returns, "files": sorted(filter(None, files))})
"""


@contextlib.contextmanager
def checkout(version: str) -> Iterator[Path]:
    """Yield the folder of a version; a git revision is checked out in a temporary worktree.

    Raises:
        ValueError: if `version` is neither a folder that holds noterl nor a revision.
    """
    if (Path(version) / "noterl" / "__init__.py").exists():
        yield Path(version).resolve()
        return
    commit = git("rev-parse", "--verify", "--quiet", f"{version}^{{commit}}", check=False)
    if not commit:
        raise ValueError(f"version must be a folder that holds noterl or a git revision, not {version!r}")
    with tempfile.TemporaryDirectory(prefix="noterl-") as folder:
        tree = Path(folder).resolve() / "checkout"
        git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*words: str, check: bool = True) -> str:
    """Return the output of a git command in this checkout."""
    return subprocess.run(["git", *words], cwd=ROOT, check=check, capture_output=True, text=True).stdout.strip()


def describe(version: str, folder: Path) -> str:
    """Return the version as given, and its commit."""
    commit = git("-C", str(folder), "describe", "--always", "--dirty", check=False)
    return f"{version} ({commit})" if commit else version


def command(folder: Path, backend: str, task: str, seed: int, steps: int) -> tuple[list[str], dict[str, str]]:
    """Return the command line of one run with the noterl of `folder`, and its environment variables."""
    variables = {**BACKENDS[backend], "PYTHONPATH": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"}
    # -P: the current folder, which also holds noterl, must not come first on the path.
    return [sys.executable, "-P", "-c", SCRIPT, str(ROOT), task, str(seed), str(steps)], variables


def compare(
    arguments: argparse.Namespace, folders: dict[str, Path], execute: Callable[..., dict[str, Any]] = execute
) -> dict[str, Any]:
    """Do all pairs of all tasks and return the result; tests replace `execute`."""
    start = machine()
    runs = []
    for task in arguments.tasks:
        steps = arguments.steps or STEPS[task]
        for pair in range(arguments.pairs):
            commands = [command(folder, arguments.backend, task, pair, steps) for folder in folders.values()]
            with ThreadPoolExecutor(len(commands)) as threads:
                pair_runs = list(threads.map(execute, *zip(*commands, strict=True)))
            for side, run in zip(folders, pair_runs, strict=True):
                if not all(Path(file).is_relative_to(folders[side]) for file in run.pop("files")):
                    raise RuntimeError(f"the {side} run did not import all of noterl from {folders[side]}")
                runs.append({"task": task, "side": side, "pair": pair, **run})
                speed = f"{run['steps_per_second']:,.0f} steps/s"
                print(f"{task}, pair {pair}, {side}: {speed}", file=sys.stderr, flush=True)
    return {
        "old": describe(arguments.old, folders["old"]),
        "new": describe(arguments.new, folders["new"]),
        "backend": arguments.backend,
        "pairs": arguments.pairs,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": start,
        "summary": {task: summarize(runs, task) for task in arguments.tasks},
        "runs": runs,
    }


def summarize(runs: list[dict[str, Any]], task: str) -> dict[str, Any]:
    """Return the median speeds, the ratio of each pair's speeds and the number of pairs with the same episodes."""
    old, new = (
        sorted((run for run in runs if run["task"] == task and run["side"] == side), key=lambda run: run["pair"])
        for side in ("old", "new")
    )
    summary: dict[str, Any] = {}
    for name, key in SPEEDS.items():
        speeds = {"old": [run[key] for run in old], "new": [run[key] for run in new]}
        if None not in (*speeds["old"], *speeds["new"]):
            medians = {side: float(np.median(values)) for side, values in speeds.items()}
            summary[name] = {**medians, **stats.paired_ratio(speeds["new"], speeds["old"])}
    same = sum(a["returns"] == b["returns"] for a, b in zip(old, new, strict=True))
    return {"speeds": summary, "pairs": len(old), "same_episodes": same}


def table(result: dict[str, Any]) -> str:
    """Return the result as Markdown: a row for each task and part of the run."""
    rows = []
    for task, summary in result["summary"].items():
        same = f"{summary['same_episodes']} of {summary['pairs']}"
        for name, one in summary["speeds"].items():
            rows.append((task, name, f"{one['old']:,.0f}", f"{one['new']:,.0f}", report.ratio(one), same))
    head = ("task", "part", "old steps/s", "new steps/s", "new / old (90 % interval)", "same episodes")
    title = f"{result['backend']}: {result['new']} against {result['old']}, {result['pairs']} pairs"
    return f"{title}\n\n{report.markdown_table(head, rows)}"


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], prog="old_against_new.py")
    parser.add_argument("old", help="folder of a checkout, or git revision")
    parser.add_argument("new", nargs="?", default=str(ROOT), help="folder or revision (default: this checkout)")
    parser.add_argument("--backend", choices=BACKENDS, default="jax")
    parser.add_argument("--tasks", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--pairs", type=int, default=15, help="pairs of runs per task; an interval needs five")
    parser.add_argument("--steps", type=int, help=f"environment steps of each run (default: {STEPS})")
    parser.add_argument("--out", type=Path, help="file of the result; without it, the result is only printed")
    arguments = parser.parse_args(words)
    if arguments.pairs < 1 or (arguments.steps is not None and arguments.steps < 1):
        parser.error("--pairs and --steps must be at least 1")
    return arguments


def main(words: list[str] | None = None) -> None:
    arguments = parse(words)
    with checkout(arguments.old) as old, checkout(arguments.new) as new:
        result = compare(arguments, {"old": old, "new": new})
    print(table(result))
    if arguments.out:
        store(result, arguments.out)
        print(f"\nstored in {arguments.out}")


if __name__ == "__main__":
    main()

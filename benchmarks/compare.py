"""Train a task with noterl and with peers, in alternating runs, and say who was how fast and learned how much.

    python benchmarks/compare.py cartpole-dqn --backends tensorflow jax torch --peers sb3 sbx --seeds 5

Each run is a process of its own. `make peers` makes the peers' environment; README.md beside this file says how to read
the result, which is printed and kept in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import readme  # noqa: E402
from benchmarks.processes import BACKENDS, PEERS, command, execute, machine, store  # noqa: E402
from benchmarks.report import summarize, tables  # noqa: E402
from benchmarks.tasks import TASKS  # noqa: E402

# The load average from which on other processes take part in what is measured.
BUSY = 0.5


def order(backends: list[str], peers: list[str], seed: int) -> list[str]:
    """Return who runs when for one seed: ours and peers in turn, begun at another place for each seed.

    A machine that grows slower or faster in the course of the comparison then favours nobody.
    """
    ours = [f"noterl-{backend}" for backend in backends]
    longest = max(len(ours), len(peers))
    turns = [name for i in range(longest) for name in (*ours[i : i + 1], *peers[i : i + 1])]
    start = seed % len(turns)
    return turns[start:] + turns[:start]


def compare(arguments: argparse.Namespace, execute: Callable[..., dict[str, Any]] = execute) -> dict[str, Any]:
    """Do all runs and return the result; `execute` is replaced in tests."""
    task = TASKS[arguments.task]
    steps = arguments.steps or task.steps
    start = machine()
    if start["load"] and start["load"][0] > BUSY:
        print(f"the machine is busy (load {start['load'][0]:.1f}): expect figures that mean little", file=sys.stderr)
    runs = []
    for seed in range(arguments.seeds):
        for who in order(arguments.backends, arguments.peers, seed):
            run = execute(*command(who, arguments.task, seed, steps, arguments.peer_python))
            runs.append({"who": who, "seed": seed, **run})
            mean = sum(run["returns"]) / len(run["returns"])
            print(f"seed {seed} {who}: {run['steps_per_second']:,.0f} steps/s, return {mean:.1f}", file=sys.stderr)
    return {
        "task": arguments.task,
        "source": task.source,
        "settings": task.settings,
        "steps": steps,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": start,
        "versions": {run["who"]: run.pop("versions") for run in reversed(runs)},
        "summary": summarize(task, runs),
        "runs": runs,
    }


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], prog="compare.py")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--backends", nargs="*", choices=BACKENDS, default=["tensorflow", "jax", "torch"])
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--seeds", type=int, default=5, help="runs of each; an interval needs two, a bar five")
    parser.add_argument(
        "--steps", type=int, help="fewer environment steps than the task's; then kept only with --output"
    )
    parser.add_argument("--output", type=Path, help="where the result is kept; results/TASK.json if not said")
    parser.add_argument("--peer-python", default=str(ROOT / ".venv-peers" / "bin" / "python"))
    arguments = parser.parse_args(words)
    if arguments.seeds < 1 or (arguments.steps is not None and arguments.steps < 1):
        parser.error("--seeds and --steps must be at least 1")
    if not arguments.backends and not arguments.peers:
        parser.error("--backends and --peers must not both be empty")
    if arguments.peers and not shutil.which(arguments.peer_python):
        parser.error(f"no peers at {arguments.peer_python}: run `make peers`, or say --peer-python or --peers")
    return arguments


def main(words: list[str] | None = None) -> None:
    arguments = parse(words)
    result = compare(arguments)
    print(tables(result))
    official = arguments.output is None and arguments.steps is None
    path = readme.RESULTS / f"{arguments.task}.json" if official else arguments.output
    if path:
        store(result, path)
        print(f"\nkept in {path}")
    if official:
        readme.update()


if __name__ == "__main__":
    main()

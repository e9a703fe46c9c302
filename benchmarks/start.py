"""Measure how long a program takes to start: imports, and the time from `fit` to the first update.

    python -m benchmarks.start --repeats 5

Each run is a process of its own. The runs of a repeat share a new folder of the compilation cache: the first one finds
it empty ("cold"), the second one finds the programs of the first ("warm"). The tasks are the agent of `make demo`, and
PPO and DQN with all defaults. The time includes the first steps, whose transitions the update needs: 2,048 for PPO. The
result is stored in benchmarks/results/start/, one file for each backend.

JAX and TensorFlow compile before the first update. PyTorch begins with eager updates, and traces the loss later; the
time that this takes is "later".

    python -m benchmarks.start --load --before ../older torch

measures instead how long a saved agent takes to be loaded and to choose its first action, and how much memory that
takes: a DQN with 50,000 of 200,000 transitions of 376 numbers. `--before` is a checkout of an older commit, whose runs
alternate with those of this one. The result is stored in benchmarks/results/start/load/.

    python -m benchmarks.start --whole --before a249a9f2 --repeats 11

measures whole processes, from their start to their end: import noterl, and train PPO for four updates. The runs of both
commits alternate, and all but the first, which is not measured, find their programs in the compilation cache. The
result is stored in benchmarks/results/start/whole/.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import stats
from benchmarks.evaluation import print_json, versions
from benchmarks.old_against_new import checkout
from benchmarks.processes import RESULTS, ROOT, execute, machine, store, variables, warn_if_busy
from benchmarks.report import load_table, start_table, whole_table

FOLDER = RESULTS / "start"
TASKS = ("demo", "ppo", "dqn")
CACHES = ("cold", "warm")
FRAMEWORKS = ("tensorflow", "jax", "torch")
# Seconds to the first update with a warm cache.
BARS = {"tensorflow": 1.5, "jax": 0.7, "torch": 0.5}
# Seconds of `import noterl` alone, and of its agents in addition to Keras with its framework.
IMPORT_BARS = {"noterl": 0.15, "agents": 0.3}
# Ratio of the seconds of a whole process to those of commit a249a9f2.
WHOLE_BARS = {"tensorflow": 0.65, "jax": 0.55, "torch": 0.45}
# In a process that has imported nothing else.
IMPORTS = """
import json, time
began = time.perf_counter()
import noterl
first = time.perf_counter()
import keras
second = time.perf_counter()
noterl.DQN, noterl.PPO, noterl.SAC
print(json.dumps({"noterl": first - began, "keras": second - first, "agents": time.perf_counter() - second}))
"""
# Writes the agent that `--load` measures to the path that is the argument.
WRITE = """
import sys
import numpy as np
from gymnasium import spaces
import noterl
agent = noterl.DQN((spaces.Box(-9.0, 9.0, (376,), np.float32), spaces.Discrete(4)), seed=1)
agent.compile(replay=noterl.Replay(200_000))
agent.build()
rows = np.random.default_rng(0).normal(size=(50_001, 376)).astype(np.float32)
for row in range(50_000):
    agent.replay.add(0, rows[row], row % 4, 1.0, rows[row + 1], False, False)
agent.save(sys.argv[1])
print("{}")
"""
# Imports are not measured. Peak memory is that of the process, less what it held before.
LOAD = """
import json, os, resource, sys, time
import numpy as np
import noterl
noterl.DQN("CartPole-v1", seed=1).act(np.zeros(4, np.float32))
with open("/proc/self/statm") as file:
    held = int(file.read().split()[1]) * resource.getpagesize()
began = time.perf_counter()
agent = noterl.load(sys.argv[1])
agent.act(np.zeros(376, np.float32))
seconds = time.perf_counter() - began
peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
allocated = agent.replay.nbytes / 2**20
found = {"seconds": seconds, "peak": (peak - held) / 2**20, "allocated": allocated}
print(json.dumps({**found, "file": os.path.getsize(sys.argv[1]) / 2**20}))
"""
# The process that `--whole` measures.
WHOLE = """
import noterl
noterl.PPO("CartPole-v1", rollout_steps=32, seed=1).fit(steps=256, num_envs=2, verbose=0)
print("{}")
"""
# With one of these, the user's own cache would be measured.
CACHE_VARIABLES = ("JAX_COMPILATION_CACHE_DIR", "TF_XLA_FLAGS")
PACKAGES = ("noterl", "numpy", "gymnasium", "keras", "tensorflow", "tensorflow-cpu", "jax", "torch")


def make_agent(task: str) -> Any:
    """Return the agent of a task."""
    import keras

    import noterl

    if task != "demo":
        return getattr(noterl, task.upper())("CartPole-v1", seed=1)
    agent = noterl.DQN("CartPole-v1", double=True, hidden=(128, 128), seed=1)
    agent.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        policy=noterl.policies.LinearEpsGreedyPolicy(1.0, 0.01, steps=10_000),
        replay=noterl.Replay(100_000),
        batch_size=64,
        update_every=32,
        updates=16,
        target_update=250,
    )
    return agent


def first_update(agent: Any) -> dict[str, float]:
    """Call `fit`; return the seconds until the first update began.

    Only the begin and the end of a call of many updates can be seen. On JAX and TensorFlow it begins with compilation.
    So a second call, which compiles nothing, is made, and its time is subtracted from the time at which the results of
    the first one were read. On PyTorch the first update begins with the call; "later" is how much more seconds the call
    takes than the second one.
    """
    import keras

    import noterl

    ends: list[tuple[float, float]] = []  # of each call: the time, and the seconds of all calls so far

    class Stop(noterl.Callback):
        def on_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
            float(logs["loss"])
            learned = agent.history.time_split["learn"]
            if not ends or learned > ends[-1][1]:
                ends.append((time.perf_counter(), learned))
            if len(ends) == 2:
                agent.stop("second call")

    began = time.perf_counter()
    agent.fit(steps=100_000, callbacks=[Stop()], verbose=0)
    (ended, first), (_, both) = ends
    again = both - first
    if keras.backend.backend() == "torch":
        return {"seconds": ended - began - first, "later": first - again}
    return {"seconds": ended - began - again}


def command(backend: str, task: str, cache: str) -> tuple[list[str], dict[str, str]]:
    """Return the command line of a process, and the environment variables that it adds."""
    words = ["-c", IMPORTS] if task == "imports" else ["-m", "benchmarks.start", "--task", task]
    return [sys.executable, *words], {**variables(backend), "NOTERL_CACHE": cache}


def measure(backend: str, repeats: int) -> dict[str, Any]:
    """Run all processes of a backend, with the caches and tasks in turn, and return the result."""
    runs: list[dict[str, Any]] = []
    for repeat in range(repeats):
        runs.append({"repeat": repeat, "task": "imports", **execute(*command(backend, "imports", "0"))})
        for task in TASKS:
            with tempfile.TemporaryDirectory(prefix="noterl-start-") as folder:
                for cache in CACHES:
                    found = execute(*command(backend, task, folder))
                    runs.append({"repeat": repeat, "task": task, "cache": cache, **found})
                    print(f"{backend}, {task}, {cache}: {found['seconds']:.2f} s", file=sys.stderr, flush=True)
    return {
        "backend": backend,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(PACKAGES),
        "summary": summarize(backend, runs),
        "runs": runs,
    }


def summarize(backend: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians, and whether the bars are met."""

    def median(field: str, **of: str) -> float:
        return statistics.median(run[field] for run in runs if of.items() <= run.items())

    summary: dict[str, Any] = {}
    for task in TASKS:
        found = {cache: median("seconds", task=task, cache=cache) for cache in CACHES}
        if backend == "torch":
            found["later"] = median("later", task=task, cache="warm")
        summary[task] = {**found, "bar": BARS[backend], "met": found["warm"] <= BARS[backend]}
    for name, bar in IMPORT_BARS.items():
        seconds = median(name, task="imports")
        summary[f"import {name}"] = {"seconds": seconds, "bar": bar, "met": seconds <= bar}
    return summary


def measure_load(backend: str, repeats: int, before: Path | None) -> dict[str, Any]:
    """Run all processes that load an agent, those of the two checkouts in turn, and return the result."""
    checkouts = {"after": ROOT, **({} if before is None else {"before": before.resolve()})}
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="noterl-load-") as folder:
        path = str(Path(folder, "agent.noterl"))
        execute(*load_command(backend, WRITE, path, ROOT))
        for repeat in range(repeats):
            for name, root in checkouts.items():
                runs.append({"repeat": repeat, "checkout": name, **execute(*load_command(backend, LOAD, path, root))})
    return {
        "backend": backend,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(PACKAGES),
        "summary": summarize_load(runs),
        "runs": runs,
    }


def load_command(backend: str, script: str, path: str, checkout: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command line of a process that imports a checkout, and the environment variables that it adds."""
    # -P: the working folder, which is this checkout, must not come first.
    return [sys.executable, "-P", "-c", script, path], {**variables(backend), "PYTHONPATH": str(checkout)}


def summarize_load(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of each checkout."""
    return {
        name: {
            field: statistics.median(run[field] for run in runs if run["checkout"] == name)
            for field in ("seconds", "peak", "allocated", "file")
        }
        for name in sorted({run["checkout"] for run in runs}, reverse=True)
    }


def measure_whole(backend: str, repeats: int, before: Path) -> dict[str, Any]:
    """Run whole processes of the two checkouts in turn, and return the result with the ratio of their seconds."""
    checkouts = {"before": before.resolve(), "after": ROOT}
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="noterl-whole-") as folder:
        for repeat in range(repeats + 1):
            for name, root in checkouts.items():
                words, added = load_command(backend, WHOLE, "", root)
                began = time.perf_counter()
                execute(words, {**added, "NOTERL_CACHE": str(Path(folder, name))})
                if repeat:  # the first run fills the cache
                    runs.append({"repeat": repeat, "checkout": name, "seconds": time.perf_counter() - began})
    seconds = {name: [run["seconds"] for run in runs if run["checkout"] == name] for name in checkouts}
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = stats.paired_ratio(seconds["after"], seconds["before"])
    return {
        "backend": backend,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(PACKAGES),
        "summary": {
            **medians,
            **ratio,
            "bar": WHOLE_BARS[backend],
            "met": (ratio["high"] or 2.0) <= WHOLE_BARS[backend],
        },
        "runs": runs,
    }


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0], prog="start.py")
    parser.add_argument("backends", nargs="*", metavar="backend", help=f"any of {', '.join(FRAMEWORKS)} (default: all)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--task", choices=TASKS, help="measure in this process and print JSON")
    parser.add_argument("--load", action="store_true", help="measure how long a saved agent takes to be loaded")
    parser.add_argument("--whole", action="store_true", help="measure whole processes beside those of --before")
    parser.add_argument("--before", help="with --load or --whole: checkout of an older commit, or a git revision")
    arguments = parser.parse_args(words)
    unknown = set(arguments.backends) - set(FRAMEWORKS)
    if unknown:
        parser.error(f"backend must be one of {', '.join(FRAMEWORKS)}, got {', '.join(sorted(unknown))}")
    if arguments.whole and arguments.before is None:
        parser.error("--whole needs --before")
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    arguments.backends = arguments.backends or list(FRAMEWORKS)
    return arguments


def main(words: list[str] | None = None) -> None:
    arguments = parse(words)
    if arguments.task:
        print_json(first_update(make_agent(arguments.task)))
        return
    if found := [name for name in CACHE_VARIABLES if os.environ.get(name)]:
        raise SystemExit(f"unset {' and '.join(found)}: they replace the cache that is measured")
    warn_if_busy(machine())
    if arguments.load or arguments.whole:
        part = "whole" if arguments.whole else "load"
        measure_part, table = (measure_whole, whole_table) if arguments.whole else (measure_load, load_table)
        with checkout(arguments.before) if arguments.before else contextlib.nullcontext() as before:
            results = [measure_part(backend, arguments.repeats, before) for backend in arguments.backends]
        for result in results:
            store(result, arguments.output / part / f"{result['backend']}.json")
        print(table(results))
        return
    results = [measure(backend, arguments.repeats) for backend in arguments.backends]
    for result in results:
        store(result, arguments.output / f"{result['backend']}.json")
    print(start_table(results))


if __name__ == "__main__":
    main()

"""Train a task with several seeds and compare what was learned with its goals and its peers.

    python -m benchmarks.learning cartpole-ppo
    KERAS_BACKEND=jax python -m benchmarks.learning cliffwalk

The tasks are those of benchmarks/tasks.py with goals or peers, the modules of benchmarks/learning_tasks/, and those of
benchmarks/memory_tasks.py. The table is printed; result and figure are stored in benchmarks/results/learning/. The
result of a run with other steps, or of a module with fewer seeds or other options, is stored only with
`--output FOLDER`.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import pkgutil
import time
from pathlib import Path
from typing import Any

from benchmarks import learning_tasks
from benchmarks.evaluation import versions
from benchmarks.memory_tasks import MEMORY_TASKS
from benchmarks.processes import machine, store
from benchmarks.tasks import TASKS as TRAINING_TASKS
from benchmarks.training_task import LEARNING_RESULTS, TrainingTask

MODULES = sorted(module.name for module in pkgutil.iter_modules(learning_tasks.__path__))
TASKS = [*(name for name, task in TRAINING_TASKS.items() if task.learning is not None), *MEMORY_TASKS, *MODULES]
PACKAGES = ("noterl", "keras", "numpy", "gymnasium")
FRAMEWORKS = {"tensorflow": ("tensorflow", "tensorflow-cpu"), "jax": ("jax",), "torch": ("torch",)}


def load(name: str) -> Any:
    """Return the task: a module of `learning_tasks`, a task of `memory_tasks`, or a `TrainingTask`."""
    if name in MEMORY_TASKS:
        return MEMORY_TASKS[name]
    return importlib.import_module(f"benchmarks.learning_tasks.{name}") if name in MODULES else TrainingTask(name)


def parse(words: list[str] | None) -> tuple[Any, argparse.Namespace, dict[str, object], bool]:
    """Return the task, all arguments, the task's own options among them, and whether the run is stored by default."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], prog="learning.py")
    subparsers = parser.add_subparsers(dest="task", required=True)
    for name in TASKS:
        module = load(name)
        first_line = module.__doc__.split("\n")[0]
        own = subparsers.add_parser(name, help=first_line.replace("%", "%%"))
        own.add_argument("--seeds", type=int, default=module.SEEDS)
        own.add_argument("--output", type=Path, help=f"folder of result and figure (default: {LEARNING_RESULTS})")
        if hasattr(module, "add_arguments"):
            module.add_arguments(own)
    arguments = parser.parse_args(words)
    if arguments.seeds < 1:
        parser.error("--seeds must be at least 1")
    defaults = vars(parser.parse_args([arguments.task]))
    module = load(arguments.task)
    options = {name: value for name, value in vars(arguments).items() if name not in ("task", "seeds", "output")}
    # A module does all runs in this process. Other tasks store each run when it ends, and a part of the seeds, too.
    matters = ("steps",) if arguments.task not in MODULES else [name for name in defaults if name != "output"]
    complete = all(defaults[name] == getattr(arguments, name) for name in matters)
    return module, arguments, options, complete


def describe(arguments: argparse.Namespace, seconds: float, start: dict[str, Any]) -> dict[str, Any]:
    """Return what is stored with the result of a module, whose runs all took place in this process."""
    import keras

    return {
        "task": arguments.task,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "backend": keras.backend.backend(),
        "seeds": arguments.seeds,
        "seconds": round(seconds, 1),
        "machine": start,
        "versions": versions((*PACKAGES, *FRAMEWORKS[keras.backend.backend()])),
    }


def run_module(module: Any, arguments: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    """Run a module and return its result, with summary and table, so that `report.py` need not import the module."""
    start, begun = machine(), time.perf_counter()
    found = module.run(arguments.seeds, **options)
    result = {**describe(arguments, time.perf_counter() - begun, start), **found}
    result["summary"] = module.summarize(result)
    return {**result, "table": module.table(result).splitlines()}


def main(words: list[str] | None = None) -> None:
    module, arguments, options, complete = parse(words)
    folder = arguments.output or (LEARNING_RESULTS if complete else None)
    if arguments.task in MODULES:
        result = run_module(module, arguments, options)
    else:
        result = module.run(arguments.seeds, folder=folder, **options)
    print(module.table(result))
    if folder:
        store(result, folder / f"{arguments.task}.json")
        module.draw(result).savefig(folder / f"{arguments.task}.png", dpi=150, bbox_inches="tight")
        print(f"\nstored in {folder}")


if __name__ == "__main__":
    main()

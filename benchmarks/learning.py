"""Show on a task that a part of noterl learns what it promises to.

    python benchmarks/learning.py cartpole-ppo
    KERAS_BACKEND=jax python benchmarks/learning.py cliffwalk

The tasks are those of benchmarks/tasks.py that say what is to be learned, and the modules of
benchmarks/learning_tasks/. The table is printed; result and figure are kept in benchmarks/results/learning/. A run with
other steps, or of a module with fewer seeds or other options, is kept with `--output FOLDER` only.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import pkgutil
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import learning_tasks, readme  # noqa: E402
from benchmarks.compare import machine, store  # noqa: E402
from benchmarks.evaluation import versions  # noqa: E402
from benchmarks.tasks import TASKS as TRAINING  # noqa: E402
from benchmarks.training import RESULTS, Training  # noqa: E402

MODULES = sorted(module.name for module in pkgutil.iter_modules(learning_tasks.__path__))
TASKS = [*(name for name, task in TRAINING.items() if task.learning is not None), *MODULES]
PACKAGES = ("noterl", "keras", "numpy", "gymnasium")
FRAMEWORKS = {"tensorflow": ("tensorflow", "tensorflow-cpu"), "jax": ("jax",), "torch": ("torch",)}


def load(name: str) -> Any:
    """Return the task: a module of `learning_tasks`, or what offers the same."""
    return importlib.import_module(f"benchmarks.learning_tasks.{name}") if name in MODULES else Training(name)


def parse(words: list[str] | None) -> tuple[Any, argparse.Namespace, dict[str, object], bool]:
    """Return the task, the arguments, the task's own options among them, and whether this is a whole run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], prog="learning.py")
    subparsers = parser.add_subparsers(dest="task", required=True)
    for name in TASKS:
        module = load(name)
        own = subparsers.add_parser(name, help=module.__doc__.split("\n")[0])
        own.add_argument("--seeds", type=int, default=module.SEEDS)
        own.add_argument("--output", type=Path, help=f"folder for result and figure; {RESULTS} if not said")
        if hasattr(module, "add_arguments"):
            module.add_arguments(own)
    arguments = parser.parse_args(words)
    if arguments.seeds < 1:
        parser.error("--seeds must be at least 1")
    defaults = vars(parser.parse_args([arguments.task]))
    module = load(arguments.task)
    options = {name: value for name, value in vars(arguments).items() if name not in ("task", "seeds", "output")}
    # The tasks of tasks.py keep every run beside the others as it ends, so that it need not be a whole one.
    matters = ("steps",) if arguments.task not in MODULES else [name for name in defaults if name != "output"]
    whole = all(defaults[name] == getattr(arguments, name) for name in matters)
    return module, arguments, options, whole


def about(arguments: argparse.Namespace, seconds: float, start: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept with the result of a module, all of whose runs were made in this process."""
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


def main(words: list[str] | None = None) -> None:
    module, arguments, options, whole = parse(words)
    begun, start = time.perf_counter(), machine()
    folder = arguments.output or (RESULTS if whole else None)
    if arguments.task in MODULES:
        result = module.run(arguments.seeds, **options)
        result = {**about(arguments, time.perf_counter() - begun, start), **result}
    else:
        kept = readme.update if folder == RESULTS else lambda: None
        result = module.run(arguments.seeds, folder=folder, kept=kept, **options)
    print(module.table(result))
    if folder:
        store(result, folder / f"{arguments.task}.json")
        module.draw(result).savefig(folder / f"{arguments.task}.png", dpi=150, bbox_inches="tight")
        print(f"\nkept in {folder}")
    if folder == RESULTS:
        readme.update()


if __name__ == "__main__":
    main()

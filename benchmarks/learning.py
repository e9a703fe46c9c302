"""Show on a small task that a part of noterl learns what it promises to.

    KERAS_BACKEND=jax python benchmarks/learning.py cliffwalk

The tasks are the modules of benchmarks/learning_tasks/. The table is printed; result and figure are kept in
benchmarks/results/learning/, where a run of fewer seeds, or with other options, goes with `--output FOLDER` only.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import pkgutil
import sys
import time
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import learning_tasks  # noqa: E402
from benchmarks.compare import machine, store  # noqa: E402
from benchmarks.evaluation import versions  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "learning"
TASKS = sorted(module.name for module in pkgutil.iter_modules(learning_tasks.__path__))
PACKAGES = ("noterl", "keras", "numpy", "gymnasium")
FRAMEWORKS = {"tensorflow": ("tensorflow", "tensorflow-cpu"), "jax": ("jax",), "torch": ("torch",)}


def parse(words: list[str] | None) -> tuple[ModuleType, argparse.Namespace, dict[str, object], bool]:
    """Return the task's module, the arguments, the task's own options among them, and whether this is a whole run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], prog="learning.py")
    subparsers = parser.add_subparsers(dest="task", required=True)
    for name in TASKS:
        module = importlib.import_module(f"benchmarks.learning_tasks.{name}")
        own = subparsers.add_parser(name, help=module.__doc__.split("\n")[0])
        own.add_argument("--seeds", type=int, default=module.SEEDS)
        own.add_argument("--output", type=Path, help=f"folder for result and figure; {RESULTS} if not said")
        if hasattr(module, "add_arguments"):
            module.add_arguments(own)
    arguments = parser.parse_args(words)
    if arguments.seeds < 1:
        parser.error("--seeds must be at least 1")
    defaults = vars(parser.parse_args([arguments.task]))
    module = importlib.import_module(f"benchmarks.learning_tasks.{arguments.task}")
    options = {name: value for name, value in vars(arguments).items() if name not in ("task", "seeds", "output")}
    whole = all(defaults[name] == value for name, value in vars(arguments).items() if name != "output")
    return module, arguments, options, whole


def main(words: list[str] | None = None) -> None:
    module, arguments, options, whole = parse(words)
    begun, load = time.perf_counter(), machine()
    result = module.run(arguments.seeds, **options)
    import keras

    result = {
        "task": arguments.task,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "backend": keras.backend.backend(),
        "seeds": arguments.seeds,
        "seconds": round(time.perf_counter() - begun, 1),
        "machine": load,
        "versions": versions((*PACKAGES, *FRAMEWORKS[keras.backend.backend()])),
        **result,
    }
    print(module.table(result))
    folder = arguments.output or (RESULTS if whole else None)
    if folder:
        store(result, folder / f"{arguments.task}.json")
        module.draw(result).savefig(folder / f"{arguments.task}.png", dpi=150, bbox_inches="tight")
        print(f"\nkept in {folder}")


if __name__ == "__main__":
    main()

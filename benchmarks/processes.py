"""Training runs in processes of their own: commands, the description of the machine and result files."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
# Choices of `--backends`, with the environment variables that select them.
BACKENDS = {
    "tensorflow": {"KERAS_BACKEND": "tensorflow"},
    "jax": {"KERAS_BACKEND": "jax"},
    "torch": {"KERAS_BACKEND": "torch"},
    "torch-inductor": {"KERAS_BACKEND": "torch", "JIT_COMPILE": "1"},
    "tensorflow-warm": {"KERAS_BACKEND": "tensorflow"},
    "jax-warm": {"KERAS_BACKEND": "jax"},
}
WARM = "-warm"  # the ending of backends whose runs find their programs in the compilation cache
# Of PyTorch and NumPy, TensorFlow, and XLA on the CPU, in this order.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
PEERS = ("sb3", "sbx")
# If the one-minute load average is above this, other processes distort the measured times.
BUSY = 0.5
SECONDS_PER_RUN = 6 * 3600


def command(
    who: str, task: str, seed: int, steps: int, peer_python: str, points: int | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return the command line of a run, and the environment variables that it adds.

    Args:
        who: "noterl-BACKEND", or a peer.
        task: name in `TASKS`.
        seed: of the run.
        steps: environment steps.
        peer_python: interpreter of the peers' environment.
        points: if given, the number of evaluations during training; the run is then one of `learning.py`.
    """
    arguments = [task, str(seed), str(steps), *([] if points is None else [str(points)])]
    if who.startswith("noterl-"):
        return [sys.executable, "-m", "benchmarks.run", *arguments], variables(who.removeprefix("noterl-"))
    return [peer_python, "-m", "benchmarks.peers.run", who, *arguments], variables()


def variables(backend: str | None = None) -> dict[str, str]:
    """Return the environment variables of a process that imports this checkout; `backend` selects noterl's."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    chosen = {} if backend is None else BACKENDS[backend]
    # Without the compilation cache, which an earlier run would fill.
    common = {"TF_CPP_MIN_LOG_LEVEL": "3", "NOTERL_CACHE": "0"}
    # A user's first import stores the bytecode of noterl, as `pip install` has done for the peers.
    common["PYTHONDONTWRITEBYTECODE"] = ""
    return {"PYTHONPATH": os.pathsep.join(paths), **common, **chosen}


def execute(words: list[str], added: dict[str, str]) -> dict[str, Any]:
    """Run a process with added environment variables and return the JSON of its last line of output.

    Raises:
        RuntimeError: if the process fails or prints nothing; the message ends with its standard error.
    """
    result = subprocess.run(
        words, cwd=ROOT, env={**os.environ, **added}, capture_output=True, text=True, timeout=SECONDS_PER_RUN
    )
    lines = result.stdout.strip().splitlines()
    if result.returncode or not lines:
        raise RuntimeError(f"{' '.join(words)} ended with {result.returncode}:\n{result.stderr[-4000:]}")
    return json.loads(lines[-1])


def run_pair(commands: dict[str, tuple[list[str], str | None]], number: int) -> dict[str, dict[str, Any]]:
    """Run two processes with one thread each, the second one first if `number` is odd; return the results by name.

    Args:
        commands: the words and the backend of each process, by name; None for a peer.
        number: of the pair.
    """
    order = list(commands) if number % 2 == 0 else list(reversed(commands))
    return {name: execute(commands[name][0], {**variables(commands[name][1]), **ONE_THREAD}) for name in order}


def machine() -> dict[str, Any]:
    """Return the processor, the cores, the system, the C++ compiler and the load averages."""
    processor = platform.processor() or platform.machine()
    described = Path("/proc/cpuinfo")
    if described.exists():
        names = [line.split(":", 1)[1].strip() for line in described.read_text().splitlines() if "model name" in line]
        processor = names[0] if names else processor
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "compiler": next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
    }


def warn_if_busy(found: dict[str, Any]) -> None:
    """Print a warning if the load average of `machine()` is above `BUSY`."""
    if found["load"] and found["load"][0] > BUSY:
        print(f"the machine is busy (load {found['load'][0]:.1f}); do not rely on these times", file=sys.stderr)


def store(result: dict[str, Any], path: Path) -> None:
    """Write the result as JSON with one line per run, so that `diff` compares two results run by run."""
    head = json.dumps({name: value for name, value in result.items() if name != "runs"}, indent=1)
    runs = ",\n  ".join(json.dumps(run) for run in result["runs"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head.rstrip().removesuffix("}").rstrip()},\n "runs": [\n  {runs}\n ]\n}}\n')

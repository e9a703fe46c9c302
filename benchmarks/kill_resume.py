"""Kill a training script at random moments, restart it each time, and compare its last state with an uninterrupted run.

    KERAS_BACKEND=jax .venv/bin/python -m benchmarks.kill_resume --kills 20 --num-envs 1 4

Each run is a process of its own that ends by SIGKILL; the last one finishes. The delay of the kill counts in turn from
the first step, often while the updates are compiled, and from the first update. The states must be equal bit for bit.
The result is stored in results/kill_resume/, with an entry for each backend and number of environments.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "kill_resume" / "kill_resume.json"
STEPS = 20_000

# Trains a small DQN on CartPole; prints "step" after the first new step and "update" after the first new update.
SCRIPT = """
import sys, noterl
from noterl.callbacks import BackupAndRestore, Checkpoint, EarlyStopping, LambdaCallback

folder, num_envs, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
agent = noterl.DQN("CartPole-v1", double=True, hidden=(16,), seed=7)
agent.compile(replay=noterl.Replay(2_000), batch_size=16, learning_starts=200, update_every=4, updates=4)
printed = []

def print_first():
    if not printed:
        printed.append(agent.updates)
        print("step", flush=True)
    elif len(printed) == 1 and agent.updates > printed[0]:
        printed.append(agent.updates)
        print("update", flush=True)

agent.fit(
    steps=steps,
    num_envs=num_envs,
    callbacks=[
        EarlyStopping(10, criterion=1e9, patience=10**9, restore_best_weights=True),
        Checkpoint(f"{folder}/files", 20, save_replay=True, background=True),
        LambdaCallback(on_step_end=print_first),
        BackupAndRestore(f"{folder}/backup.noterl", 50, unit="steps"),
    ],
    verbose=0,
)
agent.save(f"{folder}/final.noterl")
"""


def start(folder: Path, num_envs: int) -> subprocess.Popen[str]:
    """Start the training script."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", SCRIPT, str(folder), str(num_envs), str(STEPS)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def run_and_kill(folder: Path, num_envs: int, seconds: float, first: str) -> bool:
    """Kill a run `seconds` after its first "step" or "update"; return False if it ended before."""
    process = start(folder, num_envs)
    assert process.stdout is not None
    while (line := process.stdout.readline()) != f"{first}\n":
        if not line:
            process.wait()
            return False
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.stdout.close()
    return process.wait() == -signal.SIGKILL


def finish(folder: Path, num_envs: int) -> dict[str, Any]:
    """Run the script to its end and return the saved state."""
    from noterl import saving

    process = start(folder, num_envs)
    process.communicate()
    assert process.returncode == 0, "the script failed"
    return saving.read(folder / "final.noterl")["state"]


def measure(num_envs: int, kills: int, longest: float, seed: int | None) -> dict[str, Any]:
    """Return the kills and the differences of the last state from that of an uninterrupted run."""
    from noterl import saving
    from tests.support.states import differences, joined

    generator, moments = np.random.default_rng(seed), []
    with tempfile.TemporaryDirectory() as folder:
        whole = finish(Path(folder) / "whole", num_envs)
        while len(moments) < kills:
            delay, first = float(generator.uniform(0.0, longest)), ("step", "update")[len(moments) % 2]
            if not run_and_kill(Path(folder) / "killed", num_envs, delay, first):
                break
            backup = Path(folder) / "killed" / "backup.noterl"
            steps = saving.read(backup)["state"]["counters"]["steps"] if backup.exists() else 0
            moments.append(f"{delay:.3f} s after the first {first}; resumes at step {steps}")
        resumed = finish(Path(folder) / "killed", num_envs)
        found = differences(joined(resumed), joined(whole))
    return {"steps": STEPS, "kills": len(moments), "moments": moments, "differences": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--num-envs", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--longest", type=float, default=0.5, help="longest delay of a kill in seconds")
    parser.add_argument("--seed", type=int, help="seed of the delays (default: random)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    from noterl import backends

    failed = False
    for num_envs in arguments.num_envs:
        result = measure(num_envs, arguments.kills, arguments.longest, arguments.seed)
        name = f"{backends.name()}, {num_envs} environments"
        print(f"{name}: killed {result['kills']} times, {len(result['differences'])} differences", flush=True)
        failed |= bool(result["differences"]) or result["kills"] < arguments.kills
        result["date"] = datetime.now(UTC).strftime("%Y-%m-%d")
        result["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        stored = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps({**stored, name: result}, indent=1, sort_keys=True) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

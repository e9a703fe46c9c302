"""Type the commands of a first session into a fresh virtual environment, and record what they print.

    python -m benchmarks.transcript

The environment is made in a temporary folder, and noterl is installed there from this repository. The record, with the
seconds of each command, is stored in docs/transcript.txt, which the page on the command line shows.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "transcript.txt"
EXTRAS = "jax,cli,classic-control,tune"
COMMANDS = (
    "noterl train ppo --env CartPole-v1 --steps 100_000 --num-envs 8 --seed 1 --rollout-steps 32 --epochs 20 "
    "--batch-size 256 --gae-lambda 0.8 --gamma 0.98 --optimizer 'Adam(1e-3)' --early-stopping.trial-count 20 "
    "--early-stopping.criterion 475 --checkpoint runs/ppo/files --out runs/ppo",
    "noterl info runs/ppo",
    "noterl evaluate runs/ppo --episodes 100",
    "noterl play runs/ppo --episodes 1 --video ppo.gif",
    "noterl train dqn --env CartPole-v1 --steps 30_000 --seed 1 --out runs/dqn",
    "noterl compare runs/ppo runs/dqn --out curve.png",
    "noterl tune ppo --env CartPole-v1 --trials 10 --steps 20_000 --seeds-per-trial 2 --jobs 2 --num-envs 8 --out tune",
    "ls . runs/ppo tune",
)
# The first and last lines of a long output that are recorded.
FIRST, LAST = 14, 8


def printed(output: str) -> list[str]:
    """Return the lines of an output as a terminal shows them: what follows a carriage return replaces the line."""
    lines = [line.rstrip().rsplit("\r", 1)[-1] for line in output.rstrip().split("\n")]
    lines = [re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line) for line in lines]
    left_out = len(lines) - FIRST - LAST
    return lines if left_out <= 1 else [*lines[:FIRST], f"[{left_out} lines left out]", *lines[-LAST:]]


def record(commands: Sequence[str], folder: Path, path: str) -> list[str]:
    """Run the commands in a folder and return the lines of the record.

    Args:
        commands: what a user types.
        folder: where the commands run.
        path: the variable PATH, under which the commands are found.

    Raises:
        RuntimeError: if a command fails; the message holds its output.
    """
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "KERAS_BACKEND")}
    lines = []
    for command in commands:
        begun = time.perf_counter()
        found = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env={**environment, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        seconds = time.perf_counter() - begun
        output = found.stdout.decode()  # not in text mode, which turns carriage returns into ends of lines
        if found.returncode:
            raise RuntimeError(f"{command!r} ended with {found.returncode}: {output}")
        print(f"{seconds:6.1f} s  {command}", file=sys.stderr, flush=True)
        shown = [line.replace(str(folder), "~") for line in printed(output)]
        lines += [f"$ {command}", *shown, f"({seconds:.0f} s)", ""]
    return lines[:-1]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0], prog="transcript.py")
    parser.add_argument("--output", type=Path, default=RECORD, help="file of the record")
    arguments = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="noterl-transcript-") as name:
        folder = Path(name)
        subprocess.run([sys.executable, "-m", "venv", folder / ".venv"], check=True)
        python = folder / ".venv" / "bin" / "python"
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        begun = time.perf_counter()
        subprocess.run([*install, f"{ROOT}[{EXTRAS}]"], check=True)
        seconds = time.perf_counter() - begun
        path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
        typed = [f"$ pip install '.[{EXTRAS}]'", f"({seconds:.0f} s)", ""]
        arguments.output.write_text("\n".join([*typed, *record(COMMANDS, folder, path)]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

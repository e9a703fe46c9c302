"""Kill training processes at random moments, run them again, and compare the end with an uninterrupted run.

`python -m tests.support.kills --kills 100` does so for each run in turn. The processes are forks of this one, which has
imported the frameworks, so that a start takes a fraction of a second. The run "ranks" has two processes of
`noterl launch`: one of them or the launcher is killed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import noterl
from noterl import backends, saving
from noterl.callbacks import BackupAndRestore, Checkpoint, CSVLogger
from noterl.collect import Workers
from noterl.replay import Prioritized
from noterl.utils.tables import read_columns
from tests.support.space_envs import make
from tests.support.states import ROOT, differences, joined


def eager() -> dict[str, Any]:
    """Return the argument of `compile` that saves the seconds in which torch traces; the other backends compile."""
    return {"jit_compile": False} if backends.name() == "torch" else {}


def dqn(kind: str = "Box") -> noterl.DQN:
    agent = noterl.DQN(partial(make, kind), hidden=(8,), seed=3)
    memory = noterl.Replay(200, n_step=2, **({"frame_stack": 2} if kind == "image" else {"sampler": Prioritized()}))
    agent.compile(replay=memory, batch_size=8, learning_starts=20, update_every=4, updates=2, **eager())
    return agent


def ppo(kind: str = "Box") -> noterl.PPO:
    agent = noterl.PPO(partial(make, kind), hidden=(8,), rollout_steps=8, epochs=2, normalize_reward=True, seed=3)
    agent.compile(batch_size=8, **eager())
    return agent


def recurrent_dqn() -> noterl.DQN:
    options: dict[str, Any] = {"recurrent": "gru", "recurrent_units": 6, "sequence_length": 8, "burn_in": 2}
    agent = noterl.DQN(partial(make, "masked Dict"), hidden=(8,), seed=3, **options)
    agent.compile(replay=200, batch_size=4, learning_starts=20, update_every=4, **eager())
    return agent


def recurrent_ppo() -> noterl.PPO:
    options: dict[str, Any] = {"recurrent": "lstm", "recurrent_units": 6, "normalize_observation": True}
    agent = noterl.PPO(partial(make, "Box"), hidden=(8,), rollout_steps=8, epochs=2, seed=3, **options)
    agent.compile(batch_size=8, **eager())
    return agent


def on_device() -> noterl.PPO:
    return noterl.PPO(noterl.envs.functional_cartpole(), hidden=(8,), rollout_steps=8, epochs=1, seed=3)


def stored() -> noterl.Dataset:
    """Return random episodes of the environment "Box"."""
    generator = np.random.default_rng(0)
    spaces = make("Box").observation_space, make("Box").action_space
    for number, space in enumerate(spaces):
        space.seed(number)
    lengths = generator.integers(5, 20, 12)
    seen = [np.array([spaces[0].sample() for _ in range(length + 1)]) for length in lengths]
    taken = [np.array([spaces[1].sample() for _ in range(length)]) for length in lengths]
    rewards = [generator.normal(size=length) for length in lengths]
    flags = (lengths % 2 == 0).tolist()
    return noterl.Dataset(seen, taken, rewards, flags, observation_space=spaces[0], action_space=spaces[1])


STEPS = 160
RUNS: dict[str, tuple[Callable[[], noterl.Agent], dict[str, Any]]] = {
    "Box": (dqn, {"num_envs": 2}),
    "Dict": (partial(dqn, "Dict"), {"num_envs": 2}),
    "image": (partial(dqn, "image"), {}),
    "masks": (partial(dqn, "masked Dict"), {"num_envs": 2}),
    "rollouts": (ppo, {"num_envs": 3}),
    "workers": (dqn, {"num_envs": 2, "workers": 2}),
    "workers with a Dict": (partial(dqn, "Dict"), {"num_envs": 2, "workers": Workers(2, collect=4)}),
    "rollouts with a memory": (recurrent_ppo, {"num_envs": 3}),
    "replay with a memory": (recurrent_dqn, {"num_envs": 2}),
    "workers with a memory": (recurrent_ppo, {"num_envs": 3, "workers": 2}),
    "overlap": (ppo, {"num_envs": 2, "workers": Workers(2, overlap=True)}),
    "ranks": (dqn, {"num_envs": 2, "strategy": "ddp"}),
    "device": (on_device, {"num_envs": 4}),
    "dataset": (dqn, {"dataset": stored(), "updates_per_epoch": 4}),
}
# Workers that collect while the learner learns act with weights that depend on the speed of processes. Of several
# processes that train together, only the first continues with its memory.
INEXACT = ("overlap", "ranks")


class Slow(noterl.Callback):
    """Makes each step last two milliseconds, and writes a file at the first step."""

    def __init__(self, begun: Path) -> None:
        self._begun = begun

    def on_step_end(self) -> None:
        self._begun.touch()
        time.sleep(0.002)


def train(run: str, folder: Path, begun: Path | None = None) -> None:
    """Train to the end with a backup of every 13th step or update, and save the agent."""
    build, arguments = RUNS[run]
    unit = unit_of(run)
    agent = build()
    callbacks: list[Any] = [
        CSVLogger(folder / "log.csv", 3),
        Checkpoint(folder / "files", 5, save_replay=True, max_save_files=2),
        BackupAndRestore(folder / "backup.noterl", 13, unit=unit),
    ]
    callbacks += [] if begun is None else [Slow(begun)]
    agent.fit(callbacks=callbacks, verbose=0, **{**arguments, unit: STEPS})
    if is_chief():
        agent.save(folder / "final.noterl")
    agent.close()


def unit_of(run: str) -> str:
    return "updates" if run == "dataset" else "steps"


def is_chief() -> bool:
    return os.environ.get("RANK", "0") == "0"


def launch(folder: Path, begun: Path | None = None) -> subprocess.Popen[bytes]:
    """Start the run "ranks"."""
    command = [sys.executable, "-m", "noterl", "launch", "--strategy", "ddp", __file__]
    command += ["--train", str(folder), *([] if begun is None else [str(begun)])]
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env={**os.environ, **variables}, cwd=ROOT, stdout=subprocess.DEVNULL)


def kill_rank(folder: Path, begun: Path, seconds: float) -> bool:
    """Kill one of the processes of a launched run, and wait for the others; return False if the run has ended."""
    launcher = launch(folder, begun)
    while not begun.exists():
        if launcher.poll() is not None:
            return False
        time.sleep(0.01)
    time.sleep(seconds)
    processes = [psutil.Process(launcher.pid), *psutil.Process(launcher.pid).children(recursive=True)]
    processes[int(1e6 * seconds) % len(processes)].kill()
    failed = launcher.wait() != 0
    _, left = psutil.wait_procs(processes[1:], 60)
    assert not left, f"processes are left: {left}"
    return failed


def start(run: str, folder: Path, begun: Path | None = None) -> int:
    """Train in a fork of this process, and return its number."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            train(run, folder, begun)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    return pid


def kill(run: str, folder: Path, seconds: float) -> bool:
    """Kill a training this long after its first step; return False if it has ended before."""
    begun = folder / "begun"
    begun.unlink(missing_ok=True)
    if run == "ranks":
        return kill_rank(folder, begun, seconds)
    pid = start(run, folder, begun)
    while not begun.exists():
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        time.sleep(0.002)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def finish(run: str, folder: Path) -> None:
    """Train to the end in another process."""
    folder.mkdir(exist_ok=True)
    status = launch(folder).wait() if run == "ranks" else os.waitpid(start(run, folder), 0)[1]
    assert status == 0, f"{run} ended with the status {status}"


def final_state(folder: Path) -> dict[str, Any]:
    """Return the state of the trained agent; the rows of logs and the times of a backup are not compared."""
    state = saving.read(folder / "final.noterl")["state"]
    compared = {key: value for key, value in state["callbacks"].items() if key.startswith("Checkpoint")}
    return joined({**state, "callbacks": {"callbacks.Checkpoint": compared}})


def kill_and_compare(run: str, folder: Path, kills: int, rng: random.Random) -> tuple[int, list[str]]:
    """Kill a run often, let it end, and return the number of kills and the differences from an uninterrupted run."""
    whole, killed = folder / "whole", folder / "killed"
    finish(run, whole)
    killed.mkdir()
    count = 0
    for number in range(kills):
        # A backup follows after 13 steps, so most kills come before the end of the run.
        count += kill(run, killed, rng.uniform(0.0, STEPS / 600 / max(1, kills - number)))
        if (killed / "final.noterl").exists():
            break
    finish(run, killed)
    found = [] if run in INEXACT else differences(final_state(whole), final_state(killed))
    if run not in INEXACT:
        names = [sorted(file.name for file in (each / "files").iterdir()) for each in (whole, killed)]
        found += [] if names[0] == names[1] else [f"files: {names}"]
    if saving.read(killed / "final.noterl")["state"]["counters"][unit_of(run)] != STEPS:
        found.append("the budget was not spent")
    numbers = read_columns(killed / "log.csv")["episode"]
    found += [] if len(set(numbers)) == len(numbers) else [f"episodes: {numbers}"]
    # A run that is not exact may never write a file again that it was writing when it was killed; such a temporary file
    # goes after a day.
    return count, found + [file.name for file in killed.rglob("*.part") if run not in INEXACT]


def main() -> None:
    """Kill runs until there were enough kills, and print how many of them differ."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    # The environments on the device need JAX, and the processes that train together torch.
    missing = {"jax": ("ranks",), "torch": ("device",), "tensorflow": ("device", "ranks")}[backends.name()]
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=[name for name in RUNS if name not in missing])
    parser.add_argument("--train", nargs="+", type=Path, help=argparse.SUPPRESS)  # a process of the run "ranks"
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.train:
        train("ranks", *options.train)
        return
    rng, total, number, different = random.Random(options.seed), 0, 0, 0
    while total < options.kills:
        run = options.runs[number % len(options.runs)]
        with tempfile.TemporaryDirectory() as folder:
            count, found = kill_and_compare(run, Path(folder), 5, rng)
        total, number, different = total + count, number + 1, different + bool(found)
        print(f"{run}: {count} kills, {len(found)} differences {found[:3]}", flush=True)
    print(f"{total} kills in {number} runs, {different} runs differ")


if __name__ == "__main__":
    main()

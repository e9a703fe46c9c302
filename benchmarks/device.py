"""Measure training on the device: a solved CartPole, steps per second with 1,024 lanes or a replay memory, populations.

    KERAS_BACKEND=jax python -m benchmarks.device

- `solve`: seconds of `fit` until the mean return of 40 episodes reaches 475, for 10 seeds, in processes of their own.
  Each then plays 100 episodes. The compilation cache is warm: a first process fills it.
  With `--before`, only this part runs, the processes of an older commit in turn, and results/device/before.json holds
  the ratio of the seconds: python -m benchmarks.device --before a249a9f2
- `lanes`: steps per second of PPO with 1,024 lanes and EarlyStopping, History and CSVLogger, after the first call.
  With `--bare`, `prototypes/device_ppo_fast.py` runs in turn, and the ratio is shown.
- `dqn`, `sac`: steps per second of DQN on CartPole and of SAC on Pendulum, on the device and with a vector environment,
  after the first calls. Both use their defaults and four environments.
- `population`: seconds of a population against its single runs one after another, with and without the start.

A bar is met if every seed meets it, or if the lower end of the 90 % interval over pairs meets it. The result is stored
in benchmarks/results/device/device.json if all parts run with at least five pairs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import stats
from benchmarks.evaluation import versions
from benchmarks.old_against_new import checkout
from benchmarks.processes import RESULTS, ROOT, machine, store, warn_if_busy

RESULT = RESULTS / "device" / "device.json"
BEFORE_BAR = 0.8  # the seconds of `solve`, divided by those of commit a249a9f2
SOLVE_BAR, LANES_BAR, BARE_BAR, POPULATION_BAR = 2.0, 300_000.0, 0.8, 0.5
STEPS, LANES = 61_440, 16  # of `solve`: 120 rollouts at most
REPLAY_LANES = 4  # of `dqn` and `sac`
PARTS = ("solve", "lanes", "dqn", "sac", "population")


def solving_agent(seed: int) -> Any:
    """Return PPO with 64x64 units, rollouts of 32 steps and 10 epochs of minibatches of 128."""
    import keras

    import noterl
    from noterl.schedules import Linear

    agent = noterl.PPO(
        noterl.envs.functional_cartpole(), rollout_steps=32, epochs=10, gamma=0.98, gae_lambda=0.8, seed=seed
    )
    optimizer = keras.optimizers.Adam(Linear(1e-3, 3e-5, STEPS), epsilon=1e-5, global_clipnorm=0.5)
    agent.compile(optimizer=optimizer, batch_size=128)
    return agent


def solve(seed: int) -> dict[str, Any]:
    """Train until 40 episodes have a mean return of 475, or for `STEPS`; return the seconds and the evaluation."""
    from noterl.callbacks import EarlyStopping

    agent = solving_agent(seed)
    begun = time.perf_counter()
    stopping = EarlyStopping(trial_count=40, criterion=475)
    history = agent.fit(steps=STEPS, num_envs=LANES, callbacks=[stopping], verbose=0)
    seconds = time.perf_counter() - begun
    result = agent.evaluate(episodes=100, num_envs=20)
    return {
        "seed": seed,
        "seconds": seconds,
        "steps": agent.steps,
        "episodes": len(history),
        "evaluation": result["reward_mean"],
    }


def lanes_rate(steps: int, seed: int = 1) -> float:
    """Return the steps per second with 1,024 lanes of 32 steps, networks of 32x32 and one epoch of 8 minibatches."""
    import keras

    import noterl
    from noterl.callbacks import CSVLogger, EarlyStopping

    agent = noterl.PPO(
        noterl.envs.functional_cartpole(),
        rollout_steps=32,
        epochs=1,
        gamma=0.98,
        gae_lambda=0.8,
        hidden=(32, 32),
        seed=seed,
    )
    agent.compile(optimizer=keras.optimizers.Adam(3e-3, epsilon=1e-5, global_clipnorm=0.5), batch_size=4_096)
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [EarlyStopping(trial_count=40, criterion=1e9), CSVLogger(Path(folder) / "log.csv")]
        agent.fit(steps=1_024 * 32, num_envs=1_024, callbacks=callbacks, verbose=0)
        begun = time.perf_counter()
        agent.fit(steps=steps, callbacks=callbacks, verbose=0)
        return steps / (time.perf_counter() - begun)


def bare_rate(prototype: Path) -> float:
    """Return the steps per second of the bare prototype with the same sizes on one device."""
    source = prototype.read_text().replace("D=2;", "D=1;")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bare.py"
        script.write_text(source)
        words = [sys.executable, str(script), *["1024", "32", "1", "8", "32", "100", "3e-3"]]
        output = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return float(re.search(r"= ([\d,]+) steps/s wall", output)[1].replace(",", ""))  # type: ignore[index]


def functional_pendulum() -> Any:
    """Return the dynamics of gymnasium's Pendulum-v1, in float32; the torque lies in [-2, 2]."""
    import jax
    from gymnasium.spaces import Box

    import noterl

    jnp, high = jax.numpy, np.array([1.0, 1.0, 8.0], np.float32)

    def observed(state: Any) -> Any:
        return jnp.stack([jnp.cos(state[0]), jnp.sin(state[0]), state[1]])

    def reset(key: Any) -> tuple[Any, Any]:
        state = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0) * jnp.array([np.pi, 1.0])
        return observed(state), state

    def step(key: Any, state: Any, action: Any) -> tuple[Any, ...]:
        angle, speed = state
        torque = jnp.clip(action[0], -2.0, 2.0)
        from_top = (angle + np.pi) % (2 * np.pi) - np.pi
        cost = from_top**2 + 0.1 * speed**2 + 0.001 * torque**2
        speed = jnp.clip(speed + 0.05 * (15.0 * jnp.sin(angle) + 3.0 * torque), -8.0, 8.0)
        state = jnp.stack([angle + 0.05 * speed, speed])
        return observed(state), state, -cost, False, False

    spaces = Box(-high, high), Box(-2.0, 2.0, (1,))
    return noterl.envs.functional(reset, step, *spaces, max_episode_steps=200, name="functional_pendulum")


def replay_rates(name: str, steps: int) -> dict[str, float]:
    """Return the steps per second of an agent with a replay memory, on the device and with a vector environment."""
    import noterl

    rates = {}
    for side in ("device", "vector"):
        kind, env = (
            (noterl.DQN, noterl.envs.functional_cartpole) if name == "dqn" else (noterl.SAC, functional_pendulum)
        )
        agent = kind(env(), seed=1)
        hidden = mock.patch("noterl.training.fit.runs_on_device", lambda *arguments: False)
        with hidden if side == "vector" else nullcontext():
            agent.fit(steps=agent.defaults().learning_starts + 400, num_envs=REPLAY_LANES, verbose=0)
            begun = time.perf_counter()
            agent.fit(steps=steps, verbose=0)
            rates[side] = steps / (time.perf_counter() - begun)
    return rates


def population_seconds(members: int, steps: int) -> dict[str, list[float]]:
    """Return the seconds of a population and of its members one after another.

    "whole" holds those of constructing the agents and the first `steps`, with tracing and loading the program.
    "training" holds those of the next `steps`.
    """
    import noterl

    begun = time.perf_counter()
    population = noterl.Population(solving_agent(1), seeds=members)
    population.fit(steps=steps, num_envs=LANES, verbose=0)
    middle = time.perf_counter()
    population.fit(steps=steps, verbose=0)
    together = [middle - begun, time.perf_counter() - middle]
    apart = [0.0, 0.0]
    for seed in population.seeds:
        begun = time.perf_counter()
        single = solving_agent(seed)
        single.fit(steps=steps, num_envs=LANES, verbose=0)
        middle = time.perf_counter()
        single.fit(steps=steps, verbose=0)
        apart = [apart[0] + middle - begun, apart[1] + time.perf_counter() - middle]
    return {"whole": [together[0], apart[0]], "training": [together[1], apart[1]]}


def run_separately(name: str, *words: str, cache: str, folder: Path = ROOT) -> Any:
    """Return the result of a part in a process of its own, with JAX's compilation cache in a folder."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-m", "benchmarks.device", "--one", name, *words]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=folder).stdout
    return json.loads(output.splitlines()[-1])


def measure_before(version: str, seeds: int, cache: str) -> dict[str, Any]:
    """Run `solve` of an older version and of this one in turn; return the runs and the ratio of their seconds."""
    runs: dict[str, list[dict[str, Any]]] = {"before": [], "after": []}
    with checkout(version) as folder:
        folders = {"before": folder, "after": ROOT}
        for name in runs:
            run_separately("solve", "0", cache=f"{cache}/{name}", folder=folders[name])  # fills the cache
        for seed in range(seeds):
            for name in sorted(runs, reverse=bool(seed % 2)):
                run = run_separately("solve", str(seed), cache=f"{cache}/{name}", folder=folders[name])
                runs[name].append(run)
    after, before = ([run["seconds"] for run in runs[name]] for name in ("after", "before"))
    ratio = stats.paired_ratio(after, before)
    held = sum(run["evaluation"] >= 475 for run in runs["after"])
    print(f"solve: {ratio} of the seconds of {version}; {held} of {seeds} seeds hold 475", flush=True)
    return {"version": version, "pairs": seeds, **ratio, "bar": BEFORE_BAR, "held": held, "seeds": seeds, "runs": runs}


def measure_solve(seeds: int, cache: str) -> dict[str, Any]:
    cold = run_separately("solve", "0", cache=cache)
    runs = [run_separately("solve", str(seed), cache=cache) for seed in range(seeds)]
    met = sum(each["seconds"] <= SOLVE_BAR and each["evaluation"] >= 475 for each in runs)
    slowest = max(each["seconds"] for each in runs)
    print(f"solve: {met} of {seeds} seeds, the slowest in {slowest:.2f} s (cold {cold['seconds']:.2f} s)", flush=True)
    return {"cold": cold, "runs": runs, "bar": SOLVE_BAR, "met": met, "seeds": seeds}


def measure_lanes(pairs: int, steps: int, prototype: Path | None, cache: str) -> dict[str, Any]:
    ours, theirs = [], []
    for _ in range(pairs):
        ours.append(run_separately("lanes", str(steps), cache=cache))
        if prototype is not None:
            theirs.append(bare_rate(prototype))
    result: dict[str, Any] = {"rates": ours, "median": float(np.median(ours)), "bar": LANES_BAR}
    if theirs:
        result |= {"bare": theirs, **stats.paired_ratio(ours, theirs), "bare_bar": BARE_BAR}
    print(f"lanes: {result['median']:,.0f} steps/s, ratio to the bare program {result.get('ratio')}", flush=True)
    return result


def measure_replay(name: str, pairs: int, steps: int, cache: str) -> dict[str, Any]:
    runs = [run_separately(name, str(steps), cache=cache) for _ in range(pairs)]
    device, vector = ([each[side] for each in runs] for side in ("device", "vector"))
    result = {"device": device, "vector": vector, "steps": steps, **stats.paired_ratio(device, vector)}
    print(f"{name}: {np.median(device):,.0f} steps/s, with a vector environment {np.median(vector):,.0f}", flush=True)
    return result


def measure_population(pairs: int, members: int, steps: int, cache: str) -> dict[str, Any]:
    run_separately("population", "2", str(steps), cache=cache)  # fills the cache
    runs = [run_separately("population", str(members), str(steps), cache=cache) for _ in range(pairs)]
    result: dict[str, Any] = {"members": members, "steps": steps, "bar": POPULATION_BAR}
    for part in ("whole", "training"):
        together, apart = ([each[part][side] for each in runs] for side in (0, 1))
        result[part] = {"together": together, "apart": apart, **stats.paired_ratio(together, apart)}
        print(f"population of {members}, {part}: {np.median(together):.1f} s, single runs {np.median(apart):.1f} s")
    return result


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], prog="device.py")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3_276_800, help="steps of `lanes`")
    parser.add_argument("--replay-steps", type=int, nargs=2, default=(40_000, 2_000), help="of `dqn` and of `sac`")
    parser.add_argument("--members", type=int, default=64)
    parser.add_argument("--member-steps", type=int, default=20_480, help="steps of each member of `population`")
    parser.add_argument("--before", help="a checkout of an older commit, or a git revision, for `solve` alone")
    parser.add_argument("--bare", type=Path, help="path of the bare program device_ppo_fast.py")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.one:
        name, *numbers = arguments.one
        one = {
            "solve": solve,
            "lanes": lanes_rate,
            "dqn": partial(replay_rates, "dqn"),
            "sac": partial(replay_rates, "sac"),
            "population": population_seconds,
        }[name]
        print(json.dumps(one(*map(int, numbers))))  # type: ignore[operator]
        return
    warn_if_busy(start := machine())
    result: dict[str, Any] = {
        "task": "device",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "pairs": arguments.pairs,
        "machine": start,
        "versions": versions(("noterl", "numpy", "jax", "keras")),
    }
    with tempfile.TemporaryDirectory() as cache:
        if arguments.before is not None:
            store(result | measure_before(arguments.before, arguments.seeds, cache), RESULT.with_name("before.json"))
            return
        if "solve" in arguments.parts:
            result["solve"] = measure_solve(arguments.seeds, cache)
            result["runs"] = result["solve"].pop("runs")
        if "lanes" in arguments.parts:
            result["lanes"] = measure_lanes(arguments.pairs, arguments.steps, arguments.bare, cache)
        for name, steps in zip(("dqn", "sac"), arguments.replay_steps, strict=True):
            if name in arguments.parts:
                result[name] = measure_replay(name, arguments.pairs, steps, cache)
        if "population" in arguments.parts:
            sizes = arguments.members, arguments.member_steps
            result["population"] = measure_population(arguments.pairs, *sizes, cache)
    if arguments.pairs >= stats.MIN_PAIRS and arguments.parts == list(PARTS):
        store(result, RESULT)
        print(f"stored in {RESULT}")


if __name__ == "__main__":
    main()

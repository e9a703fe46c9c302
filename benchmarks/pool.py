"""Measure worker processes: collecting with 1 and 2 workers, other projects, slow environments, the start, the memory.

    KERAS_BACKEND=jax python -m benchmarks.pool
    KERAS_BACKEND=jax python -m benchmarks.pool --parts scaling async --tasks CartPole-v1

The parts are: "scaling" (2 workers against 1), "async" (gymnasium's AsyncVectorEnv), "sb3" (SubprocVecEnv, if
Stable-Baselines3 is installed), "sleep", "ppo" (2 workers against none), "start", "ring" and "weights".

Collecting is measured without a learner, with the actor of a small agent: `PoolLanes` with phases of 64 rounds, and
AsyncVectorEnv with the same actor, the same environments and as many processes. Runs alternate, pair by pair. A ratio
is the median over pairs with its 90 % interval; a bar is met if the lower end meets it. The result is printed. It is
stored in benchmarks/results/speed/pool.json if there are at least five pairs, with the load of the machine.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

import noterl
from benchmarks import shared_memory, stats
from benchmarks.evaluation import versions
from benchmarks.processes import RESULTS, machine, store, warn_if_busy
from noterl import envs
from noterl.collect import Lanes, PoolLanes, Workers

RESULT = RESULTS / "speed" / "pool.json"
ROUNDS = 64
LANES = 4
# Bars of the ratio to AsyncVectorEnv, with two processes.
TASKS = {"CartPole-v1": 6.0, "BipedalWalker-v3": 2.0, "HalfCheetah-v5": 3.5}
SCALING_BAR = 1.7
PARTS = ("scaling", "async", "sb3", "sleep", "ppo", "start", "ring", "weights")


class Sleeping(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sleeps 5 ms in each step."""

    def step(self, action: Any) -> Any:
        time.sleep(0.005)
        return self.env.step(action)


def make_sleeping() -> gymnasium.Env[Any, Any]:
    return Sleeping(gymnasium.make("CartPole-v1"))


def agent_for(env: Any) -> Any:
    """Return an agent that only acts, with networks of two layers of 64 units."""
    discrete = isinstance(envs.resolve(env).action_space, gymnasium.spaces.Discrete)
    kind = noterl.DQN if discrete else noterl.TD3
    agent = kind(env, hidden=(64, 64), seed=1)
    agent.compile(replay=1_000, batch_size=8, learning_starts=0)
    agent.build()
    return agent


def lanes_rate(agent: Any, num_envs: int, workers: Workers | None, seconds: float) -> float:
    """Return the transitions per second of lanes, which the learner would store."""
    source, actor = envs.resolve(agent._config["env"]), agent._actor
    lanes: Any = Lanes(source, num_envs, agent.generators)
    if workers is not None:
        lanes = PoolLanes(source, num_envs, agent.generators, workers)
        lanes.start(actor)
    steps, begun, first = 0, time.perf_counter(), 0
    try:
        while time.perf_counter() < begun + seconds:
            for lane in lanes.idle():
                lanes.reset(lane, 0, steps)
            if lanes.acts:
                lanes.collect_round(steps, None)
            else:
                lanes.begin_round(actor.head.executed(actor.choose_actions(lanes.observations(), steps)))
            while lanes.actions is not None:
                for transition in lanes.tick(steps + 1):
                    steps += 1
                    if transition.terminated or transition.truncated:
                        lanes.ledger.finish(transition.lane)
            if not first and time.perf_counter() > begun + 0.2 * seconds:  # without the first phases
                first, begun = steps, time.perf_counter()
                seconds *= 0.8
        return (steps - first) / (time.perf_counter() - begun)
    finally:
        if workers is not None:
            lanes.close()


def async_rate(agent: Any, num_envs: int, seconds: float) -> float:
    """Return the transitions per second of gymnasium's AsyncVectorEnv, with the same actor."""
    name, actor = agent._config["env"], agent._actor
    make = functools.partial(gymnasium.make, name, disable_env_checker=True)
    vector = AsyncVectorEnv([make] * num_envs, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)
    try:
        observations, _ = vector.reset(seed=1)
        steps, begun = 0, time.perf_counter()
        while time.perf_counter() < begun + seconds:
            actions = actor.head.executed(actor.choose_actions(observations, steps))
            observations = vector.step(actions)[0]
            steps += num_envs
        return steps / (time.perf_counter() - begun)
    finally:
        vector.close()


def sb3_rate(agent: Any, num_envs: int, seconds: float) -> float:
    """Return the transitions per second of SB3's SubprocVecEnv, with the same actor."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    name, actor = agent._config["env"], agent._actor
    make = functools.partial(gymnasium.make, name, disable_env_checker=True)
    vector = SubprocVecEnv([make] * num_envs, start_method="spawn")
    try:
        observations, steps, begun = vector.reset(), 0, time.perf_counter()
        while time.perf_counter() < begun + seconds:
            actions = actor.head.executed(actor.choose_actions(observations, steps))
            observations = vector.step(actions)[0]
            steps += num_envs
        return steps / (time.perf_counter() - begun)
    finally:
        vector.close()


def ppo(pairs: int, steps: int) -> dict[str, Any]:
    """Compare PPO on BipedalWalker-v3 with 2 workers and without; the bound follows from the share of collecting."""
    rates: dict[int, list[float]] = {0: [], 2: []}
    shares = []
    for _ in range(pairs):
        for workers, found in rates.items():
            agent = noterl.PPO("BipedalWalker-v3", seed=1)
            agent.fit(steps=4096, num_envs=4, workers=workers, verbose=0)  # compiles the updates
            begun = time.perf_counter()
            split = agent.fit(steps=steps, num_envs=4, workers=workers, verbose=0).time_split
            found.append(steps / (time.perf_counter() - begun))
            if not workers:
                shares.append((split["environment"] + split["act"]) / sum(split.values()))
    share = float(np.median(shares))
    bound = 1 / (1 - share + share / SCALING_BAR)
    ratio = stats.paired_ratio(rates[2], rates[0])
    print(f"PPO: ratio {ratio['ratio']:.2f}, share of collecting {share:.2f}, bar {0.9 * bound:.2f}", flush=True)
    return {"name": "PPO: 2 workers / none", "share": share, "bound": bound, "bar": 0.9 * bound, **ratio}


def compare(name: str, ours: Callable[[], float], theirs: Callable[[], float], pairs: int, bar: float | None) -> Any:
    """Return the rates of both sides, in alternating runs, and their ratio."""
    rates = [(ours(), theirs()) for _ in range(pairs)]
    columns = [[pair[side] for pair in rates] for side in (0, 1)]
    ratio = stats.paired_ratio(*columns)
    medians = [float(np.median(column)) for column in columns]
    row = {"name": name, "ours": medians[0], "theirs": medians[1], **ratio, "bar": bar}
    print(
        f"{name}: {medians[0]:,.0f} and {medians[1]:,.0f} steps/s, ratio {ratio['ratio']:.2f} (bar {bar})", flush=True
    )
    return row


def starting(agent: Any, repeats: int) -> dict[str, Any]:
    """Return the seconds until two workers are ready, and the MiB that only one of them uses."""
    seconds, memory = [], []
    for _ in range(repeats):
        lanes = PoolLanes(envs.resolve(agent._config["env"]), 2, agent.generators, Workers(2))
        begun = time.perf_counter()
        lanes.start(agent._actor)
        seconds.append(time.perf_counter() - begun)
        memory += [psutil.Process(each.pid).memory_full_info().uss / 2**20 for each in lanes._crew.processes]
        lanes.close()
    print(f"two workers are ready after {np.median(seconds):.2f} s, {np.median(memory):.0f} MiB each", flush=True)
    return {"seconds": float(np.median(seconds)), "mebibytes": float(np.median(memory))}


def of_task(name: str, parts: set[str], pairs: int, seconds: float) -> list[Any]:
    """Return the comparisons of collecting in one environment."""
    rows: list[Any] = []
    if not parts & {"scaling", "async", "sb3"}:
        return rows
    agent = agent_for(name)
    two = functools.partial(lanes_rate, agent, LANES, Workers(2, collect=ROUNDS), seconds)
    one = functools.partial(lanes_rate, agent, LANES, Workers(1, collect=ROUNDS), seconds)
    if "scaling" in parts:
        rows.append(compare(f"{name}: 2 workers / 1 worker", two, one, pairs, SCALING_BAR))
    if "async" in parts:
        peer = functools.partial(async_rate, agent, 2, seconds)
        rows.append(compare(f"{name}: 2 workers / AsyncVectorEnv", two, peer, pairs, TASKS[name]))
    if "sb3" in parts and importlib.util.find_spec("stable_baselines3") is None:
        print("Stable-Baselines3 is not installed, so SubprocVecEnv is not measured", flush=True)
    elif "sb3" in parts:
        peer = functools.partial(sb3_rate, agent, 2, seconds)
        rows.append(compare(f"{name}: 2 workers / SubprocVecEnv", two, peer, pairs, None))
    return rows


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], prog="pool.py")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rows", type=int, default=10_000_000, help="through the ring")
    parser.add_argument("--publications", type=int, default=1_000_000, help="of weights")
    parser.add_argument("--ppo-steps", type=int, default=40_960)
    arguments = parser.parse_args(words)
    pairs, seconds = arguments.pairs, arguments.seconds
    start = machine()
    warn_if_busy(start)
    parts = set(arguments.parts)
    rows = [row for name in arguments.tasks for row in of_task(name, parts, pairs, seconds)]
    if "sleep" in parts:
        slow = agent_for(make_sleeping)
        eight = functools.partial(lanes_rate, slow, 8, Workers(8), seconds)
        none = functools.partial(lanes_rate, slow, 8, None, seconds)
        rows.append(compare("a step of 5 ms: 8 workers / none", eight, none, pairs, 7.0))
    if "ppo" in parts:
        rows.append(ppo(pairs, arguments.ppo_steps))
    memory = []
    if "ring" in parts:
        memory.append(shared_memory.ring_rate(arguments.rows))
    if "weights" in parts:
        memory.append(shared_memory.torn_weights(arguments.publications))
    for row in memory:
        print(row, flush=True)
    result = {
        "task": "pool",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "pairs": pairs,
        "machine": start,
        "versions": versions(("noterl", "numpy", "gymnasium")),
        "start": starting(agent_for("CartPole-v1"), pairs) if "start" in parts else None,
        "runs": rows,
        "memory": memory,
    }
    if pairs >= stats.MIN_PAIRS and arguments.tasks == list(TASKS) and parts == set(PARTS):
        store(result, RESULT)
        print(f"stored in {RESULT}")


if __name__ == "__main__":
    main()

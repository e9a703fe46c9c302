"""Make the data sets of the offline learning tasks with noterl's own agents, and store their hashes.

    KERAS_BACKEND=jax python -m benchmarks.offline_data [TASK ...] [--folder FOLDER]

SAC makes the sets of Pendulum and Hopper, with sampled actions. "medium" is the first policy whose mean return over
ten deterministic episodes reaches a bar, "expert" is the policy at the end, and "medium-replay" holds all steps of the
training. DQN makes the set of CartPole, with epsilon 0.2. benchmarks/results/offline_data/offline_data.json has the
hash and the returns of each set; the sets are not part of the repository. Processors round differently, so each kind
of processor makes sets of its own, whose mean returns are near each other.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np

import noterl  # before Keras, so that it chooses the backend
from benchmarks.evaluation import evaluate, versions
from benchmarks.processes import RESULTS, machine, store

STORED = RESULTS / "offline_data" / "offline_data.json"
FOLDER = Path("build/offline_data")
STEPS = 100_000
PACKAGES = ("noterl", "keras", "numpy", "gymnasium", "mujoco", "jax", "torch")
ENVIRONMENTS = {"pendulum": "Pendulum-v1", "hopper": "Hopper-v5", "cartpole": "CartPole-v1"}


def record(act: Callable[[np.ndarray], Any], environment: str, steps: int, seed: int) -> noterl.Dataset:
    """Play episodes and return so many steps of them; the end cuts the last episode."""
    env = gymnasium.make(environment)
    episodes: list[tuple[list[Any], list[Any], list[float], bool]] = []
    total = 0
    while total < steps:
        observation, _ = env.reset(seed=seed + len(episodes))
        observations, actions, rewards = [observation], [], []
        terminated = truncated = False
        while not (terminated or truncated) and total < steps:
            action = act(observation)
            observation, reward, terminated, truncated, _ = env.step(action)
            observations.append(observation)
            actions.append(action)
            rewards.append(float(reward))
            total += 1
        episodes.append((observations, actions, rewards, bool(terminated)))
    env.close()
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    return noterl.Dataset(*map(list, zip(*episodes, strict=True)), **spaces)


def replayed(agent: noterl.Agent) -> noterl.Dataset:
    """Return all steps of a training in one environment, which the memory of the agent still holds."""
    storage = agent.replay.storage
    indices = storage.stored_indices()
    ends = np.flatnonzero(storage.terminated[indices] | storage.truncated[indices]) + 1
    pieces = [piece for piece in np.split(indices, ends) if len(piece)]
    observations = [[*storage.observation[piece], storage.next_observations(piece[-1:])[0]] for piece in pieces]
    return noterl.Dataset(
        observations,
        [storage.action[piece] for piece in pieces],
        [storage.reward[piece] for piece in pieces],
        [bool(storage.terminated[piece[-1]]) for piece in pieces],
        observation_space=agent.observation_space,
        action_space=agent.action_space,
    )


def train(agent: noterl.Agent, environment: str, bar: float, every: int, steps: int) -> float:
    """Train until ten episodes have at least this mean return, or to the number of steps; return the mean."""
    mean = -np.inf
    while agent.steps < steps:
        agent.fit(steps=every, verbose=0)
        mean = float(np.mean(evaluate(agent.act, environment, 10)))
        print(f"  {environment}: {mean:.1f} after {agent.steps:,} steps", flush=True)
        if mean >= bar:
            break
    return mean


def soft_actor_critic(environment: str, seed: int = 0, **arguments: Any) -> noterl.Agent:
    """Return SAC with eight updates in one call for each eight steps, which is faster than one after each step."""
    agent = noterl.SAC(environment, seed=seed, **arguments)
    agent.compile(update_every=8, updates=8, learning_starts=1_000)
    return agent


def sampled(agent: noterl.Agent) -> Callable[[np.ndarray], Any]:
    """Return the policy of an agent with its sampled actions."""
    return lambda observation: agent.act(observation, deterministic=False)


def pendulum() -> dict[str, noterl.Dataset]:
    """Return the sets of Pendulum."""
    environment, sets = ENVIRONMENTS["pendulum"], {}
    agent = soft_actor_critic(environment, hidden=(64, 64))
    train(agent, environment, -700, 200, 20_000)
    sets["pendulum-medium"] = record(sampled(agent), environment, STEPS, seed=1_000_000)
    agent.fit(steps=20_000 - agent.steps, verbose=0)
    sets["pendulum-expert"] = record(sampled(agent), environment, STEPS, seed=2_000_000)
    return sets


def hopper() -> dict[str, noterl.Dataset]:
    """Return the sets of Hopper, of the first seed whose medium policy has a mean return between 1,000 and 1,500."""
    environment, sets = ENVIRONMENTS["hopper"], {}
    for seed in range(10):
        agent = soft_actor_critic(environment, seed)
        if 1_000 <= train(agent, environment, 1_000, 5_000, STEPS) <= 1_500:
            break
    else:
        raise RuntimeError("no seed of SAC has a policy of Hopper with a mean return between 1,000 and 1,500")
    sets["hopper-medium"] = record(sampled(agent), environment, STEPS, seed=3_000_000)
    agent.fit(steps=STEPS - agent.steps, verbose=0)
    sets["hopper-medium-replay"] = replayed(agent)
    return sets


def cartpole() -> dict[str, noterl.Dataset]:
    """Return the set of CartPole: half as many steps of the first policy whose mean return lies between 100 and 200."""
    environment = ENVIRONMENTS["cartpole"]
    agent = noterl.DQN(environment, seed=0)
    generator = np.random.default_rng(0)

    def act(observation: np.ndarray) -> Any:
        return int(generator.integers(2)) if generator.random() < 0.2 else agent.act(observation)

    for _ in range(100):
        agent.fit(steps=500, verbose=0)
        mean = float(record(act, environment, 5_000, seed=4_000_000).returns[:-1].mean())
        print(f"  {environment}: {mean:.1f} after {agent.steps:,} steps", flush=True)
        if 120 <= mean <= 180:
            return {"cartpole": record(act, environment, STEPS // 2, seed=5_000_000)}
    raise RuntimeError("no policy of DQN has a mean return between 120 and 180")


MAKERS = {"pendulum": pendulum, "hopper": hopper, "cartpole": cartpole}


def digest(data: noterl.Dataset) -> str:
    """Return the SHA-256 of the arrays, which does not depend on the format of the file."""
    found = hashlib.sha256()
    for array in (data.observations, data.actions, data.rewards, data.lengths, data.terminated):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def describe(name: str, data: noterl.Dataset) -> dict[str, Any]:
    """Return what is stored of a set; the last episode, which the end of the set may have cut, has no return."""
    returns = data.returns[:-1]
    return {
        "name": name,
        "sha256": digest(data),
        "steps": len(data),
        "episodes": len(data.episodes),
        "terminated": int(data.terminated.sum()),
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
    }


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(MAKERS)}; all by default")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args(words)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    runs = json.loads(STORED.read_text())["runs"] if STORED.exists() else []
    for task in arguments.tasks or MAKERS:
        for name, data in MAKERS[task]().items():
            data.save(arguments.folder / f"{name}.noterl")
            processor = machine()["processor"]
            row = {**describe(name, data), "backend": keras.backend.backend(), "processor": processor}
            others = [run for run in runs if (run["name"], run["processor"]) != (name, processor)]
            runs = sorted([*others, row], key=lambda run: (run["processor"], run["name"]))
            store({"versions": versions(PACKAGES), "runs": runs}, STORED)
            print(row, flush=True)


if __name__ == "__main__":
    main()

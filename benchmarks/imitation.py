"""Behavior cloning and GAIL from five demonstrations of CartPole, Pendulum and Acrobot.

    KERAS_BACKEND=jax python -m benchmarks.imitation --tasks CartPole Pendulum --seeds 5

One expert is trained for each task. Each seed records five other episodes of it. On Pendulum, "BC with noise" clones
five episodes that were recorded with noise in the executed actions, `record(noise=)`. The score of an agent is its mean
return over 100 episodes, as a share of the way from a random policy (0) to the expert (1). CartPole and Pendulum have
the bar 0.95 in every seed; Acrobot has none. Each run is stored when it ends, in benchmarks/results/imitation/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np

import noterl  # before Keras, so that it chooses the backend
from benchmarks.evaluation import EPISODES, evaluate, versions
from benchmarks.processes import RESULTS, machine, store
from benchmarks.report import markdown_table
from noterl.imitation import GAIL, Demonstrations
from noterl.noise import NoiseProcess, OrnsteinUhlenbeckProcess
from noterl.schedules import Linear

DEMONSTRATIONS = 5
STORED = RESULTS / "imitation" / "imitation.json"
BAR = 0.95


def _ppo_cartpole(seed: int) -> noterl.Agent:
    """Return PPO with longer rollouts than those of rl-zoo3, with which one seed of GAIL in ten stays below 400."""
    return noterl.PPO("CartPole-v1", gamma=0.98, gae_lambda=0.95, rollout_steps=128, epochs=10, seed=seed)


def _ppo_acrobot(seed: int) -> noterl.Agent:
    """Return PPO with rl-zoo3's settings for Acrobot."""
    return noterl.PPO(
        "Acrobot-v1", gamma=0.99, gae_lambda=0.94, rollout_steps=256, epochs=4, normalize_observation=True, seed=seed
    )


def _sac_pendulum(seed: int) -> noterl.Agent:
    return noterl.SAC("Pendulum-v1", hidden=(64, 64), seed=seed)


def _adam(rate: float | Linear) -> keras.optimizers.Adam:
    return keras.optimizers.Adam(rate, epsilon=1e-5, global_clipnorm=0.5)


@dataclass(frozen=True)
class Task:
    """A task: how its agents are made, and the arguments of `compile`, `fit`, `pretrain` and `GAIL`."""

    environment: str
    make: Callable[[int], noterl.Agent]
    compile: Callable[[], dict[str, Any]]
    fit: dict[str, Any]
    gail_fit: dict[str, Any]
    pretrain: dict[str, Any]
    gail: dict[str, Any]
    bar: float | None = BAR
    clone: Callable[[int], noterl.Agent] | None = None  # the agent that clones; None for `make`
    noise: NoiseProcess | None = None  # of further demonstrations for cloning


TASKS = {
    "CartPole": Task(
        "CartPole-v1",
        _ppo_cartpole,
        lambda: {"optimizer": _adam(Linear(1e-3, 1e-5, steps=100_000)), "batch_size": 256},
        {"steps": 100_000, "num_envs": 8},
        {"steps": 100_000, "num_envs": 8},
        {"updates": 2_000},
        {},
    ),
    "Pendulum": Task(
        "Pendulum-v1",
        _sac_pendulum,
        lambda: {"optimizer": 1e-3, "update_every": 16, "updates": 16},
        {"steps": 12_000},
        {"steps": 12_000},
        {"updates": 3_000},
        {"reward": "logit"},
        clone=lambda seed: noterl.PPO("Pendulum-v1", hidden=(256, 256), seed=seed),
        noise=OrnsteinUhlenbeckProcess(theta=0.15, sigma=0.5, dt=1.0),
    ),
    "Acrobot": Task(
        "Acrobot-v1",
        _ppo_acrobot,
        lambda: {"optimizer": _adam(3e-4), "batch_size": 64},
        {"steps": 300_000, "num_envs": 16},
        {"steps": 300_000, "num_envs": 16},
        {"updates": 2_000},
        {"reward": "negative"},
        bar=None,
    ),
}


def _returns(agent: noterl.Agent, task: Task) -> float:
    return float(np.mean(evaluate(agent.act, task.environment)))


def _random_return(task: Task) -> float:
    space = gymnasium.make(task.environment).action_space
    space.seed(0)
    return float(np.mean(evaluate(lambda rows: np.stack([space.sample() for _ in rows]), task.environment)))


def _trained(task: Task, seed: int, fit: dict[str, Any], **settings: Any) -> noterl.Agent:
    agent = task.make(seed)
    agent.compile(**task.compile(), **settings)
    agent.fit(**fit, verbose=0)
    return agent


def _cloned(task: Task, seed: int, demonstrations: Demonstrations) -> noterl.Agent:
    agent = (task.clone or task.make)(seed)
    agent.pretrain(demonstrations, **task.pretrain, verbose=0)
    return agent


def runs(name: str, seeds: int) -> Iterator[dict[str, Any]]:
    """Train the expert of a task, and yield each run."""
    task = TASKS[name]
    expert = _trained(task, 100, task.fit)
    ends = {"expert": _returns(expert, task), "random": _random_return(task)}
    print(f"{name}: {ends}", flush=True)

    def clone(seed: int, data: Demonstrations) -> noterl.Agent:
        return _cloned(task, seed, data)

    def imitate(seed: int, data: Demonstrations) -> noterl.Agent:
        return _trained(task, seed, task.gail_fit, reward_model=GAIL(data, **task.gail))

    methods: dict[str, tuple[Callable[[int, Demonstrations], noterl.Agent], NoiseProcess | None]]
    methods = {"BC": (clone, None), "GAIL": (imitate, None)}
    if task.noise is not None:
        methods["BC with noise"] = clone, task.noise
    for seed in range(seeds):
        for method, (train, noise) in methods.items():
            data = Demonstrations.record(expert, episodes=DEMONSTRATIONS, seed=seed, deterministic=True, noise=noise)
            start = time.perf_counter()
            agent = train(seed, data)
            seconds, score = time.perf_counter() - start, _returns(agent, task)
            share = (score - ends["random"]) / (ends["expert"] - ends["random"])
            run = {"task": name, "method": method, "seed": seed, "return": score, "share": share, "seconds": seconds}
            print(f"{name} {method} seed {seed}: {score:.1f}, {share:.3f} in {seconds:.0f} s", flush=True)
            yield {**run, "demonstrations": float(data.returns.mean()), **ends}


def settings() -> dict[str, Any]:
    """Return what is stored about the tasks."""
    found = {
        name: {
            "environment": task.environment,
            "agent": repr(task.make(0)),
            "clone": repr((task.clone or task.make)(0)),
            "fit": task.fit,
            "gail_fit": task.gail_fit,
            "pretrain": task.pretrain,
            "gail": task.gail,
            "noise": repr(task.noise),
            "bar": task.bar,
        }
        for name, task in TASKS.items()
    }
    return {"demonstrations": DEMONSTRATIONS, "evaluation episodes": EPISODES, **found}


def summarize(result: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name, method in dict.fromkeys((run["task"], run["method"]) for run in result["runs"]):
        runs = [run for run in result["runs"] if (run["task"], run["method"]) == (name, method)]
        returns, shares = ([run[key] for run in runs] for key in ("return", "share"))
        bar = result["settings"][name]["bar"]
        row = {
            "task": name,
            "method": method,
            "seeds": len(runs),
            "expert": runs[0]["expert"],
            "random": runs[0]["random"],
        }
        row |= {
            "median": float(np.median(returns)),
            "worst": min(returns),
            "shares": shares,
            "worst_share": min(shares),
        }
        met = None if bar is None else sum(share >= bar for share in shares)
        rows.append({**row, "met": met, "seconds": float(np.median([run["seconds"] for run in runs]))})
    return rows


def table(result: dict[str, Any]) -> str:
    head = (
        "task",
        "method",
        "expert",
        "random",
        "median",
        "worst",
        "worst share of the expert",
        "bar 0.95 met",
        "seconds",
    )
    rows = []
    for row in summarize(result):
        met = "no bar" if row["met"] is None else f"{row['met']} of {row['seeds']}"
        numbers = [f"{row[key]:.1f}" for key in ("expert", "random", "median", "worst")]
        rows.append((row["task"], row["method"], *numbers, f"{row['worst_share']:.3f}", met, f"{row['seconds']:.0f}"))
    title = f"Mean return over {EPISODES} episodes after learning from {DEMONSTRATIONS} demonstrations"
    return f"{title}\n\n{markdown_table(head, rows)}"


def describe() -> dict[str, Any]:
    """Return what is stored with the runs of this process."""
    packages = ("noterl", "keras", "numpy", "gymnasium", keras.backend.backend())
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": date, "backend": keras.backend.backend(), "machine": machine(), "versions": versions(packages)}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], prog="imitation.py")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=STORED, help="file to which the runs of these tasks are stored")
    arguments = parser.parse_args(words)
    stored = json.loads(arguments.output.read_text())["runs"] if arguments.output.exists() else []
    found = [run for run in stored if run["task"] not in arguments.tasks]
    result: dict[str, Any] = {**describe(), "settings": settings(), "runs": found}
    for name in arguments.tasks:
        for run in runs(name, arguments.seeds):
            found.append(run)
            store({**result, "summary": summarize(result), "table": table(result).splitlines()}, arguments.output)
    print(table(result))


if __name__ == "__main__":
    main()

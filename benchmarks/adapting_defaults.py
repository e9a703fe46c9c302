"""Train agents with and without the callbacks that adapt to effective sample size, each with its defaults.

    python -m benchmarks.adapting_defaults cartpole-dqn --seeds 10

All variants of a task have the same seeds, and a prioritized memory, because the effective sample size of a uniform one
is constant. The score of a run is the mean return of the greedy policy over 20 episodes after training. Each run is a
process of its own and is stored in benchmarks/results/adapting_defaults/ when it ends. Stored runs are not repeated.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import stats, study
from benchmarks.evaluation import FIRST_SEED, print_json, versions
from benchmarks.first_programs import EPISODES, PACKAGES
from benchmarks.processes import RESULTS, execute, machine, variables
from benchmarks.report import adapting_defaults_table
from benchmarks.summaries import mean_returns

FOLDER = RESULTS / "adapting_defaults"
BASELINE = "without"
# The columns of the history whose last values show what a callback did.
ADAPTED = ("batch", "lr", "window")


@dataclass(frozen=True)
class Task:
    """What is trained, with and without the callbacks.

    Attributes:
        environment: id of gymnasium.
        steps: environment steps.
        span: highest less lowest return.
        agent: returns the agent of a seed, compiled.
    """

    environment: str
    steps: int
    span: float
    agent: Callable[[str, int], Any]


def dqn(environment: str, seed: int) -> Any:
    """Return DQN with its defaults, but for a prioritized memory."""
    import noterl
    from noterl.replay import Prioritized

    agent = noterl.DQN(environment, seed=seed)
    agent.compile(replay=noterl.Replay(100_000, sampler=Prioritized(), n_step=agent.defaults().n_step))
    return agent


def ppo_with_replay(environment: str, seed: int) -> Any:
    """Return the agent of the task `cartpole-ppo-replay` of `tasks.py`, with a constant learning rate and clip."""
    from benchmarks import run, tasks

    task = tasks.TASKS["cartpole-ppo-replay"]
    constant = replace(task, environment=environment, settings={**task.settings, "anneal": False})
    return run.ppo(constant, seed, task.steps)


TASKS = {
    "cartpole-dqn": Task("CartPole-v1", 50_000, 500.0, dqn),
    "lunarlander-dqn": Task("LunarLander-v3", 100_000, 820.0, dqn),
    "cartpole-ppo-replay": Task("CartPole-v1", 100_000, 500.0, ppo_with_replay),
}


def variants() -> dict[str, Callable[[], list[Any]]]:
    """Return the callbacks of each variant; the baseline comes first."""
    from noterl.callbacks import ESSAdapt, ESSWindow, Rate, Scale

    return {
        BASELINE: list,
        "ESSWindow()": lambda: [ESSWindow()],
        "ESSAdapt(batch=Scale())": lambda: [ESSAdapt(batch=Scale())],
        "ESSAdapt(lr=Rate(3e-4, 3e-4, 3e-3))": lambda: [ESSAdapt(lr=Rate(3e-4, 3e-4, 3e-3))],
    }


def train(name: str, variant: str, seed: int) -> dict[str, Any]:
    """Do one run in this process."""
    task = TASKS[name]
    agent = task.agent(task.environment, seed)
    lanes = {"num_envs": 8} if name == "cartpole-ppo-replay" else {}
    history = agent.fit(steps=task.steps, callbacks=variants()[variant](), verbose=0, **lanes).history
    returns = agent.evaluate(episodes=EPISODES, seed=FIRST_SEED)["returns"]
    return {
        "returns": np.round(returns, 3).tolist(),
        "in_training": round(float(np.mean(history["reward"])), 3),
        "last": {key: float(history[key][-1]) for key in ADAPTED if key in history},
        "versions": versions(PACKAGES),
    }


def run(name: str, seeds: int, folder: Path) -> dict[str, Any]:
    """Do the runs that `folder` does not hold, store each when it ends, and return the result of all."""
    path = folder / f"{name}.json"

    def train_one(key: tuple[str, int]) -> tuple[dict[str, Any], str]:
        variant, seed = key
        words = [sys.executable, "-m", "benchmarks.adapting_defaults", name, "--run", variant, str(seed)]
        one = {"variant": variant, "seed": seed, **execute(words, variables("jax")), "machine": machine()}
        return one, f"{name}, {variant}, seed {seed}: {np.mean(one['returns']):.1f}"

    return study.complete(
        study.stored_runs(path),
        [(variant, seed) for seed in range(seeds) for variant in variants()],
        key_of=lambda one: (one["variant"], one["seed"]),
        train=train_one,
        result_of=lambda runs: make_result(name, runs),
        path=path,
    )


def make_result(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is stored."""
    order = list(variants())
    runs = sorted(runs, key=lambda one: (order.index(one["variant"]), one["seed"]))
    return {
        "task": name,
        "steps": TASKS[name].steps,
        "backend": "jax",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "evaluation episodes": EPISODES,
        "summary": summarize(TASKS[name], runs),
        "runs": runs,
    }


def summarize(task: Task, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the scores of each variant, and their difference from the baseline."""
    scores: dict[str, list[float]] = {}
    for one in runs:
        scores.setdefault(one["variant"], []).extend(mean_returns([one]))
    summary: dict[str, Any] = {}
    for variant, own in scores.items():
        summary[variant] = {**stats.summarize_scores(own), "seeds": len(own)}
        if variant != BASELINE and BASELINE in scores:
            summary[variant]["difference"] = stats.difference(own, scores[BASELINE], task.span)
    return summary


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0], prog="adapting_defaults.py")
    parser.add_argument("tasks", nargs="*", metavar="task", help=f"any of {', '.join(TASKS)} (default: all)")
    parser.add_argument("--seeds", type=int, default=10, help="seeds that the result shall have")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--run", nargs=2, metavar=("VARIANT", "SEED"), help="do this run and print it as JSON")
    arguments = parser.parse_args(words)
    if unknown := set(arguments.tasks) - set(TASKS):
        parser.error(f"task must be one of {', '.join(TASKS)}, got {', '.join(sorted(unknown))}")
    if arguments.seeds < 1:
        parser.error("--seeds must be at least 1")
    arguments.tasks = arguments.tasks or list(TASKS)
    return arguments


def main(words: list[str] | None = None) -> None:
    arguments = parse(words)
    if arguments.run is not None:
        print_json(train(arguments.tasks[0], arguments.run[0], int(arguments.run[1])))
    else:
        print(adapting_defaults_table([run(name, arguments.seeds, arguments.output) for name in arguments.tasks]))


if __name__ == "__main__":
    main()

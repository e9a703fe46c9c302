"""Train agents with all defaults, as a new user's first program does, and show what the greedy policies reach.

    python -m benchmarks.first_programs cartpole-dqn

A run is `agent = noterl.DQN("CartPole-v1", seed=seed)` and `agent.fit(steps=50_000)` in a process of its own. Its score
is the mean return of `agent.evaluate(episodes=20)`. Each run is stored in benchmarks/results/first_programs/ when it
ends. A stored run with the same defaults and backend is not repeated, so the program adds only the missing seeds. If a
default or the backend is another one, the stored runs are replaced.
"""

from __future__ import annotations

import argparse
import datetime
import inspect
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import stats, study
from benchmarks.evaluation import FIRST_SEED, print_json, versions
from benchmarks.processes import BACKENDS, RESULTS, execute, machine, variables
from benchmarks.report import first_programs_table
from benchmarks.summaries import mean_returns

FOLDER = RESULTS / "first_programs"
EPISODES = 20
PACKAGES = ("noterl", "numpy", "gymnasium", "keras", "tensorflow", "tensorflow-cpu", "jax", "torch", "Box2D")


@dataclass(frozen=True)
class Program:
    """A first program.

    Attributes:
        algorithm: name of the class.
        environment: id of gymnasium.
        steps: environment steps.
        goal: the mean return that `share` of the seeds must reach; None if the result is only shown.
        share: share of the seeds.
        seeds: the seeds of a complete result.
    """

    algorithm: str
    environment: str
    steps: int
    goal: float | None = None
    share: float = 0.8
    seeds: int = 10


PROGRAMS = {
    "cartpole-dqn": Program("DQN", "CartPole-v1", 50_000, 450),
    "acrobot-dqn": Program("DQN", "Acrobot-v1", 100_000, -110),
    "mountaincar-dqn": Program("DQN", "MountainCar-v0", 100_000, seeds=3),
    "lunarlander-dqn": Program("DQN", "LunarLander-v3", 100_000, seeds=3),
    "cartpole-a2c": Program("A2C", "CartPole-v1", 200_000, 475),
    "pendulum-sac": Program("SAC", "Pendulum-v1", 20_000, -200),
    "pendulum-td3": Program("TD3", "Pendulum-v1", 20_000, -200),
    "pendulum-ddpg": Program("DDPG", "Pendulum-v1", 20_000, -200),
    "lunarlandercontinuous-sac": Program("SAC", "LunarLanderContinuous-v3", 100_000, seeds=3),
}


def settings(program: Program) -> dict[str, Any]:
    """Return all defaults of the program's agent as JSON."""
    import noterl

    agent = getattr(noterl, program.algorithm)(program.environment)
    parameters = inspect.signature(type(agent)).parameters.values()
    arguments = {one.name: one.default for one in parameters if one.default is not one.empty}
    compiled = agent.defaults()._asdict()
    return json.loads(json.dumps({"arguments": arguments, "compile": compiled}, default=describe))


def describe(value: Any) -> Any:
    """Return the configuration of an optimizer, policy or noise."""
    if isinstance(value, np.generic):
        return value.item()
    # Keras numbers the names of optimizers.
    config = {name: setting for name, setting in value.get_config().items() if name != "name"}
    return {"class": type(value).__name__, **config}


def train(program: Program, seed: int) -> dict[str, Any]:
    """Run the program with a seed in this process."""
    import noterl

    agent = getattr(noterl, program.algorithm)(program.environment, seed=seed)
    agent.fit(steps=program.steps, verbose=0)
    returns = agent.evaluate(episodes=EPISODES, seed=FIRST_SEED)["returns"]
    return {
        "returns": np.round(returns, 3).tolist(),
        "updates": agent.updates,
        "versions": versions(PACKAGES),
    }


def command(name: str, backend: str, *more: str) -> tuple[list[str], dict[str, str]]:
    """Return the command line of a process for one program, and the environment variables that it adds."""
    return [sys.executable, "-m", "benchmarks.first_programs", name, *more], variables(backend)


def run(name: str, seeds: int, backend: str, folder: Path) -> dict[str, Any]:
    """Do the runs that `folder` does not hold, store each when it ends, and return the result of all."""
    defaults = execute(*command(name, backend, "--settings"))
    path = folder / f"{name}.json"
    settings_of_runs = (backend, defaults, PROGRAMS[name].steps)

    def is_same(result: dict[str, Any]) -> bool:
        return (result["backend"], result["settings"], result["steps"]) == settings_of_runs

    def train_one(seed: int) -> tuple[dict[str, Any], str]:
        one = {"seed": seed, **execute(*command(name, backend, "--seed", str(seed))), "machine": machine()}
        return one, f"{name}, seed {seed}: {np.mean(one['returns']):.1f}"

    return study.complete(
        study.stored_runs(path, is_same),
        range(seeds),
        key_of=lambda one: one["seed"],
        train=train_one,
        result_of=lambda runs: make_result(name, backend, defaults, runs),
        path=path,
    )


def make_result(name: str, backend: str, found: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is stored."""
    program, runs = asdict(PROGRAMS[name]), sorted(runs, key=lambda one: one["seed"])
    return {
        "program": name,
        **{key: program[key] for key in ("algorithm", "environment", "steps")},
        "backend": backend,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "evaluation episodes": EPISODES,
        "settings": found,
        "summary": summarize(PROGRAMS[name], runs) if runs else {},
        "runs": runs,
    }


def summarize(program: Program, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarize the scores of the seeds; `met` is None if there is no goal or seeds are missing."""
    scores = mean_returns(runs)
    summary = {**stats.summarize_scores(scores), "seeds": len(scores), "complete": program.seeds, "goal": program.goal}
    if program.goal is None:
        return {**summary, "reached": None, "met": None}
    reached = sum(score >= program.goal for score in scores)
    met = None if len(scores) < program.seeds else reached >= program.share * len(scores)
    return {**summary, "share": program.share, "reached": reached, "met": met}


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0], prog="first_programs.py")
    parser.add_argument("programs", nargs="*", metavar="program", help=f"any of {', '.join(PROGRAMS)} (default: all)")
    parser.add_argument("--seeds", type=int, help="seeds that a result shall have (default: 10, or 3 without a goal)")
    parser.add_argument("--backend", choices=BACKENDS, default="jax")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--seed", type=int, help="train this seed in this process and print the run as JSON")
    parser.add_argument("--settings", action="store_true", help="print the defaults as JSON")
    arguments = parser.parse_args(words)
    unknown = set(arguments.programs) - set(PROGRAMS)
    if unknown:
        parser.error(f"program must be one of {', '.join(PROGRAMS)}, got {', '.join(sorted(unknown))}")
    if arguments.seeds is not None and arguments.seeds < 1:
        parser.error("--seeds must be at least 1")
    arguments.programs = arguments.programs or list(PROGRAMS)
    return arguments


def main(words: list[str] | None = None) -> None:
    arguments = parse(words)
    first = PROGRAMS[arguments.programs[0]]
    if arguments.settings:
        print_json(settings(first))
    elif arguments.seed is not None:
        print_json(train(first, arguments.seed))
    else:
        numbers = {name: arguments.seeds or PROGRAMS[name].seeds for name in arguments.programs}
        results = [run(name, number, arguments.backend, arguments.output) for name, number in numbers.items()]
        print(first_programs_table(results))


if __name__ == "__main__":
    main()

"""Train at the learning rates that `LRFinder` and `OptFinder` suggest, and at the rates of a grid.

    KERAS_BACKEND=jax python -m benchmarks.learning_rates dqn-cartpole ppo-acrobot

`LRFinder.find` suggests two rates for each seed, with the arguments of `SEARCHES`. `OptFinder.find` compares Adam with
the rates of `CANDIDATES`, with the arguments of `COMPARISONS`. The score of a rate is the mean return in the last
quarter of a short training, which varies less than that of the last greedy policy. The share of a suggestion is (its
score - the return of random actions) / (the score of the best rate of the grid - the return of random actions), where
the scores of a rate and of the suggestions are means over the seeds. The bar is a share of 0.8 for the suggestions that
`is_clear` accepts. All runs are made in this process. Each is stored in benchmarks/results/learning_rates/ when it
ends, and a stored run is not repeated.
"""

from __future__ import annotations

import argparse
import datetime
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks import study
from benchmarks.evaluation import FIRST_SEED, versions
from benchmarks.first_programs import EPISODES, PACKAGES
from benchmarks.processes import RESULTS, machine
from benchmarks.report import learning_rates_table

FOLDER = RESULTS / "learning_rates"
GRID = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
FIRST, SEEDS = 5, 5  # the rules of `LRFinder` were chosen with the seeds 0 to 4
BAR = 0.8
SEARCHES: dict[str, dict[str, Any]] = {
    "loss": {"updates": 300, "start_lr": 1e-5},
    "reward": {"episodes": 100, "start_lr": 1e-5},
}
CANDIDATES = (1e-4, 1e-3, 1e-2)  # of the grid, so that the trainings at these rates are there
COMPARISONS: dict[str, dict[str, Any]] = {
    "OptFinder, loss": {"metric": "loss", "episodes": 300},
    "OptFinder, reward": {"metric": "reward", "episodes": 20},
}


@dataclass(frozen=True)
class Case:
    """What is trained.

    Attributes:
        algorithm: name of the class.
        env: the environment, as for the agent's constructor.
        steps: environment steps.
        random: the mean return of random actions.
        arguments: of the constructor.
        compiled: arguments of `compile` besides `optimizer`.
        num_envs: environments that are stepped together.
        optimizer: the optimizer that is searched; None for all.
        hindsight: whether the memory relabels goals.
    """

    algorithm: str
    env: Any
    steps: int
    random: float
    arguments: dict[str, Any] = field(default_factory=dict)
    compiled: dict[str, Any] = field(default_factory=dict)
    num_envs: int | None = None
    optimizer: str | None = None
    hindsight: bool = False

    def agent(self, seed: int, rate: float | None = None) -> Any:
        """Return the agent, with a learning rate or with its default."""
        import noterl
        from noterl.replay import Hindsight

        agent = getattr(noterl, self.algorithm)(self.env, seed=seed, **self.arguments)
        chosen = {} if rate is None else {"optimizer": self.optimizers(rate)}
        memory = {"replay": noterl.Replay(20_000, relabel=Hindsight())} if self.hindsight else {}
        agent.compile(**self.compiled, **memory, **chosen)
        return agent

    def optimizers(self, rate: float) -> Any:
        """Return the argument `optimizer` of `compile` for a learning rate."""
        return rate if self.optimizer is None else {"actor": 1e-3, self.optimizer: rate}

    @property
    def fit(self) -> dict[str, Any]:
        """The arguments of `fit` for a training and a search."""
        return {} if self.num_envs is None else {"num_envs": self.num_envs}


def frozen_lake() -> Any:
    return gymnasium.make("FrozenLake-v1", is_slippery=False)


def light_pendulum() -> Any:
    return gymnasium.make("Pendulum-v1", g=3.0)


def reach() -> Any:
    from noterl.envs import Reach2D

    return Reach2D()


PPO: dict[str, Any] = {"arguments": {"rollout_steps": 128, "epochs": 4}, "num_envs": 4}
SMALL: dict[str, Any] = {"arguments": {"hidden": (64, 64)}, "compiled": {"learning_starts": 300}}
CRITIC: dict[str, Any] = {**SMALL, "optimizer": "critic"}
HINDSIGHT: dict[str, Any] = {**CRITIC, "arguments": {"hidden": (64, 64), "gamma": 0.95}, "hindsight": True}

CASES = {
    "dqn-cartpole": Case("DQN", "CartPole-v1", 15_000, 23.0),
    "dqn-acrobot": Case("DQN", "Acrobot-v1", 15_000, -497.0),
    "dqn-frozenlake": Case("DQN", frozen_lake, 10_000, 0.0),
    "ddpg-pendulum": Case("DDPG", "Pendulum-v1", 5_000, -1_210.0, **CRITIC),
    "ddpg-lightpendulum": Case("DDPG", light_pendulum, 5_000, -1_020.0, **CRITIC),
    "ddpg-reach": Case("DDPG", reach, 3_000, -50.0, **HINDSIGHT),
    "ppo-cartpole": Case("PPO", "CartPole-v1", 20_000, 23.0, **PPO),
    "ppo-acrobot": Case("PPO", "Acrobot-v1", 30_000, -497.0, **PPO),
    "ppo-frozenlake": Case("PPO", frozen_lake, 20_000, 0.0, **PPO),
    "sac-pendulum": Case("SAC", "Pendulum-v1", 4_000, -1_210.0, **SMALL),
    "sac-lightpendulum": Case("SAC", light_pendulum, 4_000, -1_020.0, **SMALL),
    "sac-reach": Case(
        "SAC", reach, 4_000, -50.0, arguments={"hidden": (64, 64), "gamma": 0.95}, compiled={"learning_starts": 300}
    ),
}


def train(case: Case, seed: int, rate: float) -> dict[str, Any]:
    """Train with a learning rate and return what the agent reached; a loss that is not finite has the lowest score."""
    from noterl.backends.common import NonFiniteError

    agent = case.agent(seed, rate)
    try:
        history = agent.fit(steps=case.steps, verbose=0, **case.fit).history
    except NonFiniteError:
        return {"seed": seed, "rate": rate, "score": case.random, "greedy": None}
    late = np.asarray(history["steps"]) > 0.75 * case.steps
    returns = agent.evaluate(episodes=EPISODES, seed=FIRST_SEED)["returns"]
    return {
        "seed": seed,
        "rate": rate,
        "score": round(float(np.mean(np.asarray(history["reward"])[late])), 3),
        "greedy": round(float(np.mean(returns)), 3),
    }


def search(case: Case, seed: int, metric: str) -> dict[str, Any]:
    """Return what `LRFinder` suggests with the values that it saw, and train with a clear suggestion."""
    from noterl.finders import LRFinder

    finder = LRFinder(case.agent(seed))
    suggestion = finder.find(metric=metric, **SEARCHES[metric], optimizer=case.optimizer, **case.fit)
    found = {
        "metric": metric,
        "suggestion": suggestion,
        "is_clear": finder.is_clear,
        "stop_reason": finder.stop_reason,
        "values": [float(f"{row[metric]:.5g}") for row in finder.results],
    }
    trained = train(case, seed, suggestion) if finder.is_clear and suggestion else {"seed": seed}
    return {**trained, "search": found}


def compare(case: Case, seed: int, name: str) -> dict[str, Any]:
    """Return which candidate `OptFinder` finds; the score of the candidate is that of the training at its rate."""
    from noterl.finders import OptFinder

    finder = OptFinder(case.agent(seed), {f"{rate:g}": case.optimizers(rate) for rate in CANDIDATES})
    best = finder.find(**COMPARISONS[name], **case.fit)
    means = {row["name"]: float(f"{row['mean']:.5g}") for row in finder.results}
    found = {"metric": name, "suggestion": best and float(best), "is_clear": finder.is_clear, "means": means}
    return {"seed": seed, "search": {**found, "ties": finder.ties}}


def run(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Do the runs of a seed that `folder` does not hold, store each when it ends, and return the result of all."""
    path = folder / f"{name}.json"
    case = CASES[name]

    def train_one(key: tuple[int, str | float]) -> tuple[dict[str, Any], str]:
        _, wanted = key
        if isinstance(wanted, float):
            found = train(case, seed, wanted)
        else:
            found = (compare if wanted in COMPARISONS else search)(case, seed, wanted)
        one = {**found, "versions": versions(PACKAGES), "machine": machine()}
        return one, f"{name}, seed {seed}, {wanted}, {found.get('rate')}: {found.get('score')}"

    return study.complete(
        study.stored_runs(path),
        [(seed, wanted) for wanted in (*SEARCHES, *GRID, *COMPARISONS)],
        key_of=lambda one: (one["seed"], one["search"]["metric"] if "search" in one else one["rate"]),
        train=train_one,
        result_of=lambda runs: make_result(name, runs),
        path=path,
    )


def make_result(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is stored."""
    runs = sorted(runs, key=lambda one: (one.get("search", {}).get("metric", ""), one.get("rate") or 0.0, one["seed"]))
    return {
        "case": name,
        "steps": CASES[name].steps,
        "backend": "jax",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "summary": summarize(CASES[name], runs),
        "runs": runs,
    }


def summarize(case: Case, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a summary for each metric, by name."""
    return {metric: _summarize(case, runs, metric) for metric in (*SEARCHES, *COMPARISONS)}


def _summarize(case: Case, runs: list[dict[str, Any]], metric: str) -> dict[str, Any]:
    """Compare the clear suggestions of a metric with the best rate; `met` is None if there is nothing to compare."""
    trained = {(one["seed"], one["rate"]): one["score"] for one in runs if "search" not in one}
    grid = {rate: [score for (_, of_run), score in trained.items() if of_run == rate] for rate in GRID}
    means = {rate: float(np.mean(scores)) for rate, scores in grid.items() if scores}
    searches = [one for one in runs if one.get("search", {}).get("metric") == metric]
    clear = [one for one in searches if one["search"]["is_clear"]]
    rates = [one["search"]["suggestion"] for one in clear]
    # `compare` does not train, because a training at the same rate with the same seed is in the grid.
    scores = [one["score"] if "score" in one else trained[one["seed"], one["search"]["suggestion"]] for one in clear]
    best_rate = max(means, key=lambda rate: means[rate]) if means else None
    best = None if best_rate is None else means[best_rate]
    score = float(np.mean(scores)) if clear else None
    share = None if best is None or score is None else (score - case.random) / (best - case.random)
    return {
        "searches": len(searches),
        "clear": len(clear),
        "suggestions": [min(rates), max(rates)] if clear else None,
        "score": score,
        "best": best,
        "best_rate": best_rate,
        "grid": {f"{rate:g}": mean for rate, mean in means.items()},
        "share": share,
        "met": None if share is None else share >= BAR,
    }


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0], prog="learning_rates.py")
    parser.add_argument("cases", nargs="*", metavar="case", help=f"any of {', '.join(CASES)} (default: all)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds that the result shall have")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the results")
    arguments = parser.parse_args(words)
    if unknown := set(arguments.cases) - set(CASES):
        parser.error(f"case must be one of {', '.join(CASES)}, got {', '.join(sorted(unknown))}")
    if arguments.seeds < 1:
        parser.error("--seeds must be at least 1")
    arguments.cases = arguments.cases or list(CASES)
    return arguments


def main(words: list[str] | None = None) -> None:
    arguments = parse(words)
    results = {}
    for seed in range(FIRST, FIRST + arguments.seeds):  # an interrupted program has as many whole seeds as possible
        for name in arguments.cases:
            results[name] = run(name, seed, arguments.output)
    print(learning_rates_table(results.values()))


if __name__ == "__main__":
    main()

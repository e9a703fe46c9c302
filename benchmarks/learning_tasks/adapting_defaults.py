"""DQN and PPO with prioritized memories, with and without the callbacks that follow ESS, with their defaults.

Each agent has the same seeds with and without a callback. The score of a run is the mean return of the greedy policy
over 20 episodes after training.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import noterl
from benchmarks import stats
from benchmarks.learning_tasks.adapting_cartpole import compared
from benchmarks.report import markdown_table
from benchmarks.run import ppo
from benchmarks.tasks import TASKS
from noterl.callbacks import ESSAdapt, ESSWindow, Rate, Scale
from noterl.replay import Prioritized

SEEDS, EPISODES = 10, 20
PPO_TASK = TASKS["cartpole-ppo-replay"]


def dqn(environment: str) -> Callable[[int], noterl.Agent]:
    """Return a function that makes a DQN with all defaults but the memory, which is prioritized."""

    def make(seed: int) -> noterl.Agent:
        agent = noterl.DQN(environment, seed=seed)
        agent.compile(replay=noterl.Replay(100_000, sampler=Prioritized(), n_step=3))
        return agent

    return make


@dataclass(frozen=True)
class Case:
    """An agent and its task.

    Attributes:
        make: returns the agent of a seed.
        steps: environment steps of a run.
        span: highest less lowest return.
        num_envs: lanes.
    """

    make: Callable[[int], noterl.Agent]
    steps: int
    span: float
    num_envs: int = 1


CASES = {
    "DQN, CartPole-v1": Case(dqn("CartPole-v1"), 50_000, 500),
    "DQN, LunarLander-v3": Case(dqn("LunarLander-v3"), 100_000, 820),
    "PPO with a memory, CartPole-v1": Case(lambda seed: ppo(PPO_TASK, seed, 100_000), 100_000, 500, 8),
}
VARIANTS: dict[str, Callable[[], list[Any]]] = {
    "without": list,
    "`ESSWindow()`": lambda: [ESSWindow()],
    "`ESSAdapt(batch=Scale())`": lambda: [ESSAdapt(batch=Scale())],
    "`ESSAdapt(lr=Rate(3e-4, 3e-4, 3e-3))`": lambda: [ESSAdapt(lr=Rate(3e-4, 3e-4, 3e-3))],
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the choice of cases."""
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="agents and tasks")


def run(seeds: int, cases: Sequence[str]) -> dict[str, Any]:
    """Train every case and variant with seeds 0 to `seeds - 1`."""
    runs = [train(case, name, seed) for case in cases for seed in range(seeds) for name in VARIANTS]
    return {"settings": {case: {"steps": CASES[case].steps} for case in cases}, "runs": runs}


def train(case: str, variant: str, seed: int) -> dict[str, Any]:
    """Train one agent and return its score, and the last values of what the callback changes."""
    agent = CASES[case].make(seed)
    history = agent.fit(
        steps=CASES[case].steps, num_envs=CASES[case].num_envs, callbacks=VARIANTS[variant](), verbose=0
    ).history
    score = float(agent.evaluate(episodes=EPISODES, num_envs=EPISODES)["reward_mean"])
    agent.close()
    print(f"{case}, {variant}, seed {seed}: {score:.0f}", flush=True)
    last = {name: round(float(history[name][-1]), 6) for name in ("batch", "lr", "window") if name in history}
    return {"case": case, "variant": variant, "seed": seed, "return": score, "last": last}


def summarize(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each case and variant; each variant is compared with the first, which has no callback."""
    rows = []
    for case in result["settings"]:
        for variant in VARIANTS:
            values, base = _scores(result, case, variant), _scores(result, case, "without")
            row = {"case": case, "variant": variant, **stats.summarize_scores(values)}
            if variant != "without":
                row["difference"] = stats.difference(values, base, CASES[case].span)
            rows.append(row)
    return rows


def _scores(result: dict[str, Any], case: str, variant: str) -> list[float]:
    return [one["return"] for one in result["runs"] if (one["case"], one["variant"]) == (case, variant)]


def table(result: dict[str, Any]) -> str:
    """Return the summary as Markdown."""
    rows = []
    for row in result["summary"]:
        lasts = [
            one["last"] for one in result["runs"] if (one["case"], one["variant"]) == (row["case"], row["variant"])
        ]
        last = "; ".join(f"{name} {np.median([one[name] for one in lasts]):g}" for name in lasts[0])
        rows.append((row["case"], row["variant"], f"{row['median']:.0f}", f"{row['worst']:.0f}", compared(row), last))
    head = ("agent", "callback", "median return", "worst seed", "difference (95 %)", "last value, median")
    return markdown_table(head, rows)


def draw(result: dict[str, Any]) -> Any:
    """Return a figure with the score of every run."""
    from matplotlib.figure import Figure

    cases = list(result["settings"])
    figure = Figure(figsize=(4 * len(cases), 4), layout="constrained")
    panels = figure.subplots(1, len(cases), squeeze=False)
    for axes, case in zip(panels.flat, cases, strict=True):
        for position, variant in enumerate(VARIANTS):
            values = _scores(result, case, variant)
            axes.plot([position] * len(values), values, "o", alpha=0.5)
        axes.set_xticks(range(len(VARIANTS)), [name.strip("`").partition("=")[0] for name in VARIANTS], rotation=20)
        axes.set_title(case)
    panels.flat[0].set_ylabel("greedy return after training")
    return figure

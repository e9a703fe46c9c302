"""Prioritized against uniform sampling on the Blind Cliffwalk of Schaul et al. (2016), updates until it is solved.

As in their section 3.1 and appendix B.1: the memory holds every sequence of actions until it ends, in random order, one
of 2^n with a reward. Nothing is collected; the agent learns from the memory alone until the mean squared error of its
action values is below 10^-3. The discount is 1 - 1/n, values are linear in the one-hot state, and begin near zero.

Differs: it is DQN, with batches of 32, a target network (Polyak coefficient 0.9) and priorities fed back after every
8 updates; they have single transitions. SGD with rate 1 on the mean of 32 halves of squares moves by 1/32 of an error,
they by 1/4. Each action has a bias of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import noterl
from benchmarks import figures
from noterl.envs import BlindCliffwalk
from noterl.replay import Prioritized, Sampler, Uniform

SEEDS = 10
SIZES = (2, 4, 6, 8, 10, 12, 14)
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "uniform": Uniform,
    "prioritized": Prioritized,
    "prioritized, beta 0": lambda: Prioritized(beta=0.0),
}
SOLVED = 1e-3
LIMIT = 2_000_000
GROUP = 8
COLOURS = {"uniform": "tab:red", "prioritized": "tab:blue", "prioritized, beta 0": "tab:cyan"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of states")


class Learner:
    """An agent of one size with one sampler; it begins anew with each seed, so that it compiles once."""

    def __init__(self, n: int, sampler: Sampler) -> None:
        self.env, self.gamma = BlindCliffwalk(n), 1 - 1 / n
        self.truth = self.env.action_values(self.gamma)
        self.network = keras.Sequential([keras.Input((n,)), keras.layers.Dense(2)])
        self.agent = noterl.DQN(self.env, network=self.network, gamma=self.gamma, loss="squared", seed=0)
        transitions = 2 ** (n + 1) - 2
        self.agent.compile(
            keras.optimizers.SGD(1.0),
            replay=noterl.Replay(transitions, sampler=sampler),
            batch_size=min(32, transitions),
            target_update=0.9,
        )
        self.agent.build()

    def begin(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        shapes = [weight.shape for weight in self.network.get_weights()]
        self.network.set_weights([generator.normal(0, 0.1, shape) for shape in shapes])
        noterl.networks.copy(self.agent.q, self.agent.target_q, tau=1.0)
        self.agent.generators.reseed(seed)
        self.agent.replay.clear()
        for actions in generator.permutation(2**self.env.n).tolist():
            observation, _ = self.env.reset()
            ended = False
            while not ended:
                action = actions >> int(observation) & 1
                following, reward, ended, _, _ = self.env.step(action)
                self.agent.replay.add(0, observation, action, reward, following, ended, False)
                observation = following

    def error(self) -> float:
        kernel, bias = self.network.get_weights()
        return float(np.mean(np.square(kernel + bias - self.truth)))

    def learn(self) -> int:
        """Return after how many updates the values are right, looked at after each group."""
        agent, updates = self.agent, 0
        fields = agent.replay.feedback_fields
        while updates < LIMIT and self.error() >= SOLVED:
            drawn = agent.draw(GROUP)
            result = agent.run_updates(agent.gather(drawn), GROUP)
            if fields:
                values = {name: keras.ops.convert_to_numpy(result.feedback[name]) for name in fields}
                agent.replay.feedback(drawn, values)
            updates += GROUP
        return updates


def run(seeds: int, sizes: list[int]) -> dict[str, Any]:
    runs = []
    for n in sizes:
        learners = {name: Learner(n, make()) for name, make in SAMPLERS.items()}
        for seed in range(seeds):
            updates = {}
            for name, learner in learners.items():
                learner.begin(seed)
                updates[name] = learner.learn()
            assert len(learners["uniform"].agent.replay) == 2 ** (n + 1) - 2
            runs.append({"n": n, "seed": seed, "updates": updates})
    settings = {"batch_size": 32, "learning_rate": 1.0, "target_update": 0.9, "solved": SOLVED, "limit": LIMIT}
    return {"settings": settings, "summary": summarize(runs), "runs": runs}


def summarize(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for n in sorted({run["n"] for run in runs}):
        of_size = {name: [run["updates"][name] for run in runs if run["n"] == n] for name in SAMPLERS}
        row: dict[str, Any] = {"n": n, "transitions": 2 ** (n + 1) - 2}
        for name, updates in of_size.items():
            row[name] = {
                "median": float(np.median(updates)),
                "iqm": figures.interquartile_mean(updates),
                "worst": max(updates),
                "best": min(updates),
            }
        row["ratio"] = figures.ratio(of_size["uniform"], of_size["prioritized"])
        rows.append(row)
    return rows


def table(result: dict[str, Any]) -> str:
    head = [
        "n",
        "transitions",
        *(f"{name}: median / IQM / worst" for name in SAMPLERS),
        "uniform / prioritized",
        "90 %",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + " ---: |" * len(head)]
    for row in result["summary"]:
        cells = [str(row["n"]), f"{row['transitions']:,}"]
        cells += [" / ".join(f"{row[name][key]:,.0f}" for key in ("median", "iqm", "worst")) for name in SAMPLERS]
        ratio = row["ratio"]
        cells += [f"{ratio['ratio']:.2f}", f"{ratio['low']:.2f} to {ratio['high']:.2f}" if ratio["low"] else ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(["Updates until the mean squared error of the action values is below 0.001", "", *lines])


def draw(result: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4))
    axes = figure.subplots()
    rows = result["summary"]
    transitions = [row["transitions"] for row in rows]
    for name, colour in COLOURS.items():
        median, best, worst = (np.array([row[name][key] for row in rows]) for key in ("median", "best", "worst"))
        axes.errorbar(
            transitions, median, [median - best, worst - median], label=name, color=colour, marker="o", capsize=3
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="transitions in the memory (one of them earns the reward)",
        ylabel="updates until solved",
        title=f"Blind Cliffwalk, DQN: median, best and worst of {result['seeds']} seeds",
    )
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return figure

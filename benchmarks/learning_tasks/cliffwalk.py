"""Updates until the Blind Cliffwalk of Schaul et al. (2016) is solved, with prioritized and with uniform sampling.

As in section 3.1 and appendix B.1 of the paper, the memory holds the episodes of all 2^n action sequences in random
order; one of them earns a reward. The agent learns from this memory alone, until the mean squared error of its action
values is below 10^-3. The discount is 1 - 1/n. Action values are linear in the one-hot state and start near zero.

Differs: this is DQN with batches of 32, a target network (Polyak coefficient 0.9) and priorities fed back after every 8
updates; the paper updates on single transitions. An SGD step (rate 1, mean of 32 half squares) moves a value by 1/32 of
its error; the paper's by 1/4. Each action has its own bias.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import noterl
from benchmarks import stats
from benchmarks.blind_cliffwalk import BlindCliffwalk
from benchmarks.report import markdown_table, ratio
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
    """An agent for one number of states and one sampler; `reset` starts another seed without compiling again."""

    def __init__(self, n: int, sampler: Sampler) -> None:
        self.env, self.gamma = BlindCliffwalk(n), 1 - 1 / n
        self.truth = self.env.action_values(self.gamma)
        self.network = keras.Sequential([keras.Input((n,)), keras.layers.Dense(2)])
        self.agent = noterl.DQN(self.env, double=False, network=self.network, gamma=self.gamma, loss="squared", seed=0)
        transitions = 2 ** (n + 1) - 2
        self.agent.compile(
            keras.optimizers.SGD(1.0),
            replay=noterl.Replay(transitions, sampler=sampler),
            batch_size=min(32, transitions),
            target_update=0.9,
        )
        self.agent.build()

    def reset(self, seed: int) -> None:
        """Set weights, generators and memory for a seed."""
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
        """Return the mean squared error of the action values."""
        kernel, bias = self.network.get_weights()
        return float(np.mean(np.square(kernel + bias - self.truth)))

    def learn(self) -> int:
        """Return the number of updates until the error is below `SOLVED`, measured after each group."""
        agent, updates = self.agent, 0
        learner: Any = agent._parts.build()[0]
        fields = agent.replay.feedback_fields
        while updates < LIMIT and self.error() >= SOLVED:
            sample = learner.sample(GROUP)
            result = learner.update(learner.gather(sample), GROUP)
            if fields:
                values = {name: keras.ops.convert_to_numpy(result.feedback[name]) for name in fields}
                agent.replay.feedback(sample, values)
            updates += GROUP
        return updates


def run(seeds: int, sizes: list[int]) -> dict[str, Any]:
    runs = []
    for n in sizes:
        learners = {name: Learner(n, make()) for name, make in SAMPLERS.items()}
        for seed in range(seeds):
            updates = {}
            for name, learner in learners.items():
                learner.reset(seed)
                updates[name] = learner.learn()
            assert len(learners["uniform"].agent.replay) == 2 ** (n + 1) - 2
            runs.append({"n": n, "seed": seed, "updates": updates})
    settings = {"batch_size": 32, "learning_rate": 1.0, "target_update": 0.9, "solved": SOLVED, "limit": LIMIT}
    return {"settings": settings, "runs": runs}


def summarize(result: dict[str, Any]) -> list[dict[str, Any]]:
    runs, rows = result["runs"], []
    for n in sorted({run["n"] for run in runs}):
        of_size = {name: [run["updates"][name] for run in runs if run["n"] == n] for name in SAMPLERS}
        row: dict[str, Any] = {"n": n, "transitions": 2 ** (n + 1) - 2}
        for name, updates in of_size.items():
            row[name] = {
                "median": float(np.median(updates)),
                "iqm": stats.interquartile_mean(updates),
                "worst": max(updates),
                "best": min(updates),
            }
        row["ratio"] = stats.paired_ratio(of_size["uniform"], of_size["prioritized"])
        rows.append(row)
    return rows


def table(result: dict[str, Any]) -> str:
    columns = (f"{name}: median / IQM / worst" for name in SAMPLERS)
    head, rows = ("n", "transitions", *columns, "uniform / prioritized (90 % interval)"), []
    for row in result["summary"]:
        cells = [str(row["n"]), f"{row['transitions']:,}"]
        cells += [" / ".join(f"{row[name][key]:,.0f}" for key in ("median", "iqm", "worst")) for name in SAMPLERS]
        rows.append((*cells, ratio(row["ratio"])))
    title = "Updates until the mean squared error of the action values is below 0.001"
    return f"{title}\n\n{markdown_table(head, rows)}"


def draw(result: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4))
    axes = figure.subplots()
    rows = result["summary"]
    transitions = [row["transitions"] for row in rows]
    for name, color in COLOURS.items():
        median, best, worst = (np.array([row[name][key] for row in rows]) for key in ("median", "best", "worst"))
        axes.errorbar(
            transitions, median, [median - best, worst - median], label=name, color=color, marker="o", capsize=3
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="transitions in the memory (one earns the reward)",
        ylabel="updates until solved",
        title=f"Blind Cliffwalk, DQN: median, best and worst of {result['seeds']} seeds",
    )
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return figure

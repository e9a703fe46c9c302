"""DQN on CartPole-v1, with and without each callback that adapts to effective sample size or gradient noise.

All variants have a prioritized memory and the same seeds. Two scores of each run are compared: the mean return of the
greedy policy over 20 episodes after training, and the mean return of all episodes of training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import noterl
from benchmarks import stats
from benchmarks.report import difference, markdown_table
from noterl.callbacks import AdaBatch, Adapt, ESSAdapt, ESSWindow, Rate, Scale
from noterl.policies import EpsGreedyQPolicy
from noterl.replay import Prioritized

SEEDS = 5
STEPS, EPISODES, POINTS = 15_000, 20, 60
SPAN = 500.0  # highest less lowest return
SETTINGS = {
    "learning_rate": 1e-3,
    "eps": 0.1,
    "capacity": 10_000,
    "batch_size": 64,
    "update_every": 4,
    "updates": 4,
    "target_update": 0.01,
    "hidden": [64, 64],
}


def batch() -> Scale:
    return Scale(min=32, max=128, align=32)


def lr() -> Rate:
    return Rate(2e-4, 3e-4, 3e-3)


# The baseline comes first. Targets: half of the memory (ESSAdapt), Note_rl's (AdaBatch by variance), a batch as large
# as its noise scale (AdaBatch by the simple scale).
VARIANTS: dict[str, Callable[[], list[Any]]] = {
    "without": list,
    "ESSAdapt, itself": lambda: [ESSAdapt(every=500, unit="steps", batch=batch(), lr=lr())],
    "ESSAdapt, target": lambda: [ESSAdapt(target_ess=5_000, every=500, unit="steps", batch=batch(), lr=lr())],
    "AdaBatch, variance": lambda: [AdaBatch(7, every=500, unit="steps", batch=batch(), lr=lr())],
    "AdaBatch, simple": lambda: [AdaBatch(7, 1.0, scale="simple", every=500, unit="steps", batch=batch())],
    "Adapt, exploration": lambda: [
        Adapt(target_noise=1e-3, num_samples=7, every=500, unit="steps", eps=Rate(0.02, 0.02, 0.2))
    ],
    "ESSWindow": lambda: [ESSWindow(2.0, mode="target", min_size=2_000, every=500, unit="steps")],
}
ADAPTED = ("batch", "lr", "eps", "window")


def train(name: str, seed: int) -> dict[str, Any]:
    agent = noterl.DQN("CartPole-v1", double=True, hidden=SETTINGS["hidden"], seed=seed)
    agent.compile(
        keras.optimizers.Adam(SETTINGS["learning_rate"]),
        policy=EpsGreedyQPolicy(SETTINGS["eps"]),
        replay=noterl.Replay(SETTINGS["capacity"], sampler=Prioritized(beta_steps=STEPS)),
        batch_size=SETTINGS["batch_size"],
        learning_starts=500,
        update_every=SETTINGS["update_every"],
        updates=SETTINGS["updates"],
        target_update=SETTINGS["target_update"],
    )
    history = agent.fit(steps=STEPS, callbacks=VARIANTS[name](), verbose=0).history
    greedy = agent.evaluate(episodes=EPISODES, num_envs=EPISODES)["reward_mean"]
    agent.close()
    smooth = [float(np.mean(history["reward"][max(0, end - 10) : end])) for end in range(1, len(history["reward"]) + 1)]
    print(f"{name}, seed {seed}: {greedy:.0f}, in training {np.mean(history['reward']):.0f}", flush=True)
    return {
        "variant": name,
        "seed": seed,
        "return": float(greedy),
        "in_training": float(np.mean(history["reward"])),
        "curve": np.interp(points(), history["steps"], smooth).round(1).tolist(),
        "last": {one: round(float(history[one][-1]), 5) for one in ADAPTED if one in history},
    }


def points() -> np.ndarray:
    return np.linspace(0, STEPS, POINTS + 1)[1:]


def run(seeds: int) -> dict[str, Any]:
    runs = [train(name, seed) for seed in range(seeds) for name in VARIANTS]
    return {"settings": {**SETTINGS, "steps": STEPS}, "runs": runs}


def summarize(result: dict[str, Any]) -> list[dict[str, Any]]:
    runs = result["runs"]
    rows, base = [], [run for run in runs if run["variant"] == "without"]
    for name in VARIANTS:
        own = [run for run in runs if run["variant"] == name]
        row: dict[str, Any] = {"variant": name}
        for key in ("return", "in_training"):
            values = [run[key] for run in own]
            row[key] = {"median": float(np.median(values)), "worst": min(values), "best": max(values)}
            if name != "without":
                row[key]["difference"] = stats.difference(values, [run[key] for run in base], SPAN)
        row["last"] = {one: [run["last"][one] for run in own] for one in own[0]["last"]}
        rows.append(row)
    return rows


def table(result: dict[str, Any]) -> str:
    head = ("callback", "return: median / worst / best", "difference (95 %)", "in training: median")
    rows = []
    for row in result["summary"]:
        cells = [row["variant"], " / ".join(f"{row['return'][key]:.0f}" for key in ("median", "worst", "best"))]
        cells += [compared(row["return"]), f"{row['in_training']['median']:.0f}", compared(row["in_training"])]
        cells.append("; ".join(f"{one} {', '.join(f'{value:g}' for value in row['last'][one])}" for one in row["last"]))
        rows.append(cells)
    return markdown_table((*head, "difference (95 %)", "last values, by seed"), rows)


def compared(scores: dict[str, Any]) -> str:
    """Return the difference from the baseline and its outcome; nothing for the baseline itself."""
    found = scores.get("difference")
    return "" if found is None else f"{difference(found, digits=0)}: {found['outcome']}"


def draw(result: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    names = [name for name in VARIANTS if name != "without"]
    figure = Figure(figsize=(10, 6), layout="constrained")
    panels = figure.subplots(2, 3, sharex=True, sharey=True)
    for axes, name in zip(panels.flat, names, strict=True):
        for variant, color in (("without", "tab:gray"), (name, "tab:blue")):
            curves = np.array([run["curve"] for run in result["runs"] if run["variant"] == variant])
            low, median, high = np.percentile(curves, [25, 50, 75], axis=0)
            axes.plot(points(), median, color=color, label=variant)
            axes.fill_between(points(), low, high, color=color, alpha=0.2, linewidth=0)
        axes.set_xticks(range(0, STEPS + 1, 5_000))
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left")
    figure.supxlabel("environment steps")
    figure.supylabel("mean return of 10 episodes")
    figure.suptitle(f"DQN on CartPole-v1: median and quartiles of {result['seeds']} seeds")
    return figure

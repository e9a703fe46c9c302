"""Adapting to the effective sample size and to gradient noise, with and without, on a short CartPole-v1.

A DQN with a prioritized memory trains alone, and with each of the adapting callbacks, from the same seeds. Each run is
judged by the greedy policy after training, over 20 episodes, and by the mean return of all episodes of training, which
also says how soon it learned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import noterl
from benchmarks import figures
from noterl.callbacks import AdaBatch, Adapt, ESSAdapt, ESSWindow, Rate, Scale
from noterl.policies import EpsGreedyQPolicy
from noterl.replay import Prioritized

SEEDS = 5
STEPS, EPISODES, POINTS = 15_000, 20, 60
SPAN = 500.0  # of returns
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


# The first is what the others are compared with. Targets: half the memory; Note_rl's; a batch as large as its noise.
VARIANTS: dict[str, Callable[[], list[Any]]] = {
    "without": list,
    "ESSAdapt, itself": lambda: [ESSAdapt(every=500, unit="steps", batch=batch(), lr=lr())],
    "ESSAdapt, target": lambda: [ESSAdapt(target_ess=5_000, every=500, unit="steps", batch=batch(), lr=lr())],
    "AdaBatch, variance": lambda: [AdaBatch(7, every=500, unit="steps", batch=batch(), lr=lr())],
    "AdaBatch, simple": lambda: [AdaBatch(7, 1.0, scale="simple", every=500, unit="steps", batch=batch())],
    "Adapt, exploration": lambda: [
        Adapt(target_noise=1e-3, num_samples=7, every=500, unit="steps", eps=Rate(0.02, 0.02, 0.2))
    ],
    "ESSWindow": lambda: [ESSWindow(2.0, min_size=2_000, every=500, unit="steps")],
}
ADJUSTED = ("batch", "lr", "eps", "window")


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
    found = agent.evaluate(episodes=EPISODES, num_envs=EPISODES)["reward_mean"]
    agent.close()
    smooth = [float(np.mean(history["reward"][max(0, end - 10) : end])) for end in range(1, len(history["reward"]) + 1)]
    print(f"{name}, seed {seed}: {found:.0f}, in training {np.mean(history['reward']):.0f}", flush=True)
    return {
        "variant": name,
        "seed": seed,
        "return": float(found),
        "in_training": float(np.mean(history["reward"])),
        "curve": np.interp(points(), history["steps"], smooth).round(1).tolist(),
        "last": {one: round(float(history[one][-1]), 5) for one in ADJUSTED if one in history},
    }


def points() -> np.ndarray:
    return np.linspace(0, STEPS, POINTS + 1)[1:]


def run(seeds: int) -> dict[str, Any]:
    runs = [train(name, seed) for seed in range(seeds) for name in VARIANTS]
    return {"settings": {**SETTINGS, "steps": STEPS}, "summary": summarize(runs), "runs": runs}


def summarize(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows, base = [], [run for run in runs if run["variant"] == "without"]
    for name in VARIANTS:
        own = [run for run in runs if run["variant"] == name]
        row: dict[str, Any] = {"variant": name}
        for key in ("return", "in_training"):
            values = [run[key] for run in own]
            row[key] = {"median": float(np.median(values)), "worst": min(values), "best": max(values)}
            if name != "without":
                row[key]["difference"] = figures.difference(values, [run[key] for run in base], SPAN)
        row["last"] = {one: [run["last"][one] for run in own] for one in own[0]["last"]}
        rows.append(row)
    return rows


def table(result: dict[str, Any]) -> str:
    lines = [
        "| callback | return: median / worst / best | difference, 95 % | in training: median | difference, 95 % | "
        "ended with |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in result["summary"]:
        cells = [row["variant"], " / ".join(f"{row['return'][key]:.0f}" for key in ("median", "worst", "best"))]
        cells += [compared(row["return"]), f"{row['in_training']['median']:.0f}", compared(row["in_training"])]
        cells.append("; ".join(f"{one} {', '.join(f'{value:g}' for value in row['last'][one])}" for one in row["last"]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def compared(of: dict[str, Any]) -> str:
    if "difference" not in of:
        return ""
    found = of["difference"]
    if found["low"] is None:
        return f"{found['difference']:+.0f}, {found['verdict']}"
    verdict = "worse" if found["high"] < 0 else found["verdict"]
    return f"{found['difference']:+.0f} ({found['low']:+.0f} to {found['high']:+.0f}), {verdict}"


def draw(result: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    names = [name for name in VARIANTS if name != "without"]
    figure = Figure(figsize=(10, 6), layout="constrained")
    panels = figure.subplots(2, 3, sharex=True, sharey=True)
    for axes, name in zip(panels.flat, names, strict=True):
        for variant, colour in (("without", "tab:gray"), (name, "tab:blue")):
            curves = np.array([run["curve"] for run in result["runs"] if run["variant"] == variant])
            low, median, high = np.percentile(curves, [25, 50, 75], axis=0)
            axes.plot(points(), median, color=colour, label=variant)
            axes.fill_between(points(), low, high, color=colour, alpha=0.2, linewidth=0)
        axes.set_xticks(range(0, STEPS + 1, 5_000))
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left")
    figure.supxlabel("environment steps")
    figure.supylabel("mean return of 10 episodes")
    figure.suptitle(f"DQN on CartPole-v1: median and quartiles of {result['seeds']} seeds")
    return figure

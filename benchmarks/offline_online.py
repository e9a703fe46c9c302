"""Train with a data set and then, or at the same time, in the environment.

    KERAS_BACKEND=jax python -m benchmarks.offline_online --rows RLPD:hopper --folder build/offline_data

IQL learns 50,000 updates of the set pendulum-medium of `offline_data.py`. It continues in the environment, where it
acts by its policy from the first step, and 95 % of each batch remain rows of the set. In the paper's replay memory,
which holds the set and the new transitions, the share is similar.

RLPD is SAC with ten layer-normalized critics, four updates of the critics and one of the actor per step, and half of
each batch from a tenth of the episodes of a medium set. On Pendulum, its learning rate falls to 0. SAC with its
defaults trains beside it, without data.

At ten points of a run, the policy plays 20 episodes, and 100 at the end. Each run is stored when it ends, in
benchmarks/results/offline/offline_online.json; a stored run is not repeated.
"""

from __future__ import annotations

import argparse
import datetime
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import noterl  # before Keras, so that it chooses the backend
from benchmarks import stats, study
from benchmarks.evaluation import EPISODES, evaluate, versions
from benchmarks.offline import environment_of, load, score
from benchmarks.offline_data import FOLDER, PACKAGES
from benchmarks.processes import RESULTS, machine
from benchmarks.report import offline_online_table
from noterl.schedules import Linear

STORED = RESULTS / "offline" / "offline_online.json"
POINTS = 10
POINT_EPISODES = 20
OFFLINE_UPDATES = 50_000
# Agent and environment, with the number of seeds and of steps in the environment.
ROWS = {
    "IQL:pendulum": (5, 20_000),
    **{f"{agent}:pendulum": (5, 10_000) for agent in ("SAC", "RLPD")},
    **{f"{agent}:hopper": (3, 30_000) for agent in ("SAC", "RLPD")},
}
RLPD: dict[str, Any] = {"critics": 10, "critics_in_target": 2, "layer_norm": True, "policy_delay": 4}
SPANS = {"pendulum": 1_700.0, "hopper": 4_000.0}


def agent_of(kind: str, name: str, seed: int) -> tuple[noterl.Agent, dict[str, Any]]:
    """Return a compiled agent, and the arguments of its `fit` beside the steps."""
    if kind == "IQL":
        agent: noterl.Agent = noterl.IQL(environment_of(name), seed=seed)
        agent.compile(learning_starts=0)
        return agent, {"dataset_share": 0.95}
    if kind == "SAC":
        agent = noterl.SAC(environment_of(name), seed=seed)
        agent.compile()
        return agent, {}
    agent = noterl.SAC(environment_of(name), seed=seed, **RLPD)
    # On Pendulum, RLPD is near the optimum after 2,000 steps. With a constant rate, some later policies fall.
    rate = Linear(3e-4, 0.0, ROWS["RLPD:pendulum"][1]) if name.startswith("pendulum") else 3e-4
    agent.compile(updates=4, optimizer=rate)
    return agent, {"dataset_share": 0.5}


def train(row: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train one agent and return its run."""
    kind, environment = row.split(":")
    name, steps = f"{environment}-medium", ROWS[row][1]
    agent, arguments = agent_of(kind, name, seed)
    run: dict[str, Any] = {"row": row, "seed": seed, "steps": steps}
    begun = time.perf_counter()
    if kind == "IQL":
        arguments["dataset"] = load(folder, name)
        agent.fit(dataset=arguments["dataset"], updates=OFFLINE_UPDATES, updates_per_epoch=1_000, verbose=0)
        run["offline score"] = score(evaluate(agent.act, environment_of(name), POINT_EPISODES))
    elif kind == "RLPD":
        arguments["dataset"] = load(folder, name).split(0.1)[0]
        run["data"] = len(arguments["dataset"])
    points = []
    for _ in range(POINTS):
        agent.fit(steps=steps // POINTS, verbose=0, **arguments)
        points.append(float(np.mean(evaluate(agent.act, environment_of(name), POINT_EPISODES))))
    if environment == "pendulum":
        run["scores"] = [score([point]) for point in points]
    return {
        **run,
        "seconds": time.perf_counter() - begun,
        "points": points,
        "returns": evaluate(agent.act, environment_of(name), EPISODES),
        "backend": keras.backend.backend(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(PACKAGES),
    }


def summarize(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a summary of each row: of IQL, how far the mean score falls; of RLPD, its comparisons with SAC.

    During training, the mean of the ten points of a run counts: the policies of both agents at the same steps.
    """
    own = {row: [run for run in runs if run["row"] == row] for row in ROWS}
    means = {row: [float(np.mean(run["returns"])) for run in of_row] for row, of_row in own.items()}
    curves = {row: [float(np.mean(run["points"])) for run in of_row] for row, of_row in own.items()}
    found = []
    for row in (row for row in ROWS if own[row]):
        kind, environment = row.split(":")
        line = {"row": row, "seeds": len(own[row]), "steps": ROWS[row][1], "median": float(np.median(means[row]))}
        line["worst"] = min(means[row])
        if kind == "IQL":
            offline = float(np.mean([run["offline score"] for run in own[row]]))
            lowest = float(np.mean([run["scores"] for run in own[row]], axis=0).min())
            line |= {"offline score": offline, "lowest score": lowest, "met": lowest >= offline - 0.1}
        elif kind == "RLPD" and means[f"SAC:{environment}"]:
            for when, values in (("during training", curves), ("at the end", means)):
                line[when] = stats.difference(
                    values[row], values[f"SAC:{environment}"], SPANS[environment], min_seeds=ROWS[row][0]
                )
        found.append(line)
    return found


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the sets")
    arguments = parser.parse_args(words)

    def train_one(key: tuple[str, int]) -> tuple[dict[str, Any], str]:
        run = train(*key, arguments.folder)
        return run, f"{key[0]} seed {key[1]}: {np.mean(run['returns']):.1f} in {run['seconds']:.0f} s"

    result = study.complete(
        study.stored_runs(STORED),
        [(row, seed) for row in arguments.rows for seed in range(ROWS[row][0])],
        key_of=lambda run: (run["row"], run["seed"]),
        train=train_one,
        result_of=lambda runs: {"summary": summarize(runs), "runs": runs},
        path=STORED,
    )
    print(offline_online_table(result))


if __name__ == "__main__":
    main()

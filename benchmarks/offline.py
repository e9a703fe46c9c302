"""Train the offline agents on the sets of `offline_data.py`, and compare their returns with the sets' returns.

    KERAS_BACKEND=jax python -m benchmarks.offline --rows TD3BC:hopper-medium --folder build/offline_data

A row is an agent on a set. For each seed, the policy after the last update plays 100 episodes. Scores of Pendulum are
normalized: 0 is a random policy, 1 the mean return of the expert's set. Each run is stored when it ends, in
benchmarks/results/offline/offline.json; a stored run is not repeated.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np

import noterl  # before Keras, so that it chooses the backend
from benchmarks import stats, study
from benchmarks.evaluation import evaluate, versions
from benchmarks.offline_data import ENVIRONMENTS, FOLDER, PACKAGES, digest
from benchmarks.offline_data import STORED as SETS
from benchmarks.processes import RESULTS, machine
from benchmarks.report import offline_table
from noterl.schedules import Linear

STORED = RESULTS / "offline" / "offline.json"
CONTINUOUS = ("pendulum-medium", "pendulum-expert", "hopper-medium", "hopper-medium-replay")
# The sets have a tenth of the rows of D4RL's, so the policy must stay nearer to the data than in the papers. These were
# chosen on hopper-medium, with seeds from 10 on: the factor of the critic in TD3BC, the factor of the advantage in IQL,
# and ReBRAC's settings for this set. ReBRAC's settings for hopper-medium-replay are the paper's.
ALPHA = 1.0
TEMPERATURE = 0.3
# The weights of actor and critic, and the first learning rate.
REBRAC = {"hopper-medium": (1.0, 0.01, 3e-4), "hopper-medium-replay": (0.05, 0.5, 1e-3)}
# Agent and set, with the number of seeds.
ROWS = {
    **{f"{agent}:{name}": 5 for name in CONTINUOUS for agent in ("TD3BC", "IQL")},
    **{f"ReBRAC:{name}": 3 for name in REBRAC},
    **{f"{agent}:cartpole": 5 for agent in ("IQL", "CQL")},
}


def environment_of(name: str) -> str:
    """Return the environment's id of a set."""
    return ENVIRONMENTS[name.split("-")[0]]


def make(agent: str, name: str, seed: int, updates: int) -> noterl.Agent:
    """Return a compiled agent for a set and a number of updates, with its defaults except for what a comment explains.

    For Hopper, whose policies change much from update to update, learning rates fall to 0, as that of the actor does in
    the paper of IQL.
    """
    arguments: dict[str, Any] = {}
    settings: dict[str, Any] = {"optimizer": Linear(3e-4, 0.0, updates)} if name.startswith("hopper") else {}
    if agent == "ReBRAC":
        actor_beta, critic_beta, rate = REBRAC[name]
        arguments = {"actor_beta": actor_beta, "critic_beta": critic_beta}
        settings = {"optimizer": Linear(rate, 0.0, updates), "batch_size": 256}
    elif agent == "TD3BC":
        # Without layer normalization, the values of pendulum-expert, whose actions are all alike, diverge.
        arguments = {"alpha": ALPHA, "layer_norm": True}
    elif agent == "IQL" and name.startswith("hopper"):
        arguments = {"temperature": TEMPERATURE}
    elif agent == "CQL":
        arguments = {"alpha": 0.1}  # each step has a reward of 1, to which the default of 1 is too large
    elif name == "cartpole":
        # The end of an episode is up to 500 steps away, and the advantages of actions are small.
        arguments = {"hidden": (64, 64), "expectile": 0.9, "temperature": 10.0}
        memory = noterl.Replay(100_000, n_step=3)
        settings = {"optimizer": 1e-3, "target_update": 0.02, "batch_size": 128, "replay": memory}
    made: noterl.Agent = getattr(noterl, agent)(environment_of(name), seed=seed, **arguments)
    made.compile(**settings)
    return made


@functools.cache
def random_return(environment: str) -> float:
    """Return the mean return of random actions over 100 episodes."""
    env = gymnasium.make(environment)
    env.action_space.seed(0)
    actions = evaluate(lambda rows: np.stack([env.action_space.sample() for _ in rows]), environment)
    return float(np.mean(actions))


def load(folder: Path, name: str) -> noterl.Dataset:
    """Return a set, after its comparison with the stored hashes of all processors."""
    data = noterl.Dataset.load(folder / f"{name}.noterl")
    if (name, digest(data)) not in {(run["name"], run["sha256"]) for run in json.loads(SETS.read_text())["runs"]}:
        raise ValueError(f"the set {name} in {folder} is none of {SETS}; run benchmarks.offline_data")
    return data


@functools.cache
def expert_return() -> float:
    """Return the mean return of the first processor's set pendulum-expert, so that all scores have one scale."""
    runs = json.loads(SETS.read_text())["runs"]
    return next(float(run["return_mean"]) for run in runs if run["name"] == "pendulum-expert")


def score(returns: Sequence[float]) -> float:
    """Return the normalized score of a mean return in Pendulum."""
    low = random_return(ENVIRONMENTS["pendulum"])
    return (float(np.mean(returns)) - low) / (expert_return() - low)


def train(row: str, seed: int, folder: Path, updates: int) -> dict[str, Any]:
    """Train one agent and return its run."""
    agent_name, name = row.split(":")
    data = load(folder, name)
    agent = make(agent_name, name, seed, updates)
    begun = time.perf_counter()
    agent.fit(dataset=data, updates=updates, updates_per_epoch=1_000, verbose=0)
    seconds = time.perf_counter() - begun
    returns = evaluate(agent.act, environment_of(name))
    mean = float(data.returns[:-1].mean())
    run = {"row": row, "seed": seed, "updates": updates, "seconds": seconds, "data": mean}
    if name.startswith("pendulum"):
        run["score"] = score(returns)
    return {
        **run,
        "returns": returns,
        "backend": keras.backend.backend(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(PACKAGES),
    }


def is_met(run: dict[str, Any]) -> bool:
    """Return whether a run has the return that the issue asks for."""
    if run["row"].endswith("expert"):
        return bool(run["score"] >= 0.9)
    return bool(np.mean(run["returns"]) > (450 if run["row"].endswith("cartpole") else run["data"]))


def summarize(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a summary of each row."""
    found = []
    for row in sorted({run["row"] for run in runs}, key=list(ROWS).index):
        own = [run for run in runs if run["row"] == row]
        means = [float(np.mean(run["returns"])) for run in own]
        scores = [run["score"] for run in own if "score" in run]
        found.append(
            {
                "row": row,
                "seeds": len(own),
                "data": own[0]["data"],
                **stats.summarize_scores(means),
                "worst score": min(scores) if scores else None,
                "met": sum(map(is_met, own)),
            }
        )
    return found


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", type=int, help="fewer seeds than those of the table")
    parser.add_argument("--updates", type=int, help="by default 50,000, or 20,000 for CartPole; others are not stored")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the sets")
    arguments = parser.parse_args(words)

    def updates_of(row: str) -> int:
        return arguments.updates or (20_000 if row.endswith("cartpole") else 50_000)

    def train_one(key: tuple[str, int]) -> tuple[dict[str, Any], str]:
        run = train(*key, arguments.folder, updates_of(key[0]))
        return run, f"{key[0]} seed {key[1]}: {np.mean(run['returns']):.1f} in {run['seconds']:.0f} s"

    path = None if arguments.updates else STORED
    seeds = {row: min(ROWS[row], arguments.seeds or ROWS[row]) for row in arguments.rows}
    # All rows of a seed before those of the next one.
    wanted = [(row, seed) for seed in range(max(seeds.values())) for row in seeds if seed < seeds[row]]
    result = study.complete(
        study.stored_runs(path),
        wanted,
        key_of=lambda run: (run["row"], run["seed"]),
        train=train_one,
        result_of=lambda runs: {"summary": summarize(runs), "runs": runs},
        path=path,
    )
    print(offline_table(result))


if __name__ == "__main__":
    main()

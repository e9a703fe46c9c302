"""Train an agent on Pong with the settings that xagents published, until the mean return of 100 games is 18.

    KERAS_BACKEND=tensorflow .venv/bin/python -m benchmarks.pong ppo

The settings are those of the commands in xagents' README: 16 lanes (DQN: 3), images of 84 by 84 pixels without a stack
of frames, and the defaults of its command line. A run takes hours. A backup is written each minute in
benchmarks/unfinished/, so that a run that was stopped goes on when the same command runs again, and a run that ended
below the goal when the command runs again with more `--steps`. A run that reached the goal is stored in
benchmarks/results/pong/ with the return of each game.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

import noterl
from benchmarks.evaluation import versions
from benchmarks.processes import RESULTS, ROOT, machine, store
from noterl.callbacks import BackupAndRestore, EarlyStopping
from noterl.policies import LinearEpsGreedyPolicy

FOLDER = RESULTS / "pong"
UNFINISHED = ROOT / "benchmarks" / "unfinished"
TRPO_NETWORK = Path(__file__).with_name("pong_trpo.toml")
GOAL = 18.0
GAMES = 100
# xagents' own runs ended after at most 6.1 million steps.
STEPS = 10_000_000
EVALUATED_GAMES = 20
PACKAGES = ("noterl", "numpy", "gymnasium", "ale-py", "keras", "torch", "jax", "tensorflow-cpu")


@dataclass(frozen=True)
class Pong:
    """One of the agents.

    Attributes:
        make: seed -> the compiled agent.
        published: the mean return and the steps of xagents' run, read from the figure in its README.
        num_envs: lanes.
    """

    make: Callable[[int], Any]
    published: str
    num_envs: int = 16


def pong(max_pool: bool = False) -> Any:
    """Return the game as xagents prepares it; `max_pool` is its flag --max-frame."""
    return noterl.envs.Atari(
        "Pong", stack=1, max_pool=max_pool, noop_max=0, fire_on_reset=False, clip_rewards=False, threads=1
    )


def a2c(seed: int) -> Any:
    agent = noterl.A2C(pong(), rollout_steps=5, gae_lambda=1.0, entropy_coefficient=0.01, seed=seed)
    agent.compile(keras.optimizers.Adam(7e-4, global_clipnorm=0.5))
    return agent


def acer(seed: int) -> Any:
    # xagents' memory holds 312 rollouts of 20 steps for each lane, and is used after 31 of them.
    agent = noterl.ACER(pong(), rollout_steps=20, replay_ratio=4.0, replay_starts=9_920, seed=seed)
    agent.compile(keras.optimizers.Adam(7e-4, global_clipnorm=10.0), replay=noterl.Replay(99_840), target_update=0.01)
    return agent


def dqn(seed: int) -> Any:
    agent = noterl.DQN(pong(max_pool=True), double=False, loss="squared", seed=seed)
    agent.compile(
        keras.optimizers.Adam(1e-4),
        policy=LinearEpsGreedyPolicy(1.0, 0.02, steps=150_000),
        replay=noterl.Replay(50_000),
        batch_size=30,
        learning_starts=10_000,
        update_every=3,
        target_update=1_000,
    )
    return agent


def ppo(seed: int) -> Any:
    agent = noterl.PPO(
        pong(),
        rollout_steps=128,
        epochs=4,
        clip=0.1,
        value_clip=0.1,
        entropy_coefficient=0.01,
        value_coefficient=0.25,  # xagents' 0.5 weights half of the squared error
        seed=seed,
    )
    agent.compile(keras.optimizers.Adam(7e-4, global_clipnorm=0.5), batch_size=512)
    return agent


def trpo(seed: int) -> Any:
    agent = noterl.TRPO(
        pong(),
        rollout_steps=512,
        gae_lambda=1.0,
        epochs=12,
        target_kl=0.001,
        kl_tolerance=1.5,
        cg_iterations=10,
        cg_damping=0.001,
        line_search_shrink=0.5,
        fisher_stride=5,
        network=TRPO_NETWORK,
        seed=seed,
    )
    agent.compile(keras.optimizers.Adam(1e-3), batch_size=2_048)
    return agent


AGENTS = {
    "a2c": Pong(a2c, "18.3 after 5.5M steps"),
    "acer": Pong(acer, "19 after 1.85M steps"),
    "dqn": Pong(dqn, "18.5 after 1.4M steps", num_envs=3),
    "ppo": Pong(ppo, "19 after 1.1M steps"),
    "trpo": Pong(trpo, "18.9 after 6.1M steps"),
}


def train(name: str, seed: int, steps: int) -> dict[str, Any]:
    """Train until the mean return of the last games is the goal, or for `steps` steps, and return the run."""
    UNFINISHED.mkdir(parents=True, exist_ok=True)
    backup = UNFINISHED / f"pong-{name}-{seed}.noterl"
    agent = AGENTS[name].make(seed)
    goal_reached = EarlyStopping(GAMES, GOAL)
    history = agent.fit(
        steps=steps, num_envs=AGENTS[name].num_envs, callbacks=[goal_reached, BackupAndRestore(backup)], verbose=0
    )
    columns = history.history
    mean_return = float(np.mean(columns["reward"][-GAMES:]))
    evaluation = agent.evaluate(episodes=EVALUATED_GAMES, seed=1_000)
    result = {
        "seed": seed,
        "stop_reason": history.stop_reason,
        "mean_return": mean_return,
        "evaluation": evaluation["returns"].tolist(),
        "hours": round(columns["time"][-1] / 3600, 2),
        "machine": machine(),
        "curve": {
            "steps": columns["steps"],
            "reward": columns["reward"],
            "hours": [round(seconds / 3600, 3) for seconds in columns["time"]],
        },
    }
    agent.close()
    if mean_return >= GOAL:
        backup.unlink()
    return result


def draw(result: dict[str, Any]) -> Any:
    """Return a figure of the returns of each run: of each game, and the mean of the last games."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for run in result["runs"]:
        steps, returns = (np.asarray(run["curve"][name]) for name in ("steps", "reward"))
        games = min(GAMES, len(returns))
        means = np.convolve(returns, np.ones(games) / games, "valid")
        axes.plot(steps, returns, alpha=0.25, linewidth=0.8, label="each game")
        axes.plot(steps[games - 1 :], means, linewidth=2, label=f"mean of {games} games")
    axes.axhline(result["goal"], color="tab:gray", linestyle=":", label="goal")
    axes.set(xlabel="environment steps", ylabel="return", title=result["task"])
    axes.legend()
    axes.grid(alpha=0.3)
    return figure


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], prog="pong.py")
    parser.add_argument("agent", choices=AGENTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help="environment steps after which the run ends")
    arguments = parser.parse_args(words)
    name = arguments.agent
    run = train(name, arguments.seed, arguments.steps)
    result = {
        "task": f"pong-{name}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "backend": keras.backend.backend(),
        "source": "the commands in the README of xagents",
        "published": AGENTS[name].published,
        "goal": GOAL,
        "versions": versions(PACKAGES),
        "runs": [run],
    }
    print(f"{name}: {run['mean_return']:.1f} after {run['curve']['steps'][-1]} steps and {run['hours']} hours")
    if run["mean_return"] >= GOAL:
        store(result, FOLDER / f"{name}.json")
        print(f"stored in {FOLDER}")


if __name__ == "__main__":
    main()

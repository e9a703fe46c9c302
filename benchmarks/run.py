"""One training run of noterl on the backend of KERAS_BACKEND: `python -m benchmarks.run TASK SEED STEPS [POINTS]`.

If JIT_COMPILE is 1, the agent is compiled with `jit_compile=True` instead of "auto". With POINTS, the run is one of
`learning.py`: the agent is evaluated that many times during training.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import numpy as np

import noterl
from benchmarks import minatar
from benchmarks.evaluation import FIRST_SEED, Clock, evaluate, num_evaluation_episodes, print_json, versions
from benchmarks.processes import ROOT
from benchmarks.tasks import TASKS, Task
from noterl import callbacks, envs, noise
from noterl.policies import LinearEpsGreedyPolicy
from noterl.replay import Hindsight, Prioritized, RatioScore
from noterl.schedules import Linear

PACKAGES = ("numpy", "gymnasium", "keras", "tensorflow", "tensorflow-cpu", "jax", "torch", "Box2D", "mujoco")
# Settings that are constructor arguments of several algorithms.
CONSTRUCTOR = (
    *("gamma", "gae_lambda", "rollout_steps", "epochs", "entropy_coefficient"),
    *("normalize_observation", "normalize_reward"),
    *("target_kl", "cg_iterations", "cg_damping", "line_search_steps", "line_search_shrink", "fisher_stride"),
    *("value_coefficient", "replay_ratio", "replay_starts", "truncation", "trust_region"),
)
# Environments of JAX, in which the JAX backend trains on the device.
ON_DEVICE = {"MinAtar/Breakout": minatar.breakout, "functional_cartpole": envs.functional_cartpole}
SCHEDULE = ("batch_size", "learning_starts", "update_every", "updates", "target_update", "precision")


class UpdateClock(noterl.Callback):
    """Passes the number of steps to the clock at the end of each episode."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_episode_end(self, episode: int, logs: dict[str, Any]) -> None:
        self.clock.tick(logs["steps"])


def environment(task: Task) -> Any:
    """Return the `env` argument: an id, a class of `noterl.envs`, or a functional environment."""
    if task.environment in ON_DEVICE:
        return ON_DEVICE[task.environment]()
    return getattr(envs, task.environment, task.environment)


def jit_compile() -> bool | str:
    return True if os.environ.get("JIT_COMPILE") == "1" else "auto"


def select(names: tuple[str, ...], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of these names, where the task has them."""
    return {name: settings[name] for name in names if name in settings}


def dqn(task: Task, seed: int, steps: int) -> noterl.Agent:
    settings = task.settings
    agent = noterl.DQN(environment(task), double=False, hidden=settings["hidden"], gamma=settings["gamma"], seed=seed)
    agent.compile(
        optimizer=keras.optimizers.Adam(settings["learning_rate"]),
        policy=LinearEpsGreedyPolicy(
            settings["exploration_start"], settings["exploration_end"], steps=settings["exploration_steps"]
        ),
        replay=noterl.Replay(settings["capacity"]),
        jit_compile=jit_compile(),
        **select(SCHEDULE, settings),
    )
    return agent


def ppo(task: Task, seed: int, steps: int) -> noterl.Agent:
    settings = task.settings
    rate, clip = (settings[name] for name in ("learning_rate", "clip"))
    if settings.get("anneal"):
        rate, clip = Linear(rate, 0.0, steps), Linear(clip, 0.0, steps)
    own = select(CONSTRUCTOR, settings)
    agent = noterl.PPO(environment(task), hidden=settings["hidden"], clip=clip, seed=seed, **own)
    agent.compile(
        keras.optimizers.Adam(rate, epsilon=1e-5, global_clipnorm=0.5),
        batch_size=settings["batch_size"],
        replay=prioritized(**settings["prioritized"]) if "prioritized" in settings else None,
        jit_compile=jit_compile(),
    )
    return agent


def prioritized(capacity: int, alpha: float, beta: float, ratio_share: float) -> noterl.Replay:
    """Return the prioritized memory of PPO; `ratio_share` is the weight of the ratio in the score."""
    return noterl.Replay(capacity, sampler=Prioritized(alpha=alpha, beta=beta, score=RatioScore(1.0 - ratio_share)))


def a2c(task: Task, seed: int, steps: int) -> noterl.Agent:
    settings = task.settings
    own = select(CONSTRUCTOR, settings)
    agent = noterl.A2C(environment(task), hidden=settings["hidden"], seed=seed, **own)
    # Stable-Baselines3 adds its epsilon of 1e-5 after the square root.
    optimizer = keras.optimizers.RMSprop(settings["learning_rate"], rho=0.99, epsilon=1e-10, global_clipnorm=0.5)
    agent.compile(optimizer, jit_compile=jit_compile())
    return agent


def trpo(task: Task, seed: int, steps: int) -> noterl.Agent:
    settings = task.settings
    own = select(CONSTRUCTOR, settings)
    if settings.get("anneal"):
        own["target_kl"] = Linear(settings["target_kl"], settings["target_kl"] / 20, steps)
    agent = noterl.TRPO(environment(task), hidden=settings["hidden"], seed=seed, **own)
    optimizer = keras.optimizers.Adam(settings["learning_rate"], epsilon=1e-5)
    agent.compile(optimizer, batch_size=settings["batch_size"], jit_compile=jit_compile())
    return agent


def acer(task: Task, seed: int, steps: int) -> noterl.Agent:
    settings = task.settings
    own = select(CONSTRUCTOR, settings)
    agent = noterl.ACER(environment(task), hidden=settings["hidden"], seed=seed, **own)
    rate = settings["learning_rate"]
    agent.compile(
        keras.optimizers.RMSprop(
            Linear(rate, 0.0, steps) if settings["anneal"] else rate, rho=0.99, epsilon=1e-5, global_clipnorm=10.0
        ),
        replay=noterl.Replay(settings["capacity"]),
        target_update=settings["target_update"],
        jit_compile=jit_compile(),
    )
    return agent


def off_policy(kind: type[noterl.Agent], task: Task, seed: int) -> noterl.Agent:
    settings = task.settings
    agent = kind(environment(task), hidden=settings["hidden"], gamma=settings["gamma"], seed=seed)
    relabel = Hindsight(**settings["hindsight"]) if "hindsight" in settings else None
    options: dict[str, Any] = {}
    if "noise" in settings:
        options["noise"] = noise.GaussianWhiteNoiseProcess(sigma=settings["noise"], size=agent.action_size)
    agent.compile(
        keras.optimizers.Adam(settings["learning_rate"], epsilon=1e-8),
        replay=noterl.Replay(settings["capacity"], relabel=relabel),
        jit_compile=jit_compile(),
        **options,
        **select(SCHEDULE, settings),
    )
    return agent


def defaults(task: Task, seed: int, steps: int) -> noterl.Agent:
    """Return an agent with its defaults, except for the arguments of constructor and `compile` in the settings."""
    settings = task.settings
    kind = getattr(noterl, settings["class"])
    own = dict(settings.get("constructor", {}))
    if "simba" in settings:
        own["network"] = noterl.networks.simba(width=settings["simba"])
    agent: noterl.Agent = kind(environment(task), seed=seed, **own)
    options: dict[str, Any] = {}
    if "colored_noise" in settings:
        options["noise"] = noise.ColoredNoise(size=agent.action_size, **settings["colored_noise"])
    if "annealed_rate" in settings:
        rate = Linear(settings["annealed_rate"], 0.0, steps)
        options["optimizer"] = noterl.optimizers.RAdam(rate, global_clipnorm=10.0)
    if "learning_rate" in settings:
        options["optimizer"] = keras.optimizers.Adam(settings["learning_rate"])
    if "exploration" in settings:
        options["policy"] = LinearEpsGreedyPolicy(*settings["exploration"])
    agent.compile(jit_compile=jit_compile(), **options, **settings.get("compile", {}))
    return agent


ALGORITHMS = {
    "dqn": dqn,
    "ppo": ppo,
    "a2c": a2c,
    "trpo": trpo,
    "acer": acer,
    "ddpg": lambda task, seed, steps: off_policy(noterl.DDPG, task, seed),
    "td3": lambda task, seed, steps: off_policy(noterl.TD3, task, seed),
    "sac": lambda task, seed, steps: off_policy(noterl.SAC, task, seed),
}


def build(task: Task, seed: int, steps: int) -> noterl.Agent:
    """Return the compiled agent of a task; `defaults` makes those that name their class."""
    make = defaults if "class" in task.settings else ALGORITHMS[task.algorithm]
    return make(task, seed, steps)


def task_callbacks(task: Task) -> list[noterl.Callback]:
    """Return the callbacks that are part of the task."""
    return [callbacks.ESSWindow(**task.settings["window"])] if "window" in task.settings else []


def describe() -> dict[str, str]:
    """Return the versions and the backend."""
    return {**versions(PACKAGES), "noterl": noterl.__version__, "backend": os.environ["KERAS_BACKEND"]}


def train(
    task: Task, seed: int, steps: int, timer: Callable[[], float] = time.perf_counter
) -> tuple[noterl.Agent, noterl.History, dict[str, Any]]:
    """Train an agent and return it with its history and the times."""
    agent = build(task, seed, steps)
    clock = Clock(steps, timer)
    num_envs = task.settings.get("num_envs", 1)
    history = agent.fit(
        steps=steps, num_envs=num_envs, callbacks=[*task_callbacks(task), UpdateClock(clock)], verbose=0
    )
    return agent, history, clock.stop(agent.steps)


def run(task: Task, seed: int, steps: int) -> dict[str, Any]:
    """Train an agent for `compare.py`, then evaluate it."""
    agent, history, times = train(task, seed, steps)
    returns = evaluate(lambda observations: agent.act(observations, deterministic=True), task.environment)
    return {
        **times,
        "updates": agent.updates,
        "returns": returns,
        "time_split": {name: float(seconds) for name, seconds in history.time_split.items()},
        "versions": describe(),
    }


def backup_path(*identity: Any) -> Path:
    """Return the backup file of a run, by which a run that was killed resumes when it is started again."""
    words = json.dumps([*identity, os.environ["KERAS_BACKEND"]], default=asdict, sort_keys=True)
    folder = ROOT / "benchmarks" / "unfinished"
    folder.mkdir(exist_ok=True)
    return folder / f"{hashlib.sha256(words.encode()).hexdigest()[:16]}.noterl"


def learn(task: Task, seed: int, steps: int, points: int) -> dict[str, Any]:
    """Train an agent for `learning.py`; evaluate it `points` times during training, and afterwards."""
    agent = build(task, seed, steps)
    path = backup_path(task, seed, steps, points)
    episodes = task.learning.episodes
    budget: dict[str, Any] = {"steps": steps} if episodes is None else {"episodes": episodes}
    (unit, total), final_episodes = *budget.items(), num_evaluation_episodes(task)
    evaluation = callbacks.Evaluate(every=max(1, total // points), unit=unit, episodes=20, num_envs=20)
    backup = callbacks.BackupAndRestore(path, save_freq=120)
    history = agent.fit(
        **budget,
        num_envs=task.settings.get("num_envs", 1),
        callbacks=[*task_callbacks(task), evaluation, backup],
        verbose=0,
    )
    path.unlink(missing_ok=True)
    found = agent.evaluate(episodes=final_episodes, num_envs=min(final_episodes, 20), seed=FIRST_SEED)
    returns = found["returns"].tolist()
    if task.learning.peers:
        returns = evaluate(lambda observations: agent.act(observations), task.environment, final_episodes)
    seconds = {name: float(value) for name, value in history.time_split.items()}
    curve = {name: evaluation.results.get(name, []) for name in ("steps", "reward_mean")}
    return {
        "steps": agent.steps,
        "episodes": agent.episodes,
        "updates": agent.updates,
        "seconds": round(sum(seconds.values()) - seconds.get("callbacks", 0.0), 1),
        "returns": np.round(returns, 3).tolist(),
        "success": found.get("success_rate"),
        "curve": {name: np.round(values, 3).tolist() for name, values in curve.items()},
        "versions": describe(),
    }


if __name__ == "__main__":
    chosen, first_seed, budgeted, *asked = sys.argv[1:]
    numbers = [int(first_seed), int(budgeted)]
    print_json(learn(TASKS[chosen], *numbers, int(asked[0])) if asked else run(TASKS[chosen], *numbers))

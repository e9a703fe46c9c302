"""One training run of noterl on the backend of KERAS_BACKEND: `python -m benchmarks.ours TASK SEED STEPS`.

With JIT_COMPILE=1 the agent is compiled with `jit_compile=True` instead of "auto".
"""

from __future__ import annotations

import os
import sys
from typing import Any

import keras

import noterl
from benchmarks.evaluation import Clock, evaluate, report, versions
from benchmarks.tasks import TASKS, Task
from noterl.policies import LinearEpsGreedyPolicy

PACKAGES = ("numpy", "gymnasium", "keras", "tensorflow", "tensorflow-cpu", "jax", "torch")


class Ticking(noterl.Callback):
    """Tells the clock, at each episode's end, how far training is."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_episode_end(self, episode: int, logs: dict[str, Any]) -> None:
        self.clock.tick(logs["steps"])


def dqn(task: Task, seed: int) -> noterl.Agent:
    settings = task.settings
    agent = noterl.DQN(task.environment, hidden=tuple(settings["hidden"]), gamma=settings["gamma"], seed=seed)
    agent.compile(
        optimizer=keras.optimizers.Adam(settings["learning_rate"]),
        policy=LinearEpsGreedyPolicy(
            settings["exploration_start"], settings["exploration_end"], steps=settings["exploration_steps"]
        ),
        replay=noterl.Replay(settings["capacity"]),
        batch_size=settings["batch_size"],
        learning_starts=settings["learning_starts"],
        update_every=settings["update_every"],
        updates=settings["updates"],
        target_update=settings["target_update"],
        jit_compile=True if os.environ.get("JIT_COMPILE") == "1" else "auto",
    )
    return agent


ALGORITHMS = {"dqn": dqn}


def run(task: Task, seed: int, steps: int) -> dict[str, Any]:
    agent = ALGORITHMS[task.algorithm](task, seed)
    clock = Clock(steps)
    history = agent.fit(steps=steps, callbacks=[Ticking(clock)], verbose=0)
    times = clock.stop(agent.steps)
    returns = evaluate(lambda observations: agent.act(observations, deterministic=True), task.environment)
    return {
        **times,
        "updates": agent.updates,
        "returns": returns,
        "time_split": {name: float(seconds) for name, seconds in history.time_split.items()},
        "versions": {**versions(PACKAGES), "noterl": noterl.__version__, "backend": os.environ["KERAS_BACKEND"]},
    }


if __name__ == "__main__":
    report(run(TASKS[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3])))

"""PPO with prioritized replay on CartPole-v1, at the settings of rl-zoo3's PPO.

Rollouts stay in a memory of four of them, drawn by Note_rl's score of TD error and ratio.
"""

from __future__ import annotations

from typing import Any

import keras

import noterl
from benchmarks import on_policy
from benchmarks.learning_tasks import ppo_cartpole
from noterl.replay import Prioritized, RatioScore
from noterl.schedules import Linear

SEEDS = 5
SETTINGS = {**ppo_cartpole.SETTINGS, "capacity": 1024, "alpha": 0.7, "beta": 0.4, "lambda_": 0.5}


def make(seed: int, steps: int) -> noterl.Agent:
    rules: dict[str, Any] = {name: SETTINGS[name] for name in ("rollout_steps", "epochs", "gamma", "gae_lambda")}
    agent = noterl.PPO("CartPole-v1", clip=Linear(0.2, 0.0, steps), seed=seed, **rules)
    sampler = Prioritized(alpha=SETTINGS["alpha"], beta=SETTINGS["beta"], score=RatioScore(SETTINGS["lambda_"]))
    agent.compile(
        keras.optimizers.Adam(Linear(SETTINGS["learning_rate"], 0.0, steps), epsilon=1e-5, global_clipnorm=0.5),
        batch_size=SETTINGS["batch_size"],
        replay=noterl.Replay(SETTINGS["capacity"], sampler=sampler),
    )
    return agent


TASK = on_policy.Task("CartPole-v1", 100_000, 8, make, SETTINGS, 500, "none")
add_arguments, run = on_policy.add_arguments(TASK), on_policy.run(TASK)
table, draw = on_policy.table, on_policy.draw

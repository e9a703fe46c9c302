"""PPO on CartPole-v1, at the settings of rl-zoo3."""

from __future__ import annotations

import keras

import noterl
from benchmarks import on_policy
from noterl.schedules import Linear

SEEDS = 5
SETTINGS = {
    "learning_rate": 1e-3,  # as the clip of 0.2, on a line to 0
    "batch_size": 256,
    "rollout_steps": 32,
    "epochs": 20,
    "gamma": 0.98,
    "gae_lambda": 0.8,
}


def make(seed: int, steps: int) -> noterl.Agent:
    settings = dict(SETTINGS)
    rate = settings.pop("learning_rate")
    size, settings["clip"] = settings.pop("batch_size"), Linear(0.2, 0.0, steps)
    agent = noterl.PPO("CartPole-v1", seed=seed, **settings)
    optimizer = keras.optimizers.Adam(Linear(rate, 0.0, steps), epsilon=1e-5, global_clipnorm=0.5)
    agent.compile(optimizer, batch_size=size)
    return agent


TASK = on_policy.Task("CartPole-v1", 100_000, 8, make, SETTINGS, 500, "500 ± 0 (rl-zoo3)")
add_arguments, run = on_policy.add_arguments(TASK), on_policy.run(TASK)
table, draw = on_policy.table, on_policy.draw

"""PPO on Pendulum-v1, at the settings of rl-zoo3 without state-dependent exploration."""

from __future__ import annotations

import keras

import noterl
from benchmarks import on_policy

SEEDS = 5
SETTINGS = {
    "learning_rate": 1e-3,
    "batch_size": 64,
    "rollout_steps": 1024,
    "epochs": 10,
    "gamma": 0.9,
    "gae_lambda": 0.95,
}


def make(seed: int, _: int) -> noterl.Agent:
    settings = dict(SETTINGS)
    rate, size = settings.pop("learning_rate"), settings.pop("batch_size")
    agent = noterl.PPO("Pendulum-v1", seed=seed, **settings)
    agent.compile(keras.optimizers.Adam(rate, epsilon=1e-5, global_clipnorm=0.5), batch_size=size)
    return agent


TASK = on_policy.Task("Pendulum-v1", 100_000, 4, make, SETTINGS, -200, "-172.2 ± 104.2 (rl-zoo3)")
add_arguments, run = on_policy.add_arguments(TASK), on_policy.run(TASK)
table, draw = on_policy.table, on_policy.draw

"""PPO on Acrobot-v1, at the settings of rl-zoo3 but for half of the steps."""

from __future__ import annotations

import noterl
from benchmarks import on_policy

SEEDS = 5
SETTINGS = {
    "batch_size": 64,
    "rollout_steps": 256,
    "epochs": 4,
    "gamma": 0.99,
    "gae_lambda": 0.94,
    "normalize_observation": True,
    "normalize_reward": True,
}


def make(seed: int, _: int) -> noterl.Agent:
    settings = dict(SETTINGS)
    size = settings.pop("batch_size")
    agent = noterl.PPO("Acrobot-v1", seed=seed, **settings)
    agent.compile(batch_size=size)
    return agent


TASK = on_policy.Task("Acrobot-v1", 500_000, 16, make, SETTINGS, -90, "-73.5 ± 18.2 (rl-zoo3, 1M steps)")
add_arguments, run = on_policy.add_arguments(TASK), on_policy.run(TASK)
table, draw = on_policy.table, on_policy.draw

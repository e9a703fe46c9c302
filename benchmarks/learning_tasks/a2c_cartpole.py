"""A2C on CartPole-v1, at the settings of rl-zoo3."""

from __future__ import annotations

import noterl
from benchmarks import on_policy

SEEDS = 5
SETTINGS = {"rollout_steps": 5, "gamma": 0.99, "gae_lambda": 1.0}


def make(seed: int, _: int) -> noterl.Agent:
    settings = dict(SETTINGS)
    agent = noterl.A2C("CartPole-v1", seed=seed, **settings)
    agent.compile()
    return agent


TASK = on_policy.Task("CartPole-v1", 500_000, 8, make, SETTINGS, 490, "500 ± 0 (rl-zoo3)")
add_arguments, run = on_policy.add_arguments(TASK), on_policy.run(TASK)
table, draw = on_policy.table, on_policy.draw

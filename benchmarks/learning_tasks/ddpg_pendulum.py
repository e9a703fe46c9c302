"""DDPG on Pendulum-v1, at the settings of rl-zoo3."""

from __future__ import annotations

import noterl
from benchmarks import off_policy, on_policy

SEEDS = 5
SETTINGS = {
    "learning_rate": 1e-3,
    "capacity": 200_000,
    "learning_starts": 10_000,
    "hidden": (400, 300),
    "gamma": 0.98,
}
TASK = off_policy.pendulum(noterl.DDPG, SETTINGS, "-152.1 ± 94.3 (rl-zoo3)")
add_arguments, run = on_policy.add_arguments(TASK), on_policy.run(TASK)
table, draw = on_policy.table, on_policy.draw

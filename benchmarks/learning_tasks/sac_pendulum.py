"""SAC on Pendulum-v1, at the settings of rl-zoo3."""

from __future__ import annotations

import noterl
from benchmarks import off_policy, on_policy

SEEDS = 5
SETTINGS = {"learning_rate": 1e-3, "capacity": 1_000_000, "learning_starts": 100, "hidden": (256, 256)}
TASK = off_policy.pendulum(noterl.SAC, SETTINGS, "-157.0 ± 88.7 (rl-zoo3)")
add_arguments, run = on_policy.add_arguments(TASK), on_policy.run(TASK)
table, draw = on_policy.table, on_policy.draw

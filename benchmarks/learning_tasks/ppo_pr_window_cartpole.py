"""PPO with prioritized replay on CartPole-v1, its memory trimmed to the effective sample size (`ESSWindow`)."""

from __future__ import annotations

from benchmarks import on_policy
from benchmarks.learning_tasks import ppo_pr_cartpole
from noterl.callbacks import ESSWindow

SEEDS = 5
WINDOW = {"scale": 1.0, "smooth": 0.2, "mode": "target", "min_size": 256, "every": 256, "unit": "steps"}
TASK = ppo_pr_cartpole.TASK._replace(
    settings={**ppo_pr_cartpole.SETTINGS, "window": WINDOW},
    callbacks=lambda: [ESSWindow(**WINDOW)],
)
add_arguments, run = on_policy.add_arguments(TASK), on_policy.run(TASK)
table, draw = on_policy.table, on_policy.draw

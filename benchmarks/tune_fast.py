"""Search for the settings of the presets "fast", with `noterl.tune`.

    KERAS_BACKEND=jax python -m benchmarks.tune_fast CartPole-v1

The value of a trial is the mean return after the environment steps of `STUDIES`, which are fewer than those that most
settings need, so that a trial that learns sooner has a higher value. Schedules span the budget of the preset, as in a
run with the preset. The study is stored in benchmarks/results/tune/fast-TASK.log. It uses the seeds of `noterl.tune`
that follow from seed 1,000; `time_to_score.py` runs other ones.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import noterl
from benchmarks.processes import RESULTS
from benchmarks.time_to_score import RACES
from noterl.policies import LinearEpsGreedyPolicy
from noterl.replay import Replay
from noterl.schedules import Linear
from noterl.tune import tune


def cartpole(trial: Any, steps: int) -> dict[str, Any]:
    """Return settings of PPO around those of rl-zoo3."""
    budget = 40_000
    return {
        "num_envs": 8,
        "rollout_steps": trial.suggest_categorical("rollout_steps", [32, 64, 128]),
        "batch_size": trial.suggest_categorical("batch_size", [128, 256]),
        "epochs": trial.suggest_categorical("epochs", [10, 20]),
        "gamma": trial.suggest_categorical("gamma", [0.98, 0.99]),
        "gae_lambda": trial.suggest_categorical("gae_lambda", [0.8, 0.9, 0.95]),
        "optimizer": Linear(trial.suggest_float("learning_rate", 1e-3, 1e-2, log=True), 0.0, budget),
        "clip": Linear(trial.suggest_categorical("clip", [0.1, 0.2, 0.3]), 0.0, budget),
    }


def acrobot(trial: Any, steps: int) -> dict[str, Any]:
    """Return settings of PPO with more updates than rl-zoo3's, and a learning rate that falls over a short budget."""
    budget = 40_000
    return {
        "num_envs": 16,
        "normalize_observation": True,
        "normalize_reward": True,
        "rollout_steps": trial.suggest_categorical("rollout_steps", [32, 64, 128]),
        "batch_size": trial.suggest_categorical("batch_size", [64, 128]),
        "epochs": trial.suggest_categorical("epochs", [10, 20]),
        "gamma": trial.suggest_categorical("gamma", [0.97, 0.98, 0.99]),
        "gae_lambda": trial.suggest_categorical("gae_lambda", [0.9, 0.94]),
        "entropy_coefficient": trial.suggest_categorical("entropy_coefficient", [0.0, 0.01]),
        "optimizer": Linear(trial.suggest_float("learning_rate", 5e-4, 4e-3, log=True), 0.0, budget),
    }


def pendulum(trial: Any, steps: int) -> dict[str, Any]:
    """Return settings of SAC with small networks."""
    return {
        "hidden": (64, 64),
        "learning_starts": 500,
        "batch_size": trial.suggest_categorical("batch_size", [64, 128, 256]),
        "gamma": trial.suggest_categorical("gamma", [0.9, 0.95, 0.98]),
        "optimizer": trial.suggest_float("learning_rate", 1e-3, 1e-2, log=True),
        "target_update": trial.suggest_categorical("target_update", [0.005, 0.01, 0.02]),
        "update_every": 8,
        "updates": trial.suggest_categorical("updates", [4, 8]),
    }


def mountain_car(trial: Any, steps: int) -> dict[str, Any]:
    """Return settings of DQN with long returns, which carry the first successes back, and hard copies to the target."""
    budget = 70_000
    return {
        "hidden": (64, 64),
        "num_envs": 8,
        "normalize_observation": True,
        "update_every": 128,
        "updates": trial.suggest_categorical("updates", [64, 96]),
        "batch_size": trial.suggest_categorical("batch_size", [64, 128]),
        "gamma": trial.suggest_categorical("gamma", [0.98, 0.99]),
        "replay": Replay(100_000, n_step=trial.suggest_categorical("n_step", [5, 7, 10, 13])),
        "optimizer": Linear(trial.suggest_float("learning_rate", 1e-3, 5e-3, log=True), 0.0, budget),
        "target_update": trial.suggest_categorical("target_update", [600, 1_000, 1_500]),
        "policy": LinearEpsGreedyPolicy(1.0, 0.05, trial.suggest_categorical("policy_steps", [10_000, 20_000])),
    }


def lunar_lander(trial: Any, steps: int) -> dict[str, Any]:
    """Return settings of PPO with normalized rewards, and with more updates than rl-zoo3's."""
    budget = 300_000
    return {
        "num_envs": 16,
        "epochs": 10,
        "normalize_reward": True,
        "normalize_observation": trial.suggest_categorical("normalize_observation", [True, False]),
        "rollout_steps": trial.suggest_categorical("rollout_steps", [64, 128]),
        "batch_size": trial.suggest_categorical("batch_size", [128, 256]),
        "gamma": trial.suggest_categorical("gamma", [0.99, 0.995, 0.999]),
        "gae_lambda": trial.suggest_categorical("gae_lambda", [0.95, 0.98]),
        "entropy_coefficient": trial.suggest_categorical("entropy_coefficient", [0.0, 0.01]),
        "optimizer": Linear(trial.suggest_float("learning_rate", 5e-4, 3e-3, log=True), 0.0, budget),
    }


# The space of settings, environment steps of a trial, seeds of a trial, and trials.
STUDIES = {
    "CartPole-v1": (cartpole, 10_000, 4, 30),
    "Acrobot-v1": (acrobot, 20_000, 4, 36),
    "Pendulum-v1": (pendulum, 3_500, 4, 24),
    "MountainCar-v0": (mountain_car, 35_000, 5, 30),
    "LunarLander-v3": (lunar_lander, 100_000, 4, 24),
}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("task", choices=STUDIES)
    task = parser.parse_args(words).task
    space, steps, seeds, trials = STUDIES[task]
    with tempfile.TemporaryDirectory(prefix="noterl-tune-") as out:
        result = tune(
            getattr(noterl, RACES[task].algorithm),
            task,
            space,
            trials=trials,
            steps=steps,
            seeds_per_trial=seeds,
            pruner="none",
            evaluations=1,
            episodes=20,
            seed=1_000,
            storage=RESULTS / "tune" / f"fast-{task}.log",
            out=out,
        )
    print(result.best, result.value, result.fresh_value, result.fresh_default)


if __name__ == "__main__":
    main()

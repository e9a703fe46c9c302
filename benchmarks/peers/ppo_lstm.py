"""Train RecurrentPPO of Stable-Baselines3 Contrib on a task without velocities, and print speed and score as JSON.

    .venv-peers/bin/python -m benchmarks.peers.ppo_lstm cartpole 0 100000

The settings are those of rl-zoo3's `ppo_lstm` without gSDE, with an LSTM of 64, as in `benchmarks/memory_tasks.py`. The
score is the mean return of 100 episodes after training. `OMP_NUM_THREADS` sets the threads, as for noterl.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import gymnasium
import numpy as np

from benchmarks.evaluation import print_json

SETTINGS: dict[str, dict[str, Any]] = {
    "cartpole": {
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "ent_coef": 0.0,
        "learning_rate": lambda remaining: 1e-3 * remaining,
        "clip_range": lambda remaining: 0.2 * remaining,
    },
    "pendulum": {
        "n_steps": 1_024,
        "batch_size": 128,
        "gae_lambda": 0.95,
        "gamma": 0.9,
        "n_epochs": 10,
        "ent_coef": 0.0,
        "learning_rate": 1e-3,
    },
}
ENVIRONMENTS = {"cartpole": ("CartPole-v1", (1, 3), 8), "pendulum": ("Pendulum-v1", (2,), 4)}


class Hidden(gymnasium.ObservationWrapper):
    """Sets components of the observation to 0, as rl-zoo3's MaskVelocityWrapper and `noterl.envs.hide` do."""

    def __init__(self, env: Any, indices: tuple[int, ...]) -> None:
        super().__init__(env)
        self._indices = list(indices)

    def observation(self, observation: Any) -> Any:
        hidden = np.array(observation)
        hidden[self._indices] = 0
        return hidden


def main(task: str, seed: int, steps: int) -> None:
    begun = time.perf_counter()
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    name, indices, num_envs = ENVIRONMENTS[task]

    def make(count: int, own_seed: int) -> Any:
        return make_vec_env(lambda: Hidden(gymnasium.make(name), indices), count, seed=own_seed)

    class Clock(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.curve: list[tuple[int, float]] = []

        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            self.curve.append((self.num_timesteps, time.perf_counter()))

    policy = {"lstm_hidden_size": 64}
    environments = make(num_envs, seed)
    model = RecurrentPPO("MlpLstmPolicy", environments, seed=seed, policy_kwargs=policy, device="cpu", **SETTINGS[task])
    clock = Clock()
    started = time.perf_counter()
    model.learn(steps, callback=clock)
    ended = time.perf_counter()
    first = next((point for point in clock.curve if point[0] >= steps / 10), clock.curve[-1])
    score, _ = evaluate_policy(model, make(10, 1_000), n_eval_episodes=100 if steps >= 10_000 else 1)
    print_json(
        {
            "steps_per_second": model.num_timesteps / (ended - started),
            "steady_steps_per_second": (model.num_timesteps - first[0]) / max(ended - first[1], 1e-9),
            "start": started - begun,
            "score": float(score),
        }
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

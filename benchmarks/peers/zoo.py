"""Train a peer with the settings of rl-zoo3, and write its weights from time to time; or judge these weights.

    .venv-peers/bin/python -m benchmarks.peers.zoo train sb3 PPO CartPole-v1 SEED FOLDER EVERY
    .venv-peers/bin/python -m benchmarks.peers.zoo judge sb3 PPO CartPole-v1 SCORE FOLDER

`time_to_score.py` runs both.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evaluation import evaluate, print_json
from benchmarks.judging import judge
from benchmarks.peers.run import algorithm_class, callback, falling

# Of hyperparams/*.yml of rl-zoo3: ppo 208b6fd, dqn ce95481, sac c94924e. `linear` names what falls to 0. `stop` ends a
# long run before its budget of `steps`: its time is then less than the peer needs, if it has not held the score.
WIDE = {"net_arch": [256, 256]}
SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("PPO", "CartPole-v1"): {
        "steps": 100_000,
        "n_envs": 8,
        "linear": ("learning_rate", "clip_range"),
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "learning_rate": 1e-3,
        "clip_range": 0.2,
    },
    ("PPO", "Acrobot-v1"): {
        "steps": 1_000_000,
        "stop": 150_000,
        "n_envs": 16,
        "normalize": True,
        "n_steps": 256,
        "gae_lambda": 0.94,
        "n_epochs": 4,
    },
    ("PPO", "MountainCar-v0"): {
        "steps": 1_000_000,
        "stop": 150_000,
        "n_envs": 16,
        "normalize": True,
        "n_steps": 16,
        "gae_lambda": 0.98,
        "n_epochs": 4,
    },
    ("PPO", "LunarLander-v3"): {
        "steps": 1_000_000,
        "stop": 300_000,
        "n_envs": 16,
        "n_steps": 1_024,
        "gae_lambda": 0.98,
        "gamma": 0.999,
        "n_epochs": 4,
        "ent_coef": 0.01,
    },
    ("DQN", "MountainCar-v0"): {
        "steps": 120_000,
        "stop": 40_000,
        "learning_rate": 4e-3,
        "batch_size": 128,
        "buffer_size": 10_000,
        "learning_starts": 1_000,
        "gamma": 0.98,
        "target_update_interval": 600,
        "train_freq": 16,
        "gradient_steps": 8,
        "exploration_fraction": 0.2,
        "exploration_final_eps": 0.07,
        "policy_kwargs": WIDE,
    },
    **{
        ("DQN", environment): {
            "steps": 100_000,
            "stop": stop,
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "target_update_interval": 250,
            "train_freq": 4,
            "gradient_steps": -1,
            "exploration_fraction": 0.12,
            "exploration_final_eps": 0.1,
            "policy_kwargs": WIDE,
        }
        for environment, stop in (("Acrobot-v1", 15_000), ("LunarLander-v3", 60_000))
    },
    ("SAC", "Pendulum-v1"): {"steps": 20_000, "learning_rate": 1e-3},
    ("SAC", "LunarLanderContinuous-v3"): {
        "steps": 500_000,
        "stop": 30_000,
        "linear": ("learning_rate",),
        "learning_rate": 7.3e-4,
        "tau": 0.01,
        "learning_starts": 10_000,
        "policy_kwargs": {"net_arch": [400, 300]},
    },
    ("SAC", "HalfCheetah-v5"): {"steps": 1_000_000, "stop": 40_000, "learning_starts": 10_000},
}


def train(peer: str, algorithm: str, environment: str, seed: int, folder: Path, every: int) -> None:
    """Train a model, and write it and the statistics of the observations after each `every` steps."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    settings = dict(SETTINGS[algorithm, environment])
    steps, normalize = settings.pop("steps"), settings.pop("normalize", False)
    stop = settings.pop("stop", float("inf"))
    for name in settings.pop("linear", ()):
        settings[name] = falling(settings[name])
    env = make_vec_env(environment, settings.pop("n_envs", 1), seed=seed)
    if normalize:
        env = VecNormalize(env, gamma=settings.get("gamma", 0.99))
    model = algorithm_class(peer, algorithm)("MlpPolicy", env, seed=seed, verbose=0, **settings)
    due = every

    def write(at: int) -> None:
        if normalize:
            np.savez(folder / f"{at}-statistics.npz", mean=env.obs_rms.mean, variance=env.obs_rms.var)
        model.save(folder / f"{at}.zip")

    def write_if_due(at: int) -> bool:
        nonlocal due
        if at >= due:
            write(at)
            due += every
        return at < stop

    model.learn(steps, callback=callback(on_step=write_if_due))
    write(model.num_timesteps)


def judged(peer: str, algorithm: str, environment: str, score: float, folder: Path) -> dict[str, Any]:
    """Return when the weights of a folder hold the score."""
    kind = algorithm_class(peer, algorithm)

    def mean_return(path: Path) -> float:
        model = kind.load(path)
        statistics = path.with_name(f"{path.stem}-statistics.npz")
        mean, deviation = np.zeros(1), np.ones(1)
        if statistics.exists():
            found = np.load(statistics)
            # The constants of VecNormalize.
            mean, deviation = found["mean"], np.sqrt(found["variance"] + 1e-8)

        def act(observations: np.ndarray) -> np.ndarray:
            scaled = np.clip((observations - mean) / deviation, -10, 10) if statistics.exists() else observations
            return model.predict(scaled.astype(np.float32), deterministic=True)[0]

        return float(np.mean(evaluate(act, environment)))

    return judge(sorted(folder.glob("*.zip"), key=lambda path: int(path.stem)), mean_return, score)


if __name__ == "__main__":
    task, peer_name, algorithm_name, env_id, number, place, *asked = sys.argv[1:]
    if task == "train":
        train(peer_name, algorithm_name, env_id, int(number), Path(place), int(asked[0]))
    else:
        print_json(judged(peer_name, algorithm_name, env_id, float(number), Path(place)))

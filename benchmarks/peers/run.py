"""One training run of a peer, in its own environment: `python -m benchmarks.peers.run PEER TASK SEED STEPS [POINTS]`.

With POINTS the run is one of `learning.py`: it is evaluated so many times while it trains.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from benchmarks.evaluation import Clock, evaluate, evaluations, report, versions
from benchmarks.tasks import TASKS, Task

PACKAGES = ("numpy", "gymnasium", "stable-baselines3", "torch", "sbx-rl", "jax", "flax", "optax", "mujoco")


def algorithm_class(peer: str, algorithm: str) -> type:
    if peer == "sbx":
        # Beside TensorFlow without tf_keras the import of SBX fails, in a dependency that it would do without.
        sys.modules["tensorflow"] = None
        import sbx

        return getattr(sbx, algorithm.upper())
    import stable_baselines3

    return getattr(stable_baselines3, algorithm.upper())


def shared(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the arguments that all algorithms take."""
    return {"policy_kwargs": {"net_arch": list(settings["hidden"])}, "seed": seed, "verbose": 0}


def replaying(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of algorithms that have a replay memory."""
    return {
        "learning_rate": settings["learning_rate"],
        "buffer_size": settings["capacity"],
        "learning_starts": settings["learning_starts"],
        "batch_size": settings["batch_size"],
        "gamma": settings["gamma"],
        "train_freq": settings["update_every"],
        "gradient_steps": settings["updates"],
    }


def dqn(cls: type, task: Task, seed: int, steps: int) -> Any:
    settings = task.settings
    return cls(
        "MlpPolicy",
        task.environment,
        **replaying(settings),
        target_update_interval=settings["target_update"],
        exploration_initial_eps=settings["exploration_start"],
        exploration_final_eps=settings["exploration_end"],
        exploration_fraction=min(1.0, settings["exploration_steps"] / steps),
        **shared(settings, seed),
    )


def ppo(cls: type, task: Task, seed: int, steps: int) -> Any:
    from stable_baselines3.common.env_util import make_vec_env

    settings = task.settings

    def scheduled(value: float) -> Any:
        return (lambda remaining: remaining * value) if settings.get("anneal") else value

    return cls(
        "MlpPolicy",
        make_vec_env(task.environment, settings["num_envs"], seed=seed),
        learning_rate=scheduled(settings["learning_rate"]),
        n_steps=settings["rollout_steps"],
        batch_size=settings["batch_size"],
        n_epochs=settings["epochs"],
        gamma=settings["gamma"],
        gae_lambda=settings["gae_lambda"],
        clip_range=scheduled(settings["clip"]),
        ent_coef=settings["entropy_coefficient"],
        **shared(settings, seed),
    )


def off_policy(cls: type, task: Task, seed: int, steps: int) -> Any:
    settings, noise = task.settings, {}
    if "noise" in settings:
        import gymnasium
        from stable_baselines3.common.noise import NormalActionNoise

        (size,) = gymnasium.make(task.environment).action_space.shape
        noise["action_noise"] = NormalActionNoise(np.zeros(size), settings["noise"] * np.ones(size))
    return cls(
        "MlpPolicy",
        task.environment,
        **replaying(settings),
        tau=settings["target_update"],
        **shared(settings, seed),
        **noise,
    )


ALGORITHMS = {"dqn": dqn, "ppo": ppo, "ddpg": off_policy, "td3": off_policy, "sac": off_policy}


def listening(rollout: Any = None, step: Any = None) -> Any:
    """Return a callback that calls functions with the steps so far: at the start of each rollout, after each step."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Listening(BaseCallback):
        def _on_rollout_start(self) -> None:
            if rollout is not None:
                rollout(self.num_timesteps)

        def _on_step(self) -> bool:
            if step is not None:
                step(self.num_timesteps)
            return True

    return Listening()


def made(peer: str, task: Task, seed: int, steps: int) -> tuple[Any, Any]:
    """Return the model, and what acts for it on a batch of observations without exploration."""
    model = ALGORITHMS[task.algorithm](algorithm_class(peer, task.algorithm), task, seed, steps)
    return model, lambda observations: model.predict(observations, deterministic=True)[0]


def run(peer: str, task: Task, seed: int, steps: int) -> dict[str, Any]:
    model, act = made(peer, task, seed, steps)
    clock = Clock(steps)
    model.learn(total_timesteps=steps, callback=listening(rollout=clock.tick))
    times = clock.stop(model.num_timesteps)
    returns = evaluate(act, task.environment)
    return {**times, "updates": int(model._n_updates), "returns": returns, "versions": versions(PACKAGES)}


def learn(peer: str, task: Task, seed: int, steps: int, points: int) -> dict[str, Any]:
    """Train, evaluated at `points` places on the way and after the end."""
    model, act = made(peer, task, seed, steps)
    curve: dict[str, list[float]] = {"steps": [], "reward_mean": []}
    spent = 0.0

    def evaluating(at: int) -> None:
        nonlocal spent
        if at * points // steps > len(curve["steps"]):
            begun = time.perf_counter()
            curve["steps"].append(at)
            curve["reward_mean"].append(round(float(np.mean(evaluate(act, task.environment, 20))), 3))
            spent += time.perf_counter() - begun

    begun = time.perf_counter()
    model.learn(total_timesteps=steps, callback=listening(step=evaluating))
    seconds = time.perf_counter() - begun - spent
    return {
        "steps": model.num_timesteps,
        "updates": int(model._n_updates),
        "seconds": round(seconds, 1),
        "returns": np.round(evaluate(act, task.environment, evaluations(task)), 3).tolist(),
        "curve": curve,
        "versions": versions(PACKAGES),
    }


if __name__ == "__main__":
    peer_name, chosen, first_seed, budgeted, *asked = sys.argv[1:]
    numbers = [int(first_seed), int(budgeted)]
    if asked:
        report(learn(peer_name, TASKS[chosen], *numbers, int(asked[0])))
    else:
        report(run(peer_name, TASKS[chosen], *numbers))

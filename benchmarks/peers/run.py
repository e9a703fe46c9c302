"""One training run of a peer in its own environment: `python -m benchmarks.peers.run PEER TASK SEED STEPS [POINTS]`.

With POINTS, the run is one of `learning.py`: the agent is evaluated that many times during training.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from benchmarks.evaluation import Clock, evaluate, num_evaluation_episodes, print_json, versions
from benchmarks.tasks import TASKS, Task

PACKAGES = (
    "numpy",
    "gymnasium",
    "stable-baselines3",
    "sb3-contrib",
    "torch",
    "sbx-rl",
    "jax",
    "flax",
    "optax",
    "mujoco",
)

CONTRIB = {"trpo": "TRPO", "tqc": "TQC", "crossq": "CrossQ"}


def algorithm_class(peer: str, algorithm: str) -> type:
    if peer == "sbx":
        # A dependency of SBX fails to import if TensorFlow is installed without tf_keras. SBX does not need either.
        sys.modules["tensorflow"] = None
        import sbx

        return getattr(sbx, algorithm.upper())
    if algorithm in CONTRIB:
        import sb3_contrib

        return getattr(sb3_contrib, CONTRIB[algorithm])
    import stable_baselines3

    return getattr(stable_baselines3, algorithm.upper())


def common_arguments(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the arguments of all algorithms."""
    return {"policy_kwargs": {"net_arch": list(settings["hidden"])}, "seed": seed, "verbose": 0}


def replay_arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the algorithms with a replay memory."""
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
        **replay_arguments(settings),
        target_update_interval=settings["target_update"],
        exploration_initial_eps=settings["exploration_start"],
        exploration_final_eps=settings["exploration_end"],
        exploration_fraction=min(1.0, settings["exploration_steps"] / steps),
        **common_arguments(settings, seed),
    )


def falling(value: float) -> Any:
    """Return a schedule from a value to 0."""
    return lambda remaining: remaining * value


def ppo(cls: type, task: Task, seed: int, steps: int) -> Any:
    from stable_baselines3.common.env_util import make_vec_env

    settings = task.settings
    schedule = falling if settings.get("anneal") else float
    return cls(
        "MlpPolicy",
        make_vec_env(task.environment, settings["num_envs"], seed=seed),
        learning_rate=schedule(settings["learning_rate"]),
        n_steps=settings["rollout_steps"],
        batch_size=settings["batch_size"],
        n_epochs=settings["epochs"],
        gamma=settings["gamma"],
        gae_lambda=settings["gae_lambda"],
        clip_range=schedule(settings["clip"]),
        ent_coef=settings["entropy_coefficient"],
        **common_arguments(settings, seed),
    )


def trpo(cls: type, task: Task, seed: int, steps: int) -> Any:
    from stable_baselines3.common.env_util import make_vec_env

    settings, env = task.settings, make_vec_env(task.environment, task.settings["num_envs"], seed=seed)
    # The divergence is averaged over the values of continuous actions; noterl adds them.
    values = env.action_space.shape[0] if env.action_space.shape else 1
    return cls(
        "MlpPolicy",
        env,
        learning_rate=settings["learning_rate"],
        n_steps=settings["rollout_steps"],
        batch_size=settings["batch_size"],
        n_critic_updates=settings["epochs"],
        gamma=settings["gamma"],
        gae_lambda=settings["gae_lambda"],
        target_kl=settings["target_kl"] / values,
        cg_max_steps=settings["cg_iterations"],
        cg_damping=settings["cg_damping"] / values,
        line_search_max_iter=settings["line_search_steps"],
        line_search_shrinking_factor=settings["line_search_shrink"],
        sub_sampling_factor=settings["fisher_stride"],
        **common_arguments(settings, seed),
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
        **replay_arguments(settings),
        tau=settings["target_update"],
        **common_arguments(settings, seed),
        **noise,
    )


def tqc(cls: type, task: Task, seed: int, steps: int) -> Any:
    """Return TQC with the defaults of noterl, which differ from its own in the random steps only: 1,000, not 100."""
    return cls("MlpPolicy", task.environment, learning_starts=1_000, seed=seed, verbose=0)


def crossq(cls: type, task: Task, seed: int, steps: int) -> Any:
    """Return CrossQ with its defaults, but the random steps and the actor of noterl, and the critics of the task."""
    own = task.settings["constructor"]
    layers = {"pi": [256, 256], "qf": own["critic_hidden"]}
    return cls(
        "MlpPolicy",
        task.environment,
        learning_starts=1_000,
        policy_delay=own["policy_delay"],
        policy_kwargs={"net_arch": layers},
        seed=seed,
        verbose=0,
    )


ALGORITHMS = {
    "tqc": tqc,
    "crossq": crossq,
    "dqn": dqn,
    "ppo": ppo,
    "trpo": trpo,
    "ddpg": off_policy,
    "td3": off_policy,
    "sac": off_policy,
}


def callback(on_rollout_start: Any = None, on_step: Any = None) -> Any:
    """Return a callback that passes the number of steps to functions, when a rollout starts and after each step.

    Training ends when `on_step` returns False.
    """
    from stable_baselines3.common.callbacks import BaseCallback

    class Functions(BaseCallback):
        def _on_rollout_start(self) -> None:
            if on_rollout_start is not None:
                on_rollout_start(self.num_timesteps)

        def _on_step(self) -> bool:
            return on_step is None or on_step(self.num_timesteps) is not False

    return Functions()


def make(peer: str, task: Task, seed: int, steps: int) -> tuple[Any, Any]:
    """Return the model and its greedy policy, a function of a batch of observations."""
    model = ALGORITHMS[task.algorithm](algorithm_class(peer, task.algorithm), task, seed, steps)
    return model, lambda observations: model.predict(observations, deterministic=True)[0]


def run(peer: str, task: Task, seed: int, steps: int) -> dict[str, Any]:
    model, act = make(peer, task, seed, steps)
    clock = Clock(steps)
    model.learn(total_timesteps=steps, callback=callback(on_rollout_start=clock.tick))
    times = clock.stop(model.num_timesteps)
    returns = evaluate(act, task.environment)
    return {**times, "updates": int(model._n_updates), "returns": returns, "versions": versions(PACKAGES)}


def learn(peer: str, task: Task, seed: int, steps: int, points: int) -> dict[str, Any]:
    """Train a model for `learning.py`; evaluate it `points` times during training, and afterwards."""
    model, act = make(peer, task, seed, steps)
    curve: dict[str, list[float]] = {"steps": [], "reward_mean": []}
    evaluation_seconds = 0.0

    def evaluate_curve(at: int) -> None:
        nonlocal evaluation_seconds
        if at * points // steps > len(curve["steps"]):
            begun = time.perf_counter()
            curve["steps"].append(at)
            curve["reward_mean"].append(round(float(np.mean(evaluate(act, task.environment, 20))), 3))
            evaluation_seconds += time.perf_counter() - begun

    begun = time.perf_counter()
    model.learn(total_timesteps=steps, callback=callback(on_step=evaluate_curve))
    seconds = time.perf_counter() - begun - evaluation_seconds
    return {
        "steps": model.num_timesteps,
        "updates": int(model._n_updates),
        "seconds": round(seconds, 1),
        "returns": np.round(evaluate(act, task.environment, num_evaluation_episodes(task)), 3).tolist(),
        "curve": curve,
        "versions": versions(PACKAGES),
    }


if __name__ == "__main__":
    peer_name, chosen, first_seed, budgeted, *asked = sys.argv[1:]
    numbers = [int(first_seed), int(budgeted)]
    if asked:
        print_json(learn(peer_name, TASKS[chosen], *numbers, int(asked[0])))
    else:
        print_json(run(peer_name, TASKS[chosen], *numbers))

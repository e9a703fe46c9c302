"""One training run of a peer, in the peer's own environment: `python -m benchmarks.peers.run PEER TASK SEED STEPS`."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.evaluation import Clock, evaluate, report, versions
from benchmarks.tasks import TASKS, Task

PACKAGES = ("numpy", "gymnasium", "stable-baselines3", "torch", "sbx-rl", "jax", "flax", "optax")


def algorithm_class(peer: str, algorithm: str) -> type:
    if peer == "sbx":
        # Beside TensorFlow without tf_keras the import of SBX fails, in a dependency that it would do without.
        sys.modules["tensorflow"] = None
        import sbx

        return getattr(sbx, algorithm.upper())
    import stable_baselines3

    return getattr(stable_baselines3, algorithm.upper())


def dqn(cls: type, task: Task, seed: int, steps: int) -> Any:
    settings = task.settings
    return cls(
        "MlpPolicy",
        task.environment,
        learning_rate=settings["learning_rate"],
        buffer_size=settings["capacity"],
        learning_starts=settings["learning_starts"],
        batch_size=settings["batch_size"],
        gamma=settings["gamma"],
        train_freq=settings["update_every"],
        gradient_steps=settings["updates"],
        target_update_interval=settings["target_update"],
        exploration_initial_eps=settings["exploration_start"],
        exploration_final_eps=settings["exploration_end"],
        exploration_fraction=min(1.0, settings["exploration_steps"] / steps),
        policy_kwargs={"net_arch": list(settings["hidden"])},
        seed=seed,
        verbose=0,
    )


ALGORITHMS = {"dqn": dqn}


def ticking(clock: Clock) -> Any:
    from stable_baselines3.common.callbacks import BaseCallback

    class Ticking(BaseCallback):
        """Tells the clock, once a rollout, how far training is."""

        def _on_rollout_start(self) -> None:
            clock.tick(self.num_timesteps)

        def _on_step(self) -> bool:
            return True

    return Ticking()


def run(peer: str, task: Task, seed: int, steps: int) -> dict[str, Any]:
    model = ALGORITHMS[task.algorithm](algorithm_class(peer, task.algorithm), task, seed, steps)
    clock = Clock(steps)
    model.learn(total_timesteps=steps, callback=ticking(clock))
    times = clock.stop(model.num_timesteps)
    returns = evaluate(lambda observations: model.predict(observations, deterministic=True)[0], task.environment)
    return {**times, "updates": int(model._n_updates), "returns": returns, "versions": versions(PACKAGES)}


if __name__ == "__main__":
    report(run(sys.argv[1], TASKS[sys.argv[2]], int(sys.argv[3]), int(sys.argv[4])))

"""Search for hyperparameters of DQN with Optuna, each trial in a process of its own, and train with the best."""

import os

import noterl
from noterl.tune import Float, OneMinus, tune

# The tests of noterl set this variable to shorten the run.
EPISODES = int(os.environ.get("NOTERL_MAX_EPISODES", "0")) or None
TRIALS, STEPS = (1, 300) if EPISODES else (20, 20_000)


def main() -> None:
    space = {"optimizer": Float(1e-4, 1e-2, log=True), "gamma": OneMinus(0.001, 0.1), "hidden": (64,)}
    budget = {"trials": TRIALS, "steps": STEPS, "evaluations": 2, "jobs": 2}
    result = tune(noterl.DQN, "CartPole-v1", space, **budget, out="runs/tuning")
    print("trial  value  sampled values")
    for trial in result.study.trials:
        if trial.value is not None:
            values = ", ".join(f"{name}={value:.3g}" for name, value in trial.params.items())
            print(f"{trial.number:5}  {trial.value:5.1f}  {values}")
    print(f"the best is {'' if result.is_better else 'not '}better than the defaults, with other seeds")

    best = result.best
    agent = noterl.DQN("CartPole-v1", hidden=best["hidden"], gamma=best["gamma"], seed=1)
    agent.compile(optimizer=best["optimizer"])
    history = agent.fit(episodes=EPISODES, steps=STEPS, log_every=50)
    history.plot(path="runs/tuning/curve.png")


if __name__ == "__main__":  # each trial is a process that imports this script
    main()

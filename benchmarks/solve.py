"""Measure whole programs: from `python script.py` to a CartPole that PPO has solved, beside Stable-Baselines3 and SBX.

    python -m benchmarks.solve --seeds 10

All sides train with the settings of rl-zoo3 and play 10 episodes without exploration every 5,000 steps. Training ends
when their mean return is at least 475. The time is that of the process: imports, compilation, training and evaluation.
noterl's compilation cache is warm, as in a user's second run: a first run of each backend, which is not timed, fills
it. The peers keep no such cache. Runs alternate, and each seed is a pair. Only JAX has bars; the result is stored
in benchmarks/results/solve/solve.json if all participants run with at least five seeds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
import time
from typing import Any

from benchmarks.evaluation import FIRST_SEED, print_json
from benchmarks.processes import RESULTS, ROOT, execute, machine, store, variables, warn_if_busy
from benchmarks.summaries import summarize_pairs
from benchmarks.tasks import TASKS

RESULT = RESULTS / "solve" / "solve.json"
TASK = TASKS["cartpole-ppo"]
GOAL, EVERY, EPISODES = 475.0, 5_000, 10
PARTICIPANTS = ("noterl-jax", "noterl-tensorflow", "noterl-torch", "sb3", "sbx")
BARS = {("noterl-jax", "sb3"): 0.25, ("noterl-jax", "sbx"): 0.3}


def own(seed: int, steps: int) -> dict[str, Any]:
    """Train an agent until it has solved the task; return the mean return of the last evaluation, and the steps."""
    from benchmarks.run import ppo
    from noterl.callbacks import EarlyStopping, Evaluate

    agent = ppo(TASK, seed, steps)
    evaluation = Evaluate(every=EVERY, unit="steps", episodes=EPISODES, num_envs=EPISODES, seed=FIRST_SEED)
    goal = EarlyStopping(trial_count=1, criterion=GOAL, monitor="evaluation_reward_mean")
    agent.fit(steps=steps, num_envs=TASK.settings["num_envs"], callbacks=[evaluation, goal], verbose=0)
    return {"mean": evaluation.results["reward_mean"][-1], "steps": agent.steps}


def peer(name: str, seed: int, steps: int) -> dict[str, Any]:
    """Train the agent of a peer likewise."""
    from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
    from stable_baselines3.common.env_util import make_vec_env

    from benchmarks.peers.run import algorithm_class, ppo

    agent = ppo(algorithm_class(name, TASK.algorithm), TASK, seed, steps)
    evaluation = EvalCallback(
        make_vec_env(TASK.environment, EPISODES, seed=FIRST_SEED),
        callback_on_new_best=StopTrainingOnRewardThreshold(GOAL),
        n_eval_episodes=EPISODES,
        eval_freq=EVERY // TASK.settings["num_envs"],
        verbose=0,
    )
    agent.learn(steps, callback=evaluation)
    return {"mean": float(evaluation.last_mean_reward), "steps": agent.num_timesteps}


def measure(who: str, seed: int, steps: int, peer_python: str, cache: str) -> dict[str, Any]:
    """Return the result of a program and the seconds of its process."""
    name, _, backend = who.partition("-")
    words = [sys.executable if backend else peer_python, "-m", "benchmarks.solve", "--run", name]
    begun = time.perf_counter()
    added = {**variables(backend or None), "NOTERL_CACHE": cache}
    result = execute([*words, "--seed", str(seed), "--steps", str(steps)], added)
    seconds = time.perf_counter() - begun
    return {"who": who, "seed": seed, "seconds": seconds, "solved": result["mean"] >= GOAL, **result}


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the number of solved runs of each participant, and a row for each backend of noterl and each peer."""
    of = {who: [run for run in runs if run["who"] == who] for who in PARTICIPANTS}
    seconds = {who: [run["seconds"] for run in found] for who, found in of.items() if found}
    pairs = [(who, peer) for who in seconds for peer in ("sb3", "sbx") if "-" in who and peer in seconds]
    return {
        "solved": {who: f"{sum(run['solved'] for run in of[who])} of {len(of[who])}" for who in seconds},
        "rows": [
            {"name": f"{who} / {peer}", **summarize_pairs(seconds[who], seconds[peer], BARS.get((who, peer)))}
            for who, peer in pairs
        ],
    }


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0], prog="solve.py")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=TASK.steps, help="environment steps of each run at most")
    parser.add_argument("--participants", nargs="+", choices=PARTICIPANTS, default=list(PARTICIPANTS))
    parser.add_argument("--peer-python", default=str(ROOT / ".venv-peers" / "bin" / "python"))
    parser.add_argument("--run", choices=("noterl", "sb3", "sbx"), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.seeds < 1:
        parser.error("--seeds must be at least 1")
    return arguments


def main(words: list[str] | None = None) -> None:
    arguments = parse(words)
    seed, steps, participants = arguments.seed, arguments.steps, arguments.participants
    if arguments.run:
        print_json(own(seed, steps) if arguments.run == "noterl" else peer(arguments.run, seed, steps))
        return
    start = machine()
    warn_if_busy(start)
    runs = []
    with tempfile.TemporaryDirectory(prefix="noterl-solve-") as cache:
        for who in participants:
            if "-" in who:
                measure(who, 0, steps, arguments.peer_python, cache)
        for seed in range(arguments.seeds):
            for who in participants if seed % 2 == 0 else participants[::-1]:
                runs.append(measure(who, seed, steps, arguments.peer_python, cache))
                print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    result = {
        "task": "solve",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": start,
        "steps": steps,
        "summary": summarize(runs),
        "runs": runs,
    }
    from benchmarks.report import solve_table

    print(solve_table(result))
    if arguments.seeds >= 5 and set(participants) == set(PARTICIPANTS) and steps == TASK.steps:
        store(result, RESULT)
        print(f"\nstored in {RESULT}")


if __name__ == "__main__":
    main()

"""Inject faults into training runs, and count how often `noterl.callbacks.Doctor` names the fault first.

    KERAS_BACKEND=torch python -m benchmarks.doctor --folder build/doctor
    KERAS_BACKEND=torch python -m benchmarks.doctor --cost 2

An alarm is a healthy run in which the doctor had a finding at any time. The rules judge the measured series, which are
kept in a folder, so changed rules need no new runs. The judgements are in benchmarks/results/doctor/doctor.json.

`--cost` prints which share of the time the doctor takes in healthy runs of five seconds or more.
"""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np

import noterl  # before Keras, so that it chooses the backend
from benchmarks import study
from benchmarks.evaluation import versions
from benchmarks.processes import RESULTS, machine, store
from benchmarks.report import markdown_table
from noterl import networks
from noterl.backends import ops
from noterl.callbacks import Doctor
from noterl.callbacks.doctor import LEAST_UPDATES
from noterl.callbacks.support.diagnosis import Finding, diagnose
from noterl.policies import EpsGreedyQPolicy, LinearEpsGreedyPolicy

FOLDER = Path("build/doctor")
STORED = RESULTS / "doctor" / "doctor.json"
PACKAGES = ("noterl", "keras", "torch", "jax", "numpy", "gymnasium")
HEALTHY = {"PPO": 5, "A2C": 5, "DQN": 4, "TD3": 3, "DDPG": 2, "SAC": 1}
LONG = 25  # times the budget: runs of five seconds or more
FIRST_SEED = 100  # seeds below are those that the rules were developed with
# The rules of these were corrected after the run with the first seed, which they had missed.
SECOND_SEEDS = {"advantages with the wrong sign": 300, "entropy coefficient 1": 301}
ON_POLICY = ("PPO", "A2C")
DISCRETE = (*ON_POLICY, "DQN")


class Ends(gymnasium.Wrapper):
    """Reports the ends of episodes wrongly: `change(terminated, truncated)` are the flags that the agent receives."""

    def __init__(self, env: Any, change: Callable[[bool, bool], tuple[bool, bool]]) -> None:
        super().__init__(env)
        self.change = change

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, *self.change(terminated, truncated), info


class WiderActions(gymnasium.ActionWrapper):
    """Claims bounds that are ten times as wide as those that have an effect."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        space: Any = env.action_space
        self.action_space = gymnasium.spaces.Box(10 * space.low, 10 * space.high)

    def action(self, action: Any) -> Any:
        space: Any = self.env.action_space
        return np.clip(action, space.low, space.high)


class AdvantageSign(noterl.PPO):
    """PPO that makes actions with an advantage less likely."""

    def policy_loss(self, batch: Any) -> Any:
        return super().policy_loss(batch._replace(extra={**batch.extra, "advantage": -batch.extra["advantage"]}))


class ValueSign(noterl.A2C):
    """A2C whose critic learns the negated returns."""

    def prepare(self, rollout: Any) -> dict[str, Any]:
        fields = super().prepare(rollout)
        return {**fields, "target": -fields["target"]}


class NoStopGradient(noterl.DQN):
    """DQN without a target network, whose targets have a gradient."""

    def loss(self, batch: Any) -> Any:
        q = noterl.losses.take(self.q(batch.observation), batch.action)
        target = batch.reward + batch.discount * ops.max(self.q(batch.next_observation), axis=-1)
        return ops.mean(self.error_loss(q - target)), {"td_error": q - target}


class FrozenActor(noterl.TD3):
    """TD3 whose actor does not learn, because the weight of the actor's loss is 0."""

    def actor_loss(self, batch: Any) -> Any:
        return 0.0 * super().actor_loss(batch)


def change_weights(agent: Any, names: tuple[str, ...], change: Callable[[np.ndarray], np.ndarray], rank: int) -> None:
    """Change the first weight of this rank, a bias for 1 and a kernel for 2, of networks."""
    for name in names:
        weights = networks.get_weights(getattr(agent, name))
        place = next(k for k, weight in enumerate(weights) if weight.ndim == rank)
        weights[place] = change(weights[place])
        networks.set_weights(getattr(agent, name), weights)


class Fault:
    """A fault.

    Args:
        agent: the name of the agent.
        names: the findings that name the fault or its direct cause.
        wrap: changes the environment.
        kind: the class in place of the agent's.
        arguments: further arguments of the constructor.
        settings: further arguments of `compile`.
        change: changes the agent after `compile`.
    """

    def __init__(self, agent: str, *names: str, wrap: Any = None, kind: Any = None, change: Any = None, **given: Any):
        self.agent = agent
        self.names = names
        self.wrap = wrap
        self.kind = kind or getattr(noterl, agent)
        self.change = change
        self.settings = {
            name: given.pop(name)
            for name in ("optimizer", "policy", "replay", "target_update", "batch_size")
            if name in given
        }
        self.arguments = given


def rewards(factor: float) -> Any:
    return lambda env: gymnasium.wrappers.TransformReward(env, lambda reward: factor * reward)


def observations(change: Callable[[np.ndarray], np.ndarray], size: int = 4) -> Any:
    space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
    return lambda env: gymnasium.wrappers.TransformObservation(env, lambda x: change(x).astype(np.float32), space)


FAULTS = {
    "advantages with the wrong sign": Fault("PPO", "policy_against_advantages", kind=AdvantageSign),
    "value targets with the wrong sign": Fault("A2C", "values_against_returns", kind=ValueSign),
    "no stop-gradient in the target": Fault("DQN", kind=NoStopGradient),  # no rule finds it
    "terminated and truncated swapped": Fault(
        "DQN",
        "termination_as_truncation",
        wrap=lambda env: Ends(env, lambda terminated, truncated: (truncated, terminated)),
    ),
    "truncation as termination": Fault(
        "TD3", "truncation_as_termination", wrap=lambda env: Ends(env, lambda terminated, truncated: (truncated, False))
    ),
    "rewards times 1,000": Fault("DQN", "reward_scale", wrap=rewards(1000.0)),
    "rewards times 0.001": Fault("PPO", "reward_scale", wrap=rewards(0.001)),
    "gamma 0": Fault("PPO", "gamma_low", gamma=0.0),
    "observations times 1,000": Fault("DQN", "observations_unscaled", wrap=observations(lambda x: 1000 * x)),
    "constant observations": Fault("PPO", "observations_without_information", wrap=observations(lambda x: 0 * x + 1)),
    "observations padded with zeros": Fault(
        "A2C", "observations_without_information", wrap=observations(lambda x: np.append(x, np.zeros(12)), 16)
    ),
    "learning rate times 100": Fault("PPO", "learning_rate_high", optimizer=0.1),
    "learning rate divided by 1,000": Fault("TD3", "learning_rate_low", optimizer=1e-6),
    "frozen actor": Fault("TD3", "frozen_network", kind=FrozenActor),
    "frozen critic": Fault("PPO", "frozen_network", value_coefficient=0.0),
    "target never updated": Fault("DQN", "target_never_updated", target_update=10**9),
    "epsilon stays 1": Fault("DQN", "epsilon_high", policy=EpsGreedyQPolicy(1.0)),
    "epsilon ends at once": Fault("DQN", "epsilon_low", policy=LinearEpsGreedyPolicy(1.0, 0.0, steps=1)),
    "temperature fixed at 20": Fault("SAC", "temperature_high", temperature=20.0),
    "entropy coefficient 1": Fault("PPO", "entropy_coefficient_high", entropy_coefficient=1.0),
    "memory of 50 transitions": Fault("DQN", "memory_small", batch_size=32, replay=lambda: noterl.Replay(50, n_step=3)),
    "gradients clipped to 1e-4": Fault(
        "PPO", "gradients_clipped", optimizer=lambda: keras.optimizers.Adam(1e-3, epsilon=1e-5, global_clipnorm=1e-4)
    ),
    "dead units at the start": Fault(
        "DQN", "dead_units", change=lambda agent: change_weights(agent, ("q", "target_q"), lambda bias: bias - 100, 1)
    ),
    "saturated units at the start": Fault(
        "PPO", "saturated_units", change=lambda agent: change_weights(agent, ("actor", "critic"), lambda x: 100 * x, 2)
    ),
    "bounds of actions times 10": Fault("DDPG", "actions_clipped", wrap=WiderActions),
}


def make(name: str, fault: Fault | None, seed: int) -> tuple[Any, dict[str, Any]]:
    """Return a compiled agent and the arguments of `fit`."""
    id = "CartPole-v1" if name in DISCRETE else "Pendulum-v1"
    settings: dict[str, Any] = {"optimizer": 1e-3}
    arguments: dict[str, Any] = {"hidden": (64, 64)}
    budget: dict[str, Any] = {"steps": 10_240, "num_envs": 8} if name in ON_POLICY else {"steps": 2_000}
    if name == "PPO":
        arguments |= {"rollout_steps": 128, "epochs": 4}
        settings |= {"batch_size": 256}
    elif name == "A2C":
        arguments |= {"rollout_steps": 5}
        settings = {}
        budget["steps"] = 8_000
    elif name == "DQN":
        settings |= {"policy": LinearEpsGreedyPolicy(1.0, 0.05, steps=2_000), "learning_starts": 500}
        budget = {"steps": 4_000}
    else:
        # Values of Pendulum are learned in a tenth of the usual steps with a short horizon.
        arguments |= {"gamma": 0.9}
        settings |= {"batch_size": 64, "learning_starts": 800, "target_update": 0.02}
    kind = getattr(noterl, name)
    wrap: Any = gymnasium.Wrapper
    if fault is not None:
        made = {
            key: value() if key in ("optimizer", "replay") and callable(value) else value
            for key, value in fault.settings.items()
        }
        settings |= made
        arguments |= fault.arguments
        kind = fault.kind
        wrap = fault.wrap or wrap
    agent = kind(lambda: wrap(gymnasium.make(id)), seed=seed, **arguments)
    agent.compile(**settings)
    if fault is not None and fault.change is not None:
        fault.change(agent)
    return agent, budget


def measure(row: str, seed: int, folder: Path) -> dict[str, np.ndarray]:
    """Return the series that the doctor measured in a run; train if the folder does not hold the run."""
    path = folder / f"{row.replace(' ', '_')}-{seed}.npz"
    if not path.exists():
        fault = FAULTS.get(row)
        agent, budget = make(row.removeprefix("healthy ") if fault is None else fault.agent, fault, seed)
        doctor = Doctor()
        begun = time.process_time()
        agent.fit(**budget, callbacks=[doctor], verbose=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **doctor.measures, seconds=np.array([time.process_time() - begun]))
    with np.load(path) as file:
        return dict(file)


def replay(measures: dict[str, np.ndarray]) -> list[list[Finding]]:
    """Return the findings after each measurement of a run, and at the end."""
    episodes = measures["episodes_so_far"]
    results = []
    for k in range(1, len(episodes) + 1):
        # Columns of logs have a value for each episode, the others one for each measurement.
        cut = {
            name: series[:k] if len(series) == len(episodes) else series[: int(episodes[k - 1])]
            for name, series in measures.items()
        }
        results.append(diagnose(cut) if measures["updates_so_far"][k - 1] >= LEAST_UPDATES else [])
    return [*results, diagnose(measures)]


def judge(row: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return a run: its findings, and whether the fault was named first, or a healthy run had no finding."""
    measures = measure(row, seed, folder)
    results = replay(measures)
    names = [finding.name for finding in results[-1]]
    at_any_time = sorted({finding.name for findings in results for finding in findings})
    is_named = row in FAULTS and names[:1] and names[0] in FAULTS[row].names
    return {
        "row": row,
        "seed": seed,
        "findings": names,
        "sentence": str(results[-1][0]) if names else "",
        "at_any_time": at_any_time,
        "is_right": bool(is_named) if row in FAULTS else not at_any_time,
        "measurements": len(results) - 1,
        "last_returns": float(np.mean(measures["reward"][-10:])),
        "seconds": float(measures["seconds"][0]),
        "backend": keras.backend.backend(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(PACKAGES),
    }


def summarize(runs: list[dict[str, Any]]) -> dict[str, int]:
    """Return the numbers of faults, of faults that were named first, of healthy runs and of alarms in these."""
    faults = [run["is_right"] for run in runs if run["row"] in FAULTS]
    healthy = [run["is_right"] for run in runs if run["row"] not in FAULTS]
    return {"faults": len(faults), "named": sum(faults), "healthy": len(healthy), "alarms": healthy.count(False)}


def table(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    rows = []
    for run in result["runs"]:
        agent = FAULTS[run["row"]].agent if run["row"] in FAULTS else run["row"].removeprefix("healthy ")
        found = run["findings"] if run["row"] in FAULTS else run["at_any_time"]
        verdict = "yes" if run["is_right"] else "no"
        rows.append((run["row"], agent, str(run["seed"]), ", ".join(found) or "none", verdict))
    summary = result["summary"]
    line = "{named} of {faults} faults were named first; {alarms} alarms in {healthy} healthy runs.".format(**summary)
    return f"{markdown_table(('run', 'agent', 'seed', 'findings', 'right'), rows)}\n\n{line}"


class TimedDoctor(Doctor):
    """Counts the seconds in the calls of the doctor."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def _timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        begun = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            self.seconds += time.perf_counter() - begun

    def before_fit(self, *arguments: Any) -> None:
        self._timed(super().before_fit, *arguments)

    def on_due(self, logs: Any) -> None:
        self._timed(super().on_due, logs)

    def on_train_end(self, logs: Any) -> None:
        self._timed(super().on_train_end, logs)


def cost(seeds: int) -> dict[str, Any]:
    """Return the share of the time that healthy runs of five seconds or more spend in the doctor."""
    runs = []
    summary = {}
    for name in HEALTHY:
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            agent, budget = make(name, None, seed)
            budget["steps"] *= LONG
            doctor = TimedDoctor()
            begun = time.perf_counter()
            agent.fit(**budget, callbacks=[doctor], verbose=0)
            seconds = time.perf_counter() - begun
            runs.append({"agent": name, "seed": seed, "seconds": seconds, "share": doctor.seconds / seconds})
        summary[name] = max(run["share"] for run in runs[-seeds:])
        print(f"{name}: at most {summary[name]:.1%}", flush=True)
    return {"largest_share": summary, "backend": keras.backend.backend(), "machine": machine(), "runs": runs}


def wanted_runs() -> list[tuple[str, int]]:
    """Return the rows and seeds of all runs."""
    healthy = [
        (f"healthy {name}", FIRST_SEED + 100 + 10 * n + k)
        for n, name in enumerate(HEALTHY)
        for k in range(HEALTHY[name])
    ]
    return [*((row, SECOND_SEEDS.get(row, FIRST_SEED + k)) for k, row in enumerate(FAULTS)), *healthy]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the measured series")
    parser.add_argument(
        "--again", action="store_true", help="judge the measured series again, after a rule has changed"
    )
    parser.add_argument("--cost", type=int, metavar="SEEDS", help="measure the share of the doctor's time")
    arguments = parser.parse_args(words)
    if arguments.cost:
        store(cost(arguments.cost), RESULTS / "doctor" / f"cost-{keras.backend.backend()}.json")
        return

    def judge_one(key: tuple[str, int]) -> tuple[dict[str, Any], str]:
        run = judge(*key, arguments.folder)
        return run, f"{key[0]}, seed {key[1]}: {', '.join(run['findings']) or 'no findings'}"

    result = study.complete(
        [] if arguments.again else study.stored_runs(STORED),
        wanted_runs(),
        key_of=lambda run: (run["row"], run["seed"]),
        train=judge_one,
        result_of=lambda runs: {"summary": summarize(runs), "runs": runs},
        path=STORED,
    )
    print(table(result))


if __name__ == "__main__":
    main()

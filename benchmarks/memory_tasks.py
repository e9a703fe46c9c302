"""The tasks of `learning.py` that need a memory: agents with a memory, and the same agents without one beside them.

`python -m benchmarks.memory_tasks TASK MEMORY SEED STEPS` does one run. `learning.py` does all, each in a process of
its own, stores each run when it ends, and does not repeat runs that are stored with the same settings.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np
from gymnasium import spaces

import noterl
from benchmarks import stats, study
from benchmarks.evaluation import print_json, versions
from benchmarks.learning_tasks.bitflip import by_memory
from benchmarks.processes import ROOT, execute, machine, variables
from benchmarks.report import iqm, markdown_table
from noterl import envs
from noterl.policies import LinearEpsGreedyPolicy
from noterl.schedules import Linear

EPISODES = 100
WITHOUT = "without"
CONTRIB = "contrib"  # RecurrentPPO of Stable-Baselines3 Contrib, with an LSTM, too
PACKAGES = ("noterl", "keras", "numpy", "gymnasium", "jax", "torch", "tensorflow", "tensorflow-cpu")
SYMBOLS, DECISIONS = 4, 8


class MaskedRecall(gymnasium.Env[np.ndarray[Any, Any], Any]):
    """The first observation shows one of four symbols; then eight times, two of four answers are legal at random.

    The right answer is the first legal one from the symbol on, in a circle, with a reward of 1/8. The largest return is
    1, because each decision has a right answer. The mask is not observed, so the policy needs both: the symbol in its
    memory, and the mask. Without a memory, one fixed order of answers is right in 7/12 of the decisions.
    """

    def __init__(self) -> None:
        self.observation_space: Any = spaces.Box(0.0, 1.0, (SYMBOLS,), np.float32)
        self.action_space: Any = spaces.Discrete(SYMBOLS)
        self.symbol = self.decision = 0
        self.legal = np.ones(SYMBOLS, np.bool_)

    def _info(self) -> dict[str, Any]:
        chosen = self.np_random.choice(SYMBOLS, 2, replace=False)
        self.legal = np.isin(np.arange(SYMBOLS), chosen)
        return {"action_mask": self.legal.copy()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.symbol, self.decision = int(self.np_random.integers(SYMBOLS)), 0
        return np.eye(SYMBOLS, dtype=np.float32)[self.symbol], self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        order = [(self.symbol + offset) % SYMBOLS for offset in range(SYMBOLS)]
        right = next(answer for answer in order if self.legal[answer])
        self.decision += 1
        reward = float(int(action) == right) / DECISIONS
        return np.zeros(SYMBOLS, np.float32), reward, self.decision == DECISIONS, False, self._info()


def hidden_cartpole() -> Any:
    """Return CartPole without velocities."""
    return envs.hide("CartPole-v1", [1, 3])


def hidden_pendulum() -> Any:
    """Return Pendulum without the velocity."""
    return envs.hide("Pendulum-v1", [2])


@dataclass(eq=False, kw_only=True)
class MemoryTask:
    """A task of `learning.py`, with the interface of the modules of `learning_tasks`.

    Attributes:
        name: of the task.
        title: agent, environment and its settings.
        make: (recurrent or None, seed, steps) -> a compiled agent.
        steps: environment steps of a run.
        goal: what the issue demands.
        num_envs: of `fit`.
        every: steps between evaluations; the score is the best of them. None for one evaluation at the end.
        score: the key of the result of `evaluate`.
        scale: what the score is divided by.
        memories: the cells that are trained, and None for no memory.
        peer: the task of peers/ppo_lstm.py that trains the peer with the same settings; None for no peer.
        span: the highest less the lowest return, for the comparison with the peer.
        SEEDS: the seeds of a complete result.
    """

    name: str
    title: str
    make: Callable[[str | None, int, int], Any]
    steps: int
    goal: str
    num_envs: int = 8
    every: int | None = None
    score: str = "reward_mean"
    scale: float = 1.0
    memories: tuple[str | None, ...] = ("lstm", None)
    peer: str | None = None
    span: float = 0.0
    SEEDS: int = 5

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return f"{self.title}: {self.goal}"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--steps", type=int, default=self.steps, help="environment steps of each run")
        parser.add_argument("--peer-python", default=str(ROOT / ".venv-peers" / "bin" / "python"))

    def run(self, seeds: int, *, steps: int, peer_python: str, folder: Path | None = None) -> dict[str, Any]:
        """Do the runs that `folder` does not hold, store each when it ends, and return the result of all."""
        path = None if folder is None else folder / f"{self.name}.json"
        backend = keras.backend.backend()
        settings = self.settings(steps)

        def is_same(result: dict[str, Any]) -> bool:
            return result["settings"] == settings and result["backend"] == backend

        def train_one(key: tuple[str, int]) -> tuple[dict[str, Any], str]:
            memory, seed = key
            if memory == CONTRIB:
                words = [peer_python, "-m", "benchmarks.peers.ppo_lstm", str(self.peer), str(seed), str(steps)]
                run = execute(words, variables())
                run["success"] = [run.pop("score")]
            else:
                words = [sys.executable, "-m", "benchmarks.memory_tasks", self.name, memory, str(seed), str(steps)]
                run = execute(words, variables(backend))
            line = f"seed {seed} {memory}: {max(run['success']):.3g}"
            return {"memory": memory, "seed": seed, "machine": machine(), **run}, line

        participants = [memory or WITHOUT for memory in self.memories] + [CONTRIB] * (self.peer is not None)
        return study.complete(
            study.stored_runs(path, is_same),
            [(who, seed) for seed in range(seeds) for who in participants],
            key_of=lambda run: (run["memory"], run["seed"]),
            train=train_one,
            result_of=lambda runs: self.result(runs, steps),
            path=path,
        )

    def settings(self, steps: int) -> dict[str, Any]:
        return {"steps": steps, "every": self.every or steps, "evaluation episodes": EPISODES}

    def result(self, runs: list[dict[str, Any]], steps: int) -> dict[str, Any]:
        """Return what is stored: the runs with settings, summary and table."""
        runs = sorted(runs, key=lambda run: (run["memory"], run["seed"]))
        result = {
            "task": self.name,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "backend": keras.backend.backend(),
            "machine": runs[0]["machine"],
            "title": self.title,
            "goal": self.goal,
            "settings": self.settings(steps),
            "seeds": len({run["seed"] for run in runs}),
            "summary": self.summarize({"runs": runs}),
            "runs": runs,
        }
        return {**result, "table": self.table(result).splitlines()}

    def run_one(self, memory: str, seed: int, steps: int) -> dict[str, Any]:
        """Train an agent with a memory, or `WITHOUT` one, and return its scores, the seconds and the versions."""
        begun = time.perf_counter()
        scores = self.train(None if memory == WITHOUT else memory, seed, steps)
        seconds = round(time.perf_counter() - begun, 1)
        return {"success": scores, "seconds": seconds, "versions": versions(PACKAGES)}

    def train(self, memory: str | None, seed: int, steps: int) -> list[float]:
        """Return the scores of the evaluations."""
        agent = self.make(memory, seed, steps)
        scores = []
        every = min(self.every or steps, steps)
        for _ in range(steps // every):
            agent.fit(steps=every, num_envs=self.num_envs, verbose=0)
            result = agent.evaluate(episodes=EPISODES, num_envs=10, seed=1_000)
            scores.append(float(result[self.score]) / self.scale)
        agent.close()
        return scores

    def summarize(self, result: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the best score of each seed, by memory."""
        curves = by_memory(result["runs"])
        return {name: stats.summarize_scores([max(curve) for curve in some]) for name, some in curves.items()}

    def table(self, result: dict[str, Any]) -> str:
        rows = [
            (name, f"{one['median']:.4g}", iqm(one, digits=2), f"{one['worst']:.4g}")
            for name, one in result["summary"].items()
        ]
        header = ("memory", "median", "IQM (95 % interval)", "worst seed")
        lines = [f"Goal: {result['goal']}", "", markdown_table(header, rows)]
        if CONTRIB in result["summary"]:
            ours, theirs = (result["summary"][who]["scores"] for who in ("lstm", CONTRIB))
            outcome = stats.difference(ours, theirs, self.span)["outcome"]
            lines += ["", f'Beside RecurrentPPO of Stable-Baselines3 Contrib: "{outcome}".']
        return "\n".join(lines)

    def draw(self, result: dict[str, Any]) -> Any:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4))
        axes = figure.subplots()
        for name, curves in by_memory(result["runs"]).items():
            steps = result["settings"]["every"] * np.arange(1, len(curves[0]) + 1)
            axes.plot(steps, np.transpose(curves), marker="o", alpha=0.6, label=[name, *[None] * (len(curves) - 1)])
        axes.set_xlabel("environment steps")
        axes.set_ylabel("score")
        axes.set_title(f"{result['title']}: {result['seeds']} seeds")
        axes.legend()
        axes.grid(alpha=0.3)
        return figure


def memory_options(memory: Any, **options: Any) -> dict[str, Any]:
    """Return the arguments of a memory; none without one."""
    return {} if memory is None else {"recurrent": memory, **options}


def ppo(
    env: Any,
    memory: Any,
    seed: int,
    rate: Any,
    batch_size: int,
    *,
    sequence_length: int | None = None,
    **options: Any,
) -> noterl.PPO:
    """Return compiled PPO with Adam as rl-zoo3 has it.

    Args:
        env: the environment.
        memory: the cell, or None.
        seed: of the agent.
        rate: learning rate, or its schedule.
        batch_size: steps of a minibatch.
        sequence_length: steps of a sequence; None for the default. Only with a memory.
        options: further arguments of `noterl.PPO`.
    """
    agent = noterl.PPO(env, seed=seed, **memory_options(memory, sequence_length=sequence_length), **options)
    agent.compile(keras.optimizers.Adam(rate, epsilon=1e-5, global_clipnorm=0.5), batch_size=batch_size)
    return agent


def cartpole_ppo(memory: str | None, seed: int, steps: int) -> noterl.PPO:
    """Return PPO with rl-zoo3's `ppo_lstm` settings of CartPoleNoVel-v1, and a cell of 64 units.

    Observations are normalized, as for the model that rl-zoo3 has published, which scores 500.
    """
    options = {"gamma": 0.98, "gae_lambda": 0.8, "rollout_steps": 32, "epochs": 20, "activation": "tanh"}
    options |= {"clip": Linear(0.2, 0.0, steps), "normalize_observation": True}
    return ppo(hidden_cartpole, memory, seed, Linear(1e-3, 0.0, steps), 256, sequence_length=32, **options)


def pendulum_ppo(memory: str | None, seed: int, steps: int) -> noterl.PPO:
    """Return PPO with rl-zoo3's `ppo_lstm` settings of PendulumNoVel-v1, without gSDE.

    A minibatch is one sequence, because contrib's minibatches are successive steps.
    """
    options = {"gamma": 0.9, "gae_lambda": 0.95, "rollout_steps": 1_024, "epochs": 10, "activation": "tanh"}
    return ppo(hidden_pendulum, memory, seed, 1e-3, 128, sequence_length=128, **options)


def repeat_ppo(memory: str | None, seed: int, steps: int) -> noterl.PPO:
    """Return PPO for RepeatPrevious, on the device with JAX."""
    on_jax = keras.backend.backend() == "jax"
    env = envs.functional_repeat_previous(4) if on_jax else lambda: envs.RepeatPrevious(4)
    options = {"gamma": 0.99, "rollout_steps": 64, "epochs": 4, "entropy_coefficient": 0.01}
    return ppo(env, memory, seed, 1e-3, 512, **options)


def maze_ppo(memory: str | None, seed: int, steps: int) -> noterl.PPO:
    cell = None if memory is None else noterl.networks.recurrent(memory, layer_norm=True)
    options = {"gamma": 0.98, "rollout_steps": 128, "epochs": 10, "entropy_coefficient": 0.05}
    return ppo(lambda: envs.TMaze(20), cell, seed, 1e-3, 256, sequence_length=64, **options)


def masked_ppo(memory: str | None, seed: int, steps: int) -> noterl.PPO:
    options = {"gamma": 0.95, "rollout_steps": 64, "epochs": 4, "entropy_coefficient": 0.01}
    return ppo(MaskedRecall, memory, seed, 1e-3, 256, **options)


def repeat_dqn(memory: str | None, seed: int, steps: int) -> noterl.DQN:
    agent = noterl.DQN(lambda: envs.RepeatPrevious(4), gamma=0.9, seed=seed, **memory_options(memory))
    policy = LinearEpsGreedyPolicy(1.0, 0.02, steps=max(1, steps // 4))
    agent.compile(keras.optimizers.Adam(1e-3), policy=policy, learning_starts=1_000, update_every=8)
    return agent


def cartpole_dqn(memory: str | None, seed: int, steps: int) -> noterl.DQN:
    agent = noterl.DQN(hidden_cartpole, seed=seed, **memory_options(memory))
    agent.compile()
    return agent


def pendulum_sac(memory: str | None, seed: int, steps: int) -> noterl.SAC:
    agent = noterl.SAC(hidden_pendulum, gamma=0.98, seed=seed, **memory_options(memory, burn_in=8))
    agent.compile()
    return agent


ALL_TASKS = (
    MemoryTask(
        name="memory-cartpole-ppo",
        title="PPO, CartPole without velocities",
        make=cartpole_ppo,
        steps=100_000,
        goal="median 500, worst at least 450",
        SEEDS=10,
    ),
    MemoryTask(
        name="memory-pendulum-ppo",
        title="PPO, Pendulum without the velocity",
        make=pendulum_ppo,
        steps=100_000,
        goal='not "worse" than contrib\'s RecurrentPPO (peers/ppo_lstm.py)',
        num_envs=4,
        peer="pendulum",
        span=1_700.0,
    ),
    MemoryTask(
        name="memory-repeat-ppo",
        title="PPO, RepeatPrevious (k=4)",
        make=repeat_ppo,
        steps=1_000_000,
        goal="at least 0.95",
        num_envs=16,
    ),
    MemoryTask(
        name="memory-repeat-dqn",
        title="DQN, RepeatPrevious (k=4)",
        make=repeat_dqn,
        steps=200_000,
        goal="at least 0.9",
        num_envs=4,
    ),
    MemoryTask(
        name="memory-maze-ppo",
        title="PPO, T-maze of length 20, a cell with layer normalization",
        make=maze_ppo,
        steps=500_000,
        goal="right turn in 95 % of the episodes in 4 of 5 seeds",
        num_envs=16,
        score="success_rate",
        memories=("gru", None),
    ),
    MemoryTask(
        name="memory-cartpole-dqn",
        title="DQN, CartPole without velocities",
        make=cartpole_dqn,
        steps=100_000,
        goal="best evaluation at least 450 in 4 of 5 seeds",
        num_envs=1,
        every=5_000,
        memories=("lstm",),
    ),
    MemoryTask(
        name="memory-pendulum-sac",
        title="SAC, Pendulum without the velocity",
        make=pendulum_sac,
        steps=30_000,
        goal="median at least -300",
        num_envs=1,
        memories=("lstm",),
        SEEDS=3,
    ),
    MemoryTask(
        name="memory-masked-ppo",
        title="PPO, masks and a memory",
        make=masked_ppo,
        steps=200_000,
        goal="at least 0.95 in 5 of 5 seeds; the largest return is 1",
    ),
)
MEMORY_TASKS: dict[str, MemoryTask] = {task.name: task for task in ALL_TASKS}


if __name__ == "__main__":
    chosen, asked, first_seed, budgeted = sys.argv[1:]
    print_json(MEMORY_TASKS[chosen].run_one(asked, int(first_seed), int(budgeted)))

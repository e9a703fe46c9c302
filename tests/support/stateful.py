"""An agent whose actions are right only if its state counts the steps of its episode, and its environment."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import keras
import numpy as np

import noterl
from noterl.policies import GreedyQPolicy
from tests.support.doubles import TogetherVectorEnv
from tests.support.worker_envs import ACTIONS, StepNumberEnv

ops = keras.ops


def counted(first: Any, starts: Any) -> tuple[Any, Any]:
    """Return the counts before the rows of sequences, and after the last row; `first` is the count before row 0."""
    counts, count = [], first
    for row in range(starts.shape[0]):
        count = ops.where(starts[row] > 0, ops.zeros_like(count), count)
        counts.append(count)
        count = count + 1
    return ops.stack(counts), count


def together(mode: str) -> Any:
    """Return a vector environment of three, with an autoreset mode."""
    return TogetherVectorEnv([StepNumberEnv] * 3, autoreset_mode=mode)


# The ways on which steps are collected: an environment, and arguments of `fit`.
PATHS: dict[str, tuple[Any, dict[str, Any]]] = {
    "one lane": (StepNumberEnv, {}),
    "three lanes": (StepNumberEnv, {"num_envs": 3}),
    "lanes of a SyncVectorEnv": (lambda: gymnasium.vector.SyncVectorEnv([StepNumberEnv] * 3), {}),
    "NextStep": (lambda: together("NextStep"), {}),
    "SameStep": (lambda: together("SameStep"), {}),
    "Disabled": (lambda: together("Disabled"), {}),
    "workers": (StepNumberEnv, {"num_envs": 3, "workers": 2}),
}


def logs_of_updates(agent: noterl.Agent, steps: int, **options: Any) -> dict[str, list[float]]:
    """Train, and return the logs of all updates."""
    logs: dict[str, list[float]] = {}

    def keep(update: int, found: dict[str, float]) -> None:
        for name, value in found.items():
            logs.setdefault(name, []).append(value)

    agent.fit(steps=steps, callbacks=[noterl.callbacks.LambdaCallback(on_batch_end=keep)], verbose=0, **options)
    return logs


class StepCounter(noterl.Agent):
    """Counts the steps of the episode in its state: `forward` does not read the observation.

    The state has two parts: an int32 number, and a float32 vector whose mean is the number.
    """

    memory, head = "replay", noterl.heads.Q()
    state_spec: ClassVar[dict[str, Any]] = {"count": ((), "int32"), "trace": (2,)}

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.q = noterl.networks.mlp(self.observation_size, [4], self.action_size)

    def forward(self, observation: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        count = state["count"]
        q = 0.0 * self.q(observation) + 10.0 * ops.one_hot(count % ACTIONS, ACTIONS)
        return q, {"count": count + 1, "trace": state["trace"] + ops.convert_to_tensor([0.5, 1.5])}

    def loss(self, batch: Any) -> Any:
        return ops.mean(noterl.losses.map_rows(self.q, batch.observation))


class StartsAtTwo(StepCounter):
    """Counts from 2."""

    def initial_state(self) -> dict[str, Any]:
        return {"count": 2, "trace": np.full(2, 2.0)}


def counter(env: Any = StepNumberEnv, seed: int | None = 5, kind: type = StepCounter, **settings: Any) -> StepCounter:
    """Return a compiled agent that acts greedily from the first step on and never learns."""
    agent = kind(env, seed=seed)
    defaults = {"policy": GreedyQPolicy(), "replay": noterl.Replay(500), "learning_starts": 1, "update_every": 10**9}
    agent.compile(**{**defaults, "target_update": None, **settings})
    return agent


def stored_faults(agent: noterl.Agent, skip: int = 1) -> list[tuple[int, int]]:
    """Return the pairs (step number, action) of stored transitions, after `skip`, whose action is wrong."""
    storage = agent.replay.storage
    stored = storage.stored_indices()
    rows = zip(storage.observation[stored, 0].astype(int).tolist(), storage.action[stored].tolist(), strict=True)
    return [(number, action) for number, action in list(rows)[skip:] if action != number % ACTIONS]

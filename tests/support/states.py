"""Comparisons of agents' states, two small agents, and a function that runs scripts in other processes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

import noterl
from noterl import policies

ROOT = Path(__file__).parents[2]


def differences(first: Any, second: Any, place: str = "state") -> list[str]:
    """Return the paths at which two state trees differ in value (bit for bit), type, dtype or shape.

    The random identity of a run in the state of a `Checkpoint` does not count, as wall-clock times do not.
    """
    if type(first) is not type(second):
        return [f"{place}: {type(first).__name__} and {type(second).__name__}"]
    if isinstance(first, dict):
        if first.keys() != second.keys():
            return [f"{place}: keys {sorted(first)} and {sorted(second)}"]
        keys = first.keys() - ({"run"} if "callbacks.Checkpoint" in place else set())
        return [found for key in keys for found in differences(first[key], second[key], f"{place}.{key}")]
    if isinstance(first, np.random.Generator):
        return differences(first.bit_generator.state, second.bit_generator.state, place)
    if isinstance(first, list | tuple | deque):
        if len(first) != len(second):
            return [f"{place}: length {len(first)} and {len(second)}"]
        pairs = enumerate(zip(first, second, strict=True))
        return [found for index, pair in pairs for found in differences(*pair, f"{place}[{index}]")]
    if isinstance(first, np.ndarray):
        same = first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()
    else:
        same = first == second or (isinstance(first, float) and math.isnan(first) and math.isnan(second))
    return [] if same else [f"{place}: {first!r:.200} and {second!r:.200}"]


def joined(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state with the two pieces of each column of the memory joined.

    The position at which the ring buffer starts is not part of the state, so the pieces may be cut at different rows.
    """
    if not state["replay"]:
        return state
    replay = dict(state["replay"])

    def whole(pieces: Any) -> Any:
        if isinstance(pieces, dict):
            return {name: whole(part) for name, part in pieces.items()}
        return np.concatenate(pieces)

    replay["columns"] = whole(replay["columns"])
    return {**state, "replay": replay}


def assert_same_state(first: Any, second: Any) -> None:
    """Compare two agents, or two states of agents, bit for bit."""
    states = [joined(each if isinstance(each, dict) else each.get_state()) for each in (first, second)]
    found = differences(*states)
    assert not found, "\n".join(found[:20])


def same_weights(first: Any, second: Any) -> bool:
    """Return whether two agents have equal weights."""
    weights = second.get_weights()
    return all(np.array_equal(array, weights[name]) for name, array in first.get_weights().items())


def one_lane(env: Any = "CartPole-v1", seed: int | None = 7, **changes: Any) -> noterl.DQN:
    """Return a small DQN with hard copies and a policy that counts actions; 20 episodes overflow its memory."""
    agent = noterl.DQN(env, double=True, hidden=(8,), seed=seed)
    settings: dict[str, Any] = {
        "policy": policies.BoltzmannGumbelQPolicy(0.5),
        "replay": noterl.Replay(128),
        "batch_size": 8,
        "learning_starts": 20,
        "update_every": 3,
        "updates": 4,
        "target_update": 20,
    }
    agent.compile(**{**settings, **changes})
    return agent


def four_lanes(env: Any = "CartPole-v1", seed: int | None = 11) -> noterl.DQN:
    """Return a small dueling DQN for four lanes, with Polyak averaging and groups that are split unevenly."""
    agent = noterl.DQN(env, dueling=True, hidden=(8, 8), gamma=0.9, loss="squared", seed=seed)
    agent.compile(
        policy=policies.LinearEpsGreedyPolicy(1.0, 0.1, steps=300),
        replay=noterl.Replay(300),
        batch_size=8,
        learning_starts=30,
        update_every=5,
        updates=5,
        target_update=0.05,
        steps_per_execution=3,
    )
    return agent


def run_python(script: str, *arguments: Any, **environment: str) -> str:
    """Run a script in another process and return its output; `environment` may set another backend."""
    command = [sys.executable, "-W", "error::UserWarning", "-c", script, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    completed = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr[-4000:]
    return completed.stdout

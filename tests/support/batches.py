"""Random batches and small agents for tests of updates, and comparisons of whole states."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import noterl
from noterl.replay import Prioritized
from noterl.types import Batch

VECTOR = (spaces.Box(-10.0, 10.0, (5,), np.float32), spaces.Discrete(3))
CONTINUOUS = (VECTOR[0], spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)))
IMAGE = (spaces.Box(0, 255, (36, 36, 2), np.uint8), spaces.Discrete(3))


def random_batch(
    updates: int, size: int, env: tuple[spaces.Box, Any] = VECTOR, seed: int = 0, gamma: float = 0.9
) -> Batch:
    """Return batches `[K, B, ...]`.

    Weights are between 0.2 and 1.5, rewards reach both branches of the Huber loss, and a quarter of the rows terminate.
    """
    rng = np.random.default_rng(seed)
    observation_space, action_space = env
    rows = (updates, size)

    def observations() -> np.ndarray:
        if observation_space.dtype == np.uint8:
            return rng.integers(0, 256, (*rows, *observation_space.shape), dtype=np.uint8)
        return rng.normal(size=(*rows, *observation_space.shape)).astype(np.float32)

    def actions() -> np.ndarray:
        if isinstance(action_space, spaces.Box):
            return rng.uniform(action_space.low, action_space.high, (*rows, *action_space.shape)).astype(np.float32)
        return rng.integers(action_space.n, size=rows).astype(np.int32)

    return Batch(
        observation=observations(),
        action=actions(),
        reward=rng.normal(scale=1.5, size=rows).astype(np.float32),
        next_observation=observations(),
        discount=np.where(rng.random(rows) < 0.25, 0, gamma).astype(np.float32),
        weight=rng.uniform(0.2, 1.5, rows).astype(np.float32),
        index=np.arange(updates * size).reshape(rows),
        extra={},
    )


def row(batch: Batch, k: int) -> Batch:
    """Return the batch `[B, ...]` of one update."""
    return Batch(*(field[k] for field in batch[:-1]), extra={name: part[k] for name, part in batch.extra.items()})


def part(batch: Batch, start: int, stop: int) -> Batch:
    """Return the batches of the updates `start` to `stop`, without `stop`."""
    chosen = {name: value[start:stop] for name, value in batch.extra.items()}
    return Batch(*(field[start:stop] for field in batch[:-1]), extra=chosen)


def small_dqn(env: Any = VECTOR, *, optimizer: Any = "adam", target_update: Any = 500, **arguments: Any) -> noterl.DQN:
    """Return a built DQN agent with a small memory."""
    settings = {"double": False, "hidden": (8,), "seed": 3, "gamma": 0.9} | arguments
    agent = noterl.DQN(env, **settings)
    replay = noterl.Replay(64, sampler=Prioritized())  # needs the feedback `td_error`
    agent.compile(optimizer, replay=replay, batch_size=4, target_update=target_update, learning_starts=0)
    agent.build()
    return agent


def flat(state: Any, name: str = "") -> dict[str, Any]:
    """Return a state tree as one dict of its leaves."""
    if isinstance(state, dict):
        items = state.items()
    elif isinstance(state, list | tuple):
        items = enumerate(state)
    else:
        return {name: state}
    return {key: leaf for label, value in items for key, leaf in flat(value, f"{name}/{label}").items()}


def differences(first: Any, second: Any) -> list[str]:
    """Return the names of the leaves in which two state trees differ, in value (bit for bit) or type."""
    one, other = flat(first), flat(second)
    different = sorted(one.keys() ^ other.keys())
    for name in one.keys() & other.keys():
        left, right = one[name], other[name]
        if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
            same = left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
        else:
            same = type(left) is type(right) and left == right
        if not same:
            different.append(name)
    return sorted(different)


def copied(state: Any) -> Any:
    """Return a state tree with copies of its arrays, because a memory returns views."""
    if isinstance(state, dict):
        return {name: copied(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(copied(value) for value in state)
    return state.copy() if isinstance(state, np.ndarray) else state


class Corridor(gymnasium.Env):
    """A line of five places, truncated after `length` steps. Each step costs 0.1; reaching the end gives 1.

    The start depends on the seed.
    """

    def __init__(self, length: int = 12) -> None:
        self.observation_space, self.action_space = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(2)
        self.length, self.place, self.steps = length, 0, 0

    def _observation(self) -> np.ndarray:
        return np.array([self.place / 4 - 0.5, self.steps / self.length, 0.3], np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(4)), 0
        return self._observation(), {}

    def step(self, action):
        self.place, self.steps = max(self.place + 2 * int(action) - 1, 0), self.steps + 1
        at_end = self.place >= 4
        return self._observation(), 1.0 if at_end else -0.1, at_end, self.steps >= self.length, {}


def with_fault(batch: Any, k: int, field: str, value: float) -> Any:
    """Return batches `[K, B]` with `value` in the third row of batch k."""
    column = getattr(batch, field).copy()
    column[k, 2] = value
    return batch._replace(**{field: column})

"""Environments with each kind of observation space, for tests of all ways to collect; worker processes import them."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from noterl.envs import FrameStack

PLACE = {"grid": spaces.Box(-1.0, 1.0, (2, 2), np.float64), "marks": spaces.MultiBinary(3)}
SPACES: dict[str, spaces.Space[Any]] = {
    "Box": spaces.Box(-10.0, 10.0, (2,), np.float64),
    "Discrete": spaces.Discrete(50),
    # The part "place/grid" must not be mistaken for the part "grid" of the part "place".
    "Dict": spaces.Dict({"place": spaces.Dict(PLACE), "place/grid": PLACE["grid"], "mode": spaces.Discrete(3)}),
    "Dict-with-image": spaces.Dict({"picture": spaces.Box(0, 255, (2, 3), np.uint8), "place": spaces.Dict(PLACE)}),
    "image": spaces.Box(0, 255, (4, 4), np.uint8),
}
ACTIONS = 3


def observation_of(space: spaces.Space[Any], value: int) -> Any:
    """Return the observation of a state: each state has other numbers, in each part of a Dict."""
    if isinstance(space, spaces.Dict):
        parts = enumerate(space.spaces.items())
        return {name: observation_of(part, value + 100 * index) for index, (name, part) in parts}
    if isinstance(space, spaces.Discrete):
        return value % int(space.n)
    generator = np.random.default_rng(value)
    if isinstance(space, spaces.Box) and space.dtype != np.uint8:
        return generator.uniform(-1.0, 1.0, space.shape).astype(space.dtype)
    return generator.integers(256 if isinstance(space, spaces.Box) else 2, size=space.shape).astype(space.dtype)


class SpaceEnv(gymnasium.Env[Any, Any]):
    """Walks through 11 states, by its actions and its random numbers; state 5 terminates an episode.

    Args:
        kind: of `SPACES`.
        masked: whether `info` holds a mask of the actions, of which one is illegal in each state.
        flag: path of a file; the first environment to take its tenth step without this file creates the file, and kills
            its process. Empty for none.
    """

    def __init__(self, kind: str, masked: bool = False, flag: str = "") -> None:
        self.observation_space, self.action_space = SPACES[kind], spaces.Discrete(ACTIONS)
        self.masked, self.flag = masked, flag
        self.value = self.steps = self.total = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.value, self.steps = int(self.np_random.integers(5)), 0
        return self._observation(), self._info(False)

    def step(self, action: Any) -> Any:
        if self.masked and not self._legal()[action]:
            raise ValueError(f"{action} is illegal in {self.value}")
        self.total += 1
        if self.flag and self.total == 10:
            with contextlib.suppress(FileExistsError):
                open(self.flag, "x").close()
                os.kill(os.getpid(), signal.SIGKILL)
        self.value = (3 * self.value + int(action) + int(self.np_random.integers(3))) % 11
        self.steps += 1
        terminated = self.value == 5
        return self._observation(), 0.1 * int(action), terminated, self.steps >= 7, self._info(terminated)

    def _legal(self) -> np.ndarray[Any, Any]:
        return (self.value + np.arange(ACTIONS)) % ACTIONS != 0

    def _observation(self) -> Any:
        return observation_of(self.observation_space, self.value)

    def _info(self, terminated: bool) -> dict[str, Any]:
        return {"action_mask": self._legal() & (not terminated)} if self.masked else {}


def make(kind: str, flag: str = "") -> gymnasium.Env[Any, Any]:
    """Make an environment of a kind of `SPACES`, or "masked" and such a kind; images are in stacks of two frames."""
    *masked, space = kind.split()
    env = SpaceEnv(space, bool(masked), flag)
    return FrameStack(env, 2) if space == "image" else env


class SpaceTeam:
    """Two agents with lists as observations: a Dict, and a number."""

    def __init__(self) -> None:
        self.observation_space = [SPACES["Dict"], SPACES["Discrete"]]
        self.action_space = [spaces.Discrete(ACTIONS)] * 2

    def reset(self, seed: int | None = None) -> Any:
        self.generator, self.steps = np.random.default_rng(seed), 0
        self.value = int(self.generator.integers(5))
        return self._observations(), {}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        self.value = (3 * self.value + sum(map(int, actions)) + int(self.generator.integers(3))) % 11
        return self._observations(), [1.0 * self.value, 2.0], self.value == 5, self.steps >= 7, {}

    def _observations(self) -> list[Any]:
        return [observation_of(space, self.value) for space in self.observation_space]

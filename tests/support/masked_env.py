"""An environment that reports legal actions and refuses illegal ones."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class MaskedWalk(gymnasium.Env[Any, Any]):
    """Four actions, of which the legal ones depend on the state; in terminal states, none is legal.

    Args:
        masks: "some" for masks with one to three legal actions, "all" for masks that allow everything, "none" for no
            masks.
        length: steps after which an episode is truncated.
    """

    def __init__(self, masks: str = "some", length: int = 6) -> None:
        self.masks, self.length = masks, length
        self.observation_space = spaces.Box(-20.0, 20.0, (2,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.value = self.count = 0

    def legal(self) -> np.ndarray:
        return (self.value + np.arange(4)) % 3 != 0 if self.masks == "some" else np.ones(4, np.bool_)

    def observation(self) -> np.ndarray:
        return np.array([self.value, self.count], np.float32)

    def info(self, terminated: bool = False) -> dict[str, Any]:
        mask = self.legal() & (not terminated)
        return {} if self.masks == "none" else {"action_mask": mask.astype(np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.value, self.count = int(self.np_random.integers(11)), 0
        return self.observation(), self.info()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self.legal()[action]:
            raise ValueError(f"{action} is illegal in {self.value}")
        self.value = (3 * self.value + int(action) + int(self.np_random.integers(3))) % 11
        self.count += 1
        terminated = self.value == 5
        return self.observation(), 0.1 * int(action), terminated, self.count >= self.length, self.info(terminated)


def legal_actions(observation: np.ndarray) -> np.ndarray:
    """Return the masks `[..., 4]` of observations `[..., 2]` of `MaskedWalk`, also where none was reported."""
    return (observation[..., :1].astype(np.int64) + np.arange(4)) % 3 != 0


class LateMask(MaskedWalk):
    """Reports no mask if the seed of the reset is 0."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        return observation, {} if seed == 0 else info

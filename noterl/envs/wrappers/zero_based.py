"""Wrappers that let discrete values start at zero where an environment's do not.

Owns: the difference between what the environment counts from and what the library counts from. Nothing else in the
library knows of `Discrete(n, start=...)`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space

from noterl.envs.spaces import parts_of


def offsets(space: Space[Any]) -> Any:
    """Return what must be subtracted from values of `space` so that discrete ones start at zero; None for nothing.

    An int for Discrete, an array for MultiDiscrete, a dict of those (of the keys that need it) for Dict and Tuple.
    """
    if isinstance(space, spaces.Discrete):
        return int(space.start) or None
    if isinstance(space, spaces.MultiDiscrete):
        return space.start.astype(np.int64) if space.start.any() else None
    found = {key: offsets(part) for key, part in parts_of(space).items()}
    return {key: offset for key, offset in found.items() if offset is not None} or None


def from_zero(space: Space[Any]) -> Space[Any]:
    """Return `space` with its discrete parts starting at zero; the same object if they do already."""
    if offsets(space) is None:
        return space
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec, dtype=space.dtype.type)
    if isinstance(space, spaces.Dict):
        return spaces.Dict(OrderedDict((key, from_zero(part)) for key, part in space.spaces.items()))
    assert isinstance(space, spaces.Tuple)
    return spaces.Tuple([from_zero(part) for part in space.spaces])


def shift(value: Any, offset: Any, sign: int) -> Any:
    """Return `value` plus `sign` times `offset`, for one value or a batch of them; changes nothing in place.

    Arrays keep their dtype: the sum wraps around, which is exact because the result lies within the space.
    """
    if offset is None:
        return value
    if isinstance(value, Mapping):
        return {key: shift(part, offset.get(key), sign) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(shift(part, offset.get(index), sign) for index, part in enumerate(value))
    if isinstance(value, np.ndarray):
        return value + np.asarray(sign * offset).astype(value.dtype)
    return int(value) + sign * offset


class FromZero(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """One environment whose discrete actions and observations start at zero.

    Example:
    >>> from gymnasium.spaces import Discrete
    >>> from gymnasium.wrappers import TransformAction
    >>> from_one = TransformAction(gymnasium.make("CartPole-v1"), lambda action: action - 1, Discrete(2, start=1))
    >>> FromZero(from_one).action_space
    Discrete(2)
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        """Wrap `env`; spaces that start at zero already are left alone."""
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        self._observation_offset = offsets(env.observation_space)
        self._action_offset = offsets(env.action_space)
        self.observation_space = from_zero(env.observation_space)
        self.action_space = from_zero(env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and return the shifted observation with its info."""
        observation, info = self.env.reset(seed=seed, options=options)
        return shift(observation, self._observation_offset, -1), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step with the action the environment knows, and return the shifted observation."""
        result = self.env.step(shift(action, self._action_offset, +1))
        return shift(result[0], self._observation_offset, -1), *result[1:]


class VectorFromZero(gymnasium.vector.VectorWrapper):
    """A vector environment whose discrete actions and observations start at zero, in every autoreset mode."""

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        """Wrap `env`; spaces that start at zero already are left alone."""
        super().__init__(env)
        self._observation_offset = offsets(env.single_observation_space)
        self._action_offset = offsets(env.single_action_space)
        self.single_observation_space = from_zero(env.single_observation_space)
        self.single_action_space = from_zero(env.single_action_space)
        if self._observation_offset is not None:
            self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        if self._action_offset is not None:
            self.action_space = batch_space(self.single_action_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environments and return the shifted observations with their infos."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return shift(observations, self._observation_offset, -1), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step with the actions the environments know, and return the shifted observations."""
        result = self.env.step(shift(actions, self._action_offset, +1))
        infos = result[4]
        if self._observation_offset is not None and "final_obs" in infos:
            infos = {**infos, "final_obs": self._shift_final(infos["final_obs"])}
        return shift(result[0], self._observation_offset, -1), *result[1:4], infos

    def _shift_final(self, final: Any) -> np.ndarray:
        """Shift the last observations of SAME_STEP: an object array with None for lanes that go on."""
        shifted = np.full(len(final), None, dtype=object)
        for lane, observation in enumerate(final):
            if observation is not None:
                shifted[lane] = shift(observation, self._observation_offset, -1)
        return shifted

"""Wrappers for agents with a memory: hide a part of the observation, or add what an agent may need to remember."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from noterl.envs.spaces import show
from noterl.envs.wrappers.masks import with_masks


class Hide(gymnasium.ObservationWrapper[Any, Any, Any], RecordConstructorArgs):
    """Sets components of a vector of observations to 0; `hide` returns such an environment.

    Args:
        env: an environment whose observations are vectors.
        indices: the components.

    Raises:
        ValueError: if the observations are no vectors, or have no such components.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], indices: Sequence[int]) -> None:
        RecordConstructorArgs.__init__(self, indices=indices)
        gymnasium.ObservationWrapper.__init__(self, env)
        space = env.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise ValueError(f"env must have vectors as observations, got {show(space)}")
        hidden = np.asarray(indices)
        if hidden.dtype.kind not in "iu" or hidden.ndim != 1 or ((hidden < 0) | (hidden >= space.shape[0])).any():
            raise ValueError(f"indices must be components of {show(space)}, 0 to {space.shape[0] - 1}, got {indices!r}")
        self._hidden = hidden

    def observation(self, observation: Any) -> Any:
        """Return the observation with zeros."""
        # A copy, because the environment may keep the array.
        shown = np.array(observation)
        shown[self._hidden] = 0
        return shown


def hide(env: gymnasium.Env[Any, Any] | str, indices: Sequence[int]) -> Hide:
    """Return an environment with components of observations set to 0, so that an agent must remember the components.

    Args:
        env: an environment whose observations are vectors, or an id.
        indices: the components, such as the velocities of CartPole, `[1, 3]`.

    Raises:
        ValueError: if the observations are no vectors, or have no such components.

    Example:
    >>> from noterl import envs
    >>> env = envs.hide("CartPole-v1", [1, 3])
    >>> observation, _ = env.reset(seed=0)
    >>> observation[[1, 3]].tolist()
    [0.0, 0.0]
    """
    return Hide(gymnasium.make(env) if isinstance(env, str) else env, indices)


class PreviousStep(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Makes the observation a Dict of observation, last action and last reward, which are zeros at a start.

    Args:
        env: the environment.

    Raises:
        ValueError: if the action space is not Discrete, MultiDiscrete, MultiBinary or Box.

    Example:
    >>> import gymnasium
    >>> from noterl import envs
    >>> env = envs.PreviousStep(gymnasium.make("CartPole-v1"))
    >>> observation, _ = env.reset(seed=0)
    >>> observation["action"].tolist(), observation["reward"].tolist()
    ([0.0, 0.0], [0.0])
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, with_masks(env))  # masks would be hidden in "observation"
        space = env.action_space
        if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box):
            raise ValueError(f"env must have Discrete, MultiDiscrete, MultiBinary or Box actions, got {show(space)}")
        # Discrete actions are one-hot: zeros are no action.
        size = spaces.flatdim(space)
        low, high = (space.low, space.high) if isinstance(space, spaces.Box) else (np.zeros(size), np.ones(size))
        # The bounds include the zeros of the first observation.
        bounds = np.minimum(low, 0).ravel().astype(np.float32), np.maximum(high, 0).ravel().astype(np.float32)
        parts = {
            "observation": env.observation_space,
            "action": spaces.Box(*bounds),
            "reward": spaces.Box(-np.inf, np.inf, (1,), np.float32),
        }
        self.observation_space: Any = spaces.Dict(parts)

    def reset(self, **arguments: Any) -> Any:
        """Start an episode."""
        observation, info = self.env.reset(**arguments)
        action = np.zeros(self.observation_space["action"].shape, np.float32)
        return {"observation": observation, "action": action, "reward": np.zeros(1, np.float32)}, info

    def step(self, action: Any) -> Any:
        """Step, and observe the action and the reward."""
        flat = np.array(spaces.flatten(self.env.action_space, action), np.float32)  # the environment may change it
        observation, reward, *others = self.env.step(action)
        return {"observation": observation, "action": flat, "reward": np.array([reward], np.float32)}, reward, *others

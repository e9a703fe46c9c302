"""`FrameStack`: a wrapper that stacks the last frames along the last axis, the oldest first."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from noterl.utils.checks import check_positive


class FrameStack(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Returns the last frames of an environment as one observation; the first frame of an episode is repeated.

    A frame `[height, width]` becomes `[height, width, frames]`, one `[height, width, channels]` becomes `[height,
    width, frames * channels]`, and a vector `[size]` becomes `[frames * size]`. `noterl.Replay(...,
    frame_stack=frames)` stores each frame once.

    Args:
        env: an environment whose observation space is a Box, or a Dict whose part "observation" (a Box) is stacked.
        frames: the number of frames.

    Raises:
        ValueError: if the observation space is another one, or if `frames` is not a positive int.

    Example:
    >>> import gymnasium
    >>> from noterl.envs import FrameStack
    >>> FrameStack(gymnasium.make("CartPole-v1"), 4).observation_space.shape
    (16,)
    """

    def __init__(self, env: gymnasium.Env[Any, Any], frames: int) -> None:
        RecordConstructorArgs.__init__(self, frames=frames)
        gymnasium.Wrapper.__init__(self, env)
        self._frames = check_positive("frames", frames)
        space: Any = env.observation_space
        self._nested = isinstance(space, spaces.Dict)
        part = space.spaces.get("observation") if self._nested else space
        if not isinstance(part, spaces.Box) or not part.shape:
            raise ValueError(f"env must have a Box of observations with axes, or a Dict with one, got {space}")
        low = self._with_channels(part.low)
        high = self._with_channels(part.high)
        self._channels = low.shape[-1]
        stacked = spaces.Box(np.tile(low, frames), np.tile(high, frames), dtype=part.dtype.type)
        self.observation_space: Any = spaces.Dict({**space.spaces, "observation": stacked}) if self._nested else stacked
        self._stack = np.zeros(stacked.shape, part.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the stack is the first frame, repeated."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._stack = np.tile(self._frame(observation), self._frames)
        return self._stacked(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and append the new frame to the stack."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._stack = np.concatenate([self._stack[..., self._channels :], self._frame(observation)], -1)
        return self._stacked(observation), reward, terminated, truncated, info

    def _frame(self, observation: Any) -> Any:
        return self._with_channels(np.asarray(observation["observation"] if self._nested else observation))

    def _with_channels(self, frame: Any) -> Any:
        return frame[..., None] if frame.ndim == 2 else frame

    def _stacked(self, observation: Any) -> Any:
        return {**observation, "observation": self._stack} if self._nested else self._stack

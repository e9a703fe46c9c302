"""Wrappers for environments whose observations are images."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from noterl.envs.rewards import UNCLIPPED_REWARD
from noterl.envs.spaces import show
from noterl.utils.checks import check_bool, check_int
from noterl.utils.optional import require


def preprocess(
    env: gymnasium.Env[Any, Any],
    *,
    skip: int = 1,
    grayscale: bool = False,
    resize: int | tuple[int, int] | None = None,
    scale: bool = False,
    stack: int | None = None,
    clip_rewards: bool = False,
) -> gymnasium.Env[Any, Any]:
    """Return an image environment in gymnasium's wrappers, in the order of these arguments.

    For Atari games, `noterl.envs.Atari` is faster.

    Args:
        env: an environment whose observations are images `[height, width, 3]` of bytes; `[height, width]` without
            `grayscale`.
        skip: steps for which an action is repeated. The rewards are added, and each pixel is the maximum of the last
            two steps (`MaxAndSkipObservation`).
        grayscale: whether images become gray, `[height, width]`.
        resize: the new height and width, or one int for both; needs the extra `atari`, which installs OpenCV.
        scale: whether bytes become float32 between 0 and 1. Networks of noterl scale bytes by themselves, and a memory
            of bytes is four times smaller.
        stack: the number of last images in an observation, the oldest first; the first one of an episode is repeated.
            None leaves single images. `noterl.Replay(..., frame_stack=stack)` stores each image once.
        clip_rewards: whether agents learn from the signs of the rewards; see `ClipRewards`.

    Raises:
        ValueError: if observations are not images of bytes, or an argument is not one of the allowed values.
        ImportError: if `resize` is given and OpenCV is not installed.

    Example:
    >>> import gymnasium
    >>> import numpy as np
    >>> from noterl.envs import preprocess
    >>> class Screen(gymnasium.Env):
    ...     observation_space = gymnasium.spaces.Box(0, 255, (96, 96, 3), np.uint8)
    ...     action_space = gymnasium.spaces.Discrete(2)
    >>> preprocess(Screen(), grayscale=True, stack=4).observation_space.shape
    (4, 96, 96)
    """
    from gymnasium import wrappers

    space = env.observation_space
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        raise ValueError(
            "env must have images [height, width] or [height, width, channels] of bytes as observations, got "
            f"{show(space)}"
        )
    for name, value in {"grayscale": grayscale, "scale": scale, "clip_rewards": clip_rewards}.items():
        check_bool(name, value)
    if check_int("skip", skip) > 1:
        env = wrappers.MaxAndSkipObservation(env, skip)
    if grayscale:
        if space.shape[2:] != (3,):
            raise ValueError(f"grayscale must be False for images without three colors, got {show(space)}")
        env = wrappers.GrayscaleObservation(env)
    if resize is not None:
        require("cv2", "atari", "preprocess(resize=)")
        env = wrappers.ResizeObservation(env, _size(resize))
    if scale:
        pixels = spaces.Box(0.0, 1.0, env.observation_space.shape, np.float32)
        env = wrappers.TransformObservation(env, _divided, pixels)
    if stack is not None:
        env = wrappers.FrameStackObservation(env, check_int("stack", stack))
    return ClipRewards(env) if clip_rewards else env


def _size(resize: Any) -> tuple[int, int]:
    pair = resize if isinstance(resize, tuple | list) else (resize, resize)
    if len(pair) != 2:
        raise ValueError(f"resize must be an int, a pair (height, width) or None, got {resize!r}")
    return check_int("resize", pair[0]), check_int("resize", pair[1])


def _divided(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return image.astype(np.float32) / np.float32(255)


class ClipRewards(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Returns the sign of the reward: -1, 0 or 1. Logs and evaluations still show the environment's reward.

    Args:
        env: the environment.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, and put the environment's reward into `info`."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        number = float(reward)
        return observation, float(np.sign(number)), terminated, truncated, {**info, UNCLIPPED_REWARD: number}

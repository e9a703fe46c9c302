"""`MaskInInfo`: passes on, as `info["action_mask"]`, the masks that an environment reports in another way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from noterl.envs.wrappers.classic import layers
from noterl.utils.masks import ACTION_MASK, part_sizes


class MaskInInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the legal actions to the `info` of `reset` and `step`, unless it holds them or the episode has terminated.

    Args:
        env: the environment.
        is_observed: whether observations hold the legal actions; otherwise a method of the environment returns them.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], is_observed: bool) -> None:
        super().__init__(env)
        self._is_observed = is_observed

    @property
    def spec(self) -> Any:  # type: ignore[override]  # gymnasium's base class declares an attribute
        """The spec of the wrapped environment: noterl adds this wrapper to a copy again."""
        return self.env.spec

    def reset(self, **arguments: Any) -> Any:
        """Start an episode."""
        result: Any = self.env.reset(**arguments)
        return self._with_mask(result, False) if isinstance(result, tuple) and len(result) == 2 else result

    def step(self, action: Any) -> Any:
        """Take an action."""
        result: Any = self.env.step(action)
        return self._with_mask(result, result[2]) if isinstance(result, tuple) and len(result) == 5 else result

    def _with_mask(self, result: tuple[Any, ...], terminated: Any) -> tuple[Any, ...]:
        """Return the result of `reset` or `step` with the mask in `info`, unless a mask is there or none is needed."""
        info = result[-1] if isinstance(result[-1], Mapping) else {}
        # After a termination there is no action to choose.
        if terminated or ACTION_MASK in info:
            return result
        # Found at each step, because a copy of this wrapper holds another environment.
        mask = mask_of_observation(result[0]) if self._is_observed else _masked_layer(self.env).action_masks()
        return (*result[:-1], {**info, ACTION_MASK: mask})


def with_masks(env: Any) -> Any:
    """Return an environment that reports masks in `info`; without masks in another place, the environment is unchanged.

    PettingZoo's environments have masks in `observation["action_mask"]`, sb3-contrib's in `env.action_masks()`.
    """
    observation_space, action_space = (getattr(env, f"{role}_space", None) for role in ("observation", "action"))
    has_wrapper = any(isinstance(layer, MaskInInfo) for layer in layers(env))
    if has_wrapper or action_space is None or not part_sizes(action_space):
        return env
    is_observed = masks_in_observation(observation_space, action_space)
    return MaskInInfo(env, is_observed) if is_observed or _masked_layer(env) is not None else env


def masks_in_observation(observation_space: Any, action_space: Any) -> bool:
    """Return whether observations hold the masks of actions."""
    members = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {}
    sizes = part_sizes(action_space)
    return bool(sizes) and ACTION_MASK in members and members[ACTION_MASK].shape == (sum(sizes),)


def _masked_layer(env: Any) -> Any:
    """Return the environment or wrapper that has a method `action_masks`, or None."""
    return next((layer for layer in layers(env) if callable(getattr(layer, "action_masks", None))), None)


def mask_of_observation(observation: Any) -> Any:
    """Return the mask in an observation, or in a batch of observations."""
    return np.asarray(observation[ACTION_MASK]).astype(np.bool_)

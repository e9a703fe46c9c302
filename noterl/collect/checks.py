"""Checks of what environments return, and of saved states of lanes, which may come from hostile files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from noterl.envs.observation import has_layout

if TYPE_CHECKING:
    from noterl.envs import EnvSource

# Bytes of actions that vector lanes keep to restore a run: 64 million steps of up to 256 discrete actions.
MAX_HISTORY = 2**26


class InvalidStepError(ValueError):
    """An environment returned an invalid observation or reward; the message names the lane and the step."""


class Checker:
    """Checks observations and rewards; under a microsecond each for small observations.

    Args:
        observation_space: of one environment.
        name: what an error calls an observation.
    """

    def __init__(self, observation_space: spaces.Space[Any], name: str = "observation") -> None:
        self._name = name
        parts = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {}
        self._parts = {key: Checker(part, f"{name}[{key!r}]") for key, part in parts.items()}
        self._floating = isinstance(observation_space, spaces.Box) and observation_space.dtype.kind == "f"
        self._discrete = observation_space if isinstance(observation_space, spaces.Discrete) else None
        self._shape = observation_space.shape
        size = int(np.prod(self._shape)) if self._shape is not None else 0
        # 0 * x is 0 for every finite x and NaN for all others, so one dot product finds them.
        self._zeros = np.zeros(size, observation_space.dtype if self._floating else np.float32)

    def observation(self, observation: Any, lane: int, step: int) -> None:
        """Raise unless the observation has the space's shape, is finite and, for a Discrete space, lies in it."""
        if self._shape is None:
            for key, checker in self._parts.items():
                if key not in observation:
                    raise InvalidStepError(f"{self._name} of environment {lane} at step {step} has no key {key!r}")
                checker.observation(observation[key], lane, step)
            return
        # Only floats are converted to an array: stacked frames may be lazy, and conversion would stack them here.
        value = np.asarray(observation) if self._floating and type(observation) is not np.ndarray else observation
        shape = value.shape if type(value) is np.ndarray else np.shape(value)
        if shape != self._shape:
            raise InvalidStepError(
                f"{self._name} of environment {lane} at step {step} has the shape {shape}, but its space has the shape "
                f"{self._shape}"
            )
        if self._floating:
            if math.isnan((value if value.ndim == 1 else value.reshape(-1)).dot(self._zeros)):
                raise InvalidStepError(
                    f"{self._name} of environment {lane} at step {step} is not finite: {observation!r}"
                )
        elif self._discrete is not None and not 0 <= value < self._discrete.n:
            raise InvalidStepError(
                f"{self._name} of environment {lane} at step {step} is not in {self._discrete}: {observation!r}"
            )

    def reward(self, reward: Any, lane: int, step: int) -> None:
        """Raise unless the reward is a finite number."""
        try:
            finite = math.isfinite(reward)
        except TypeError:
            raise InvalidStepError(
                f"reward of environment {lane} at step {step} must be a number, got {reward!r}"
            ) from None
        if not finite:
            raise InvalidStepError(f"reward of environment {lane} at step {step} is not finite: {reward!r}")


def check_state(state: Any, source: EnvSource) -> None:
    """Raise unless lanes of environments with the source's spaces can restore a state in the next `fit`.

    Raises:
        ValueError: if their `get_state` never returns such a state.
    """
    try:
        lanes, ledger = state["lanes"], state["ledger"]
        valid = len(lanes) > 0
        valid &= all(len(ledger[name]) == len(lanes) for name in ("returns", "lengths", "numbers", "running"))
        valid &= all(type(running) is bool for running in ledger["running"])
        valid &= all(type(number) is int and number >= -1 for name in ("lengths", "numbers") for number in ledger[name])
        valid &= all(type(value) is float for value in ledger["returns"])
        valid &= all(ledger["numbers"][lane] >= 0 for lane, running in enumerate(ledger["running"]) if running)
        over = ledger["over"]
        valid &= isinstance(over, list) and len({*over}) == len(over)
        for lane in over:
            valid &= type(lane) is int and 0 <= lane < len(lanes) and not ledger["running"][lane]
            valid &= ledger["numbers"][lane] >= 0
        valid &= all(has_layout(source.observation_space, lane["observation"]) for lane in lanes)
        if "vector" in state:
            valid &= _is_vector(state["vector"], len(lanes), source)
        else:
            valid &= type(state["cursor"]) is int and 0 <= state["cursor"] <= len(lanes)
            valid &= all(_is_lane(lane, source) for lane in lanes)
            if state["actions"] is not None:
                valid &= len(state["actions"]) == len(lanes) and state["cursor"] < len(lanes)
                valid &= _are_actions(state["actions"], source.action_space)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"the state of the environments is malformed: {error!r}") from error
    if not valid:
        raise ValueError("the state of the environments is malformed, or of environments with other spaces")


def _is_lane(lane: Any, source: EnvSource) -> bool:
    valid = type(lane["seed"]) is int and 0 <= lane["seed"] < 2**31
    if source.team is not None:
        valid &= np.shape(lane["earned"]) == (len(source.team),) and lane["earned"].dtype == np.float64
    return valid and isinstance(lane["environment"], dict | None) and _are_actions(lane["actions"], source.action_space)


def _is_vector(vector: Any, count: int, source: EnvSource) -> bool:
    actions = vector["actions"]
    valid = isinstance(vector["mode"], str) and type(vector["discarded"]) is bool
    valid &= type(vector["seed"]) is int and 0 <= vector["seed"] < 2**31
    valid &= vector["unreset"].shape == (count,) and vector["unreset"].dtype == bool
    if valid and actions is not None:
        valid = actions.shape[1:2] == (count,) and actions.nbytes <= MAX_HISTORY
        valid = valid and _are_actions(actions.reshape(-1, *actions.shape[2:]), source.action_space)
    return valid


def _are_actions(actions: np.ndarray, space: spaces.Space[Any]) -> bool:
    """Return whether an array holds actions of the space, `[n, ...]`; an empty array may have any dtype."""
    if not actions.size:
        return actions.ndim > 0
    if not isinstance(space, spaces.Discrete):
        return actions.shape[1:] == space.shape and actions.dtype == space.dtype
    return actions.ndim == 1 and actions.dtype.kind in "iu" and bool((actions >= 0).all() and (actions < space.n).all())

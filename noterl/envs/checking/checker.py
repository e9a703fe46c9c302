"""Checks of what environments return, in training and in `noterl.envs.check`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces


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

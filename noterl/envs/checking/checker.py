"""Checks of the observations and rewards that environments return, in training and in `noterl.envs.check`."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.envs.spaces import show

# Networks and memories hold float32.
_LARGEST = float(np.finfo(np.float32).max)


class InvalidStepError(ValueError):
    """An environment returned an invalid observation or reward; the message names the lane and the step."""


def check_reset(result: Any) -> None:
    """Raise an `InvalidStepError` if the result of `reset` is not a pair."""
    _check_count(result, "reset", "(observation, info)")


def check_step(result: Any) -> None:
    """Raise an `InvalidStepError` if the result of `step` does not have five values."""
    _check_count(result, "step", "(observation, reward, terminated, truncated, info)")


def _check_count(result: Any, name: str, values: str) -> None:
    if not isinstance(result, tuple | list) or len(result) != len(values.split(",")):
        raise InvalidStepError(f"{name} must return {values}, got {show(repr(result))}")


class Checker:
    """Checks observations and rewards, each in less than a microsecond for small observations.

    Args:
        observation_space: of one environment.
        name: the name of an observation in error messages.
        warn_outside: whether to warn of the first observation that is found outside of the bounds of the space. The
            first 1,000 observations are compared with the bounds, and then every 100th.
    """

    def __init__(
        self, observation_space: spaces.Space[Any], name: str = "observation", *, warn_outside: bool = False
    ) -> None:
        self._name, self._space, self._shape = name, observation_space, observation_space.shape
        parts = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {}
        self._parts = {key: Checker(part, f"{name}[{key!r}]") for key, part in parts.items()}
        self._floating = isinstance(observation_space, spaces.Box) and observation_space.dtype.kind == "f"
        self._discrete = observation_space if isinstance(observation_space, spaces.Discrete) else None
        self._weights = _weights(math.prod(self._shape or ()), np.dtype(observation_space.dtype or np.float32))
        self._examined = 0
        # The number of observations until one is compared with the bounds; if negative, none is.
        self._until = 1 if warn_outside and _is_bounded(observation_space) else -1

    def observation(self, observation: Any, lane: int, step: int) -> None:
        """Raise unless the observation has the shape of its space, fits float32 and, for a Discrete space, is in it."""
        if self._shape is None:
            for key, checker in self._parts.items():
                if key not in observation:
                    raise InvalidStepError(f"{self._name} of environment {lane} at step {step} has no key {key!r}")
                checker.observation(observation[key], lane, step)
        else:
            self._check_array(observation, lane, step)
        self._until -= 1
        if self._until == 0:
            self._examine(observation, lane, step)

    def _check_array(self, observation: Any, lane: int, step: int) -> None:
        # Only floats are converted to an array: lazily stacked frames are not, because that would stack them here.
        value = np.asarray(observation) if self._floating and type(observation) is not np.ndarray else observation
        shape = value.shape if type(value) is np.ndarray else np.shape(value)
        if shape != self._shape:
            raise InvalidStepError(
                f"{self._name} of environment {lane} at step {step} has the shape {shape}, but its space has the shape "
                f"{self._shape}"
            )
        if self._floating:
            if value.dtype is not self._weights.dtype:
                self._weights = _weights(value.size, value.dtype)
            # If this product is finite, float32 can hold all values. Unlike `dot`, `vdot` never warns.
            if (
                not math.isfinite(np.vdot(value, self._weights))
                and not (np.abs(value.astype(np.float64)) <= _LARGEST).all()
            ):
                fault = "exceeds float32" if np.isfinite(value).all() else "is not finite"
                raise InvalidStepError(f"{self._name} of environment {lane} at step {step} {fault}: {observation!r}")
        elif self._discrete is not None and not 0 <= value < self._discrete.n:
            raise InvalidStepError(
                f"{self._name} of environment {lane} at step {step} is not in {self._discrete}: {observation!r}"
            )

    def _examine(self, observation: Any, lane: int, step: int) -> None:
        """Warn if the observation lies outside of the bounds; otherwise set which one is compared next."""
        self._examined += 1
        if _is_inside(observation, self._space):
            self._until = 1 if self._examined < 1000 else 100
            return
        warnings.warn(
            f"{self._name} of environment {lane} at step {step} is outside of the bounds of {self._space}: "
            f"{observation!r}. Training continues with such observations, without further warnings.",
            RuntimeWarning,
            stacklevel=3,
        )

    def reward(self, reward: Any, lane: int, step: int) -> None:
        """Raise unless the reward is a finite number that float32 can hold."""
        try:
            size = math.fabs(reward)
        except TypeError:
            raise InvalidStepError(
                f"reward of environment {lane} at step {step} must be a number, got {reward!r}"
            ) from None
        if not size <= _LARGEST:
            fault = "exceeds float32" if math.isfinite(size) else "is not finite"
            raise InvalidStepError(f"reward of environment {lane} at step {step} {fault}: {reward!r}")


def _weights(size: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return weights whose dot product with an array `[size]` is finite only if float32 can hold all its values.

    For float64, a product overflows if x exceeds float32. For other dtypes, the weights are 0, and 0 * x is NaN if x is
    not finite.
    """
    if dtype == np.float64:
        return np.full(size, np.finfo(np.float64).max / _LARGEST)
    return np.zeros(size, dtype)


def _is_bounded(space: spaces.Space[Any]) -> bool:
    """Return whether a value of the space's dtype may lie outside of it; False for Discrete, where this is an error."""
    if isinstance(space, spaces.Dict):
        return any(map(_is_bounded, space.spaces.values()))
    if not isinstance(space, spaces.Box):
        return isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary)
    if space.dtype.kind not in "iu":
        return bool(np.isfinite(space.low).any() or np.isfinite(space.high).any())
    limits = np.iinfo(space.dtype)
    return bool((space.low > limits.min).any() or (space.high < limits.max).any())


def _is_inside(value: Any, space: Any) -> bool:
    """Return whether a value lies within the bounds of its space, after conversion to the dtype of the space."""
    if isinstance(space, spaces.Dict):
        return all(_is_inside(value[name], part) for name, part in space.spaces.items())
    if isinstance(space, spaces.Discrete):
        return True
    low, high = (space.low, space.high) if isinstance(space, spaces.Box) else (0, getattr(space, "nvec", 2) - 1)
    value = np.asarray(value, space.dtype)
    return bool(((value >= low) & (value <= high)).all())

"""Checks of the observations and rewards that environments return, in training and in `noterl.envs.check`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.envs.ends import InvalidStepError, check_end
from noterl.envs.observation import fit_dtype
from noterl.envs.spaces import show

# As messages show the result of `step`; `_check_count` counts the values by the commas.
STEP = "(observation, reward, terminated, truncated, info)"
# Networks and memories hold float32.
_LARGEST = float(np.finfo(np.float32).max)
# What environments usually return as `terminated` and `truncated`; `check_end` looks at anything else.
_FLAGS = frozenset({bool, np.bool_})


def _check_count(result: Any, name: str, values: str) -> None:
    """Raise an `InvalidStepError` if the result of `reset` or `step` does not have so many values."""
    if not isinstance(result, tuple | list) or len(result) != len(values.split(",")):
        raise InvalidStepError(f"{name} must return {values}, got {show(repr(result))}")


class Checker:
    """Checks observations and rewards, each in less than a microsecond for small observations.

    Training calls a checker in each step. Lanes, evaluations, recordings and `check` have a checker each.

    The first 1,000 observations, and then every 100th, are compared with the dtype of the space: a value that a
    conversion would change is an error, unless rounding makes the value an integer.

    Args:
        observation_space: of one environment.
        name: the name of an observation in error messages.
        warn_outside: whether to warn of the first observation that is found outside of the bounds of the space. The
            same observations are compared with the bounds.
        warn: receives the warnings; `warnings.warn` by default.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        name: str = "observation",
        *,
        warn_outside: bool = False,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._name = name
        self._space = observation_space
        self._shape = observation_space.shape
        children = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {}
        self._parts = {key: Checker(part, f"{name}[{key!r}]") for key, part in children.items()}
        self._floating = isinstance(observation_space, spaces.Box) and observation_space.dtype.kind == "f"
        self._count = int(observation_space.n) if isinstance(observation_space, spaces.Discrete) else None
        self._weights = _weights(math.prod(self._shape or ()), np.dtype(observation_space.dtype or np.float32))
        self._examined = 0
        # Only the outermost checker warns: a Dict is compared with its space as a whole.
        self._warns_outside = warn_outside and _is_bounded(observation_space)
        self._warn = warn
        self._rounds = False
        # The number of observations until one is examined; if negative, none is.
        self._until = 1 if self._warns_outside or _is_converted(observation_space) else -1

    def reset(self, result: Any, lane: int, step: int) -> tuple[Any, Any]:
        """Return the observation and the info of a reset; an info that is not a dict is replaced by an empty one.

        Raises:
            InvalidStepError: if the observation is invalid.
        """
        _check_count(result, "reset", "(observation, info)")
        observation, info = result
        is_info = isinstance(info, Mapping)
        try:
            return self.observation(observation, lane, step), info if is_info else {}
        except InvalidStepError as error:
            if is_info:
                raise
            # Without a dict as the second value, the result was probably an observation that happens to have two
            # entries.
            raise InvalidStepError(f"reset must return (observation, info), got {show(repr(result))}") from error

    def step(self, result: Any, lane: int, step: int) -> tuple[Any, Any, Any, Any, Any]:
        """Return the five values of a step; an info that is not a dict is replaced by an empty one.

        Raises:
            InvalidStepError: if a value is invalid.
        """
        try:
            observation, reward, terminated, truncated, info = result
        except (TypeError, ValueError):
            # Unpacking checks the number of values; the error is explained only if it fails.
            _check_count(result, "step", STEP)
            raise
        try:
            observation = self.observation(observation, lane, step)
        except InvalidStepError as error:
            if np.size(reward) == 1:
                raise
            # A reward that is an array is probably an observation: the values are in another order.
            raise InvalidStepError(f"step must return {STEP}, got {show(repr(result))}") from error
        # The usual case of `reward` without its call, so that a step is not slower than with two calls.
        if type(reward) is not float or not -_LARGEST <= reward <= _LARGEST:
            self.reward(reward, lane, step)
        if type(terminated) not in _FLAGS or type(truncated) not in _FLAGS:
            check_end("terminated", terminated, 1)
            check_end("truncated", truncated, 1)
        if type(info) is not dict and not isinstance(info, Mapping):
            info = {}
        return observation, reward, terminated, truncated, info

    def observation(self, observation: Any, lane: int, step: int) -> Any:
        """Return the observation, in which integers are rounded if necessary.

        Raises:
            InvalidStepError: unless the observation has the shape of the space, fits float32 and, for a Discrete space,
                is a member; if examined, unless the observation fits the dtype of the space.
        """
        if self._shape is None:
            for key, checker in self._parts.items():
                if key not in observation:
                    raise InvalidStepError(f"{self._name} of environment {lane} at step {step} has no key {key!r}")
                checker.observation(observation[key], lane, step)
        else:
            self._check_array(observation, lane, step)
        self._until -= 1
        if self._until == 0:
            return self._examine(observation, lane, step)
        return observation

    def _check_array(self, observation: Any, lane: int, step: int) -> None:
        """Raise unless an observation has the shape of the space, fits float32 and is in a Discrete space.

        The dtype is compared by `_examine`, which takes longer and is called for some observations only.
        """
        # Only floats are converted to an array: lazily stacked frames are not, because that would stack them here.
        value = np.asarray(observation) if self._floating and type(observation) is not np.ndarray else observation
        shape = value.shape if type(value) is np.ndarray else np.shape(value)
        if shape != self._shape:
            raise InvalidStepError(
                f"{self._name} of environment {lane} at step {step} has the shape {shape}, but its space has the shape "
                f"{self._shape}"
            )
        if self._floating:
            # The dtype of an environment rarely changes, so the weights of the last one are kept.
            if value.dtype is not self._weights.dtype:
                if value.dtype.kind not in "fiub":
                    raise InvalidStepError(
                        f"{self._name} of environment {lane} at step {step} must hold numbers, got {value.dtype}"
                    )
                self._weights = _weights(value.size, value.dtype)
            # If this product is finite, float32 can hold all values. Unlike `dot`, `vdot` never warns.
            fits = math.isfinite(np.vdot(value, self._weights)) or (np.abs(value.astype(np.float64)) <= _LARGEST).all()
            if not fits:
                fault = "exceeds float32" if np.isfinite(value).all() else "is not finite"
                raise InvalidStepError(f"{self._name} of environment {lane} at step {step} {fault}: {observation!r}")
        elif self._count is not None and not 0 <= value < self._count:
            raise InvalidStepError(
                f"{self._name} of environment {lane} at step {step} is not in {self._space}: {observation!r}"
            )

    def _examine(self, observation: Any, lane: int, step: int) -> Any:
        """Compare the observation with dtype and bounds, set which one is examined next, and return the observation."""
        self._examined += 1
        place = f"{self._name} of environment {lane} at step {step}"
        fitting = self.fit_dtype(observation, place)
        if self._warns_outside and not _is_inside(fitting, self._space):
            self._warns_outside = False
            self._report(
                f"{place} is outside of the bounds of {self._space}: {observation!r}. Training continues with such "
                "observations, without further warnings."
            )
        # Each observation is examined once one had to be rounded, because the others need the same conversion.
        self._until = 1 if self._examined < 1000 or self._rounds else 100
        return fitting

    def fit_dtype(self, observation: Any, place: str, space: Any = None) -> Any:
        """Return the observation, or a batch of observations in `space`, in which integers are rounded if necessary.

        The first rounding is reported. From then on, each observation is examined.

        Raises:
            InvalidStepError: if the dtype of the space cannot represent a value.
        """
        space = self._space if space is None else space
        if type(observation) is np.ndarray and observation.dtype == space.dtype:  # the usual case, without a call
            return observation
        try:
            fitting = fit_dtype(space, observation, place)
        except ValueError as error:
            raise InvalidStepError(str(error)) from None
        if fitting is not observation and not self._rounds:
            self._rounds = True
            self._report(
                f"{place} must fit the dtype of its space {space}: {show(repr(observation))} is rounded. Training goes "
                "on with rounded observations, without further warnings."
            )
        return fitting

    def _report(self, text: str) -> None:
        if self._warn is not None:
            self._warn(text)
        else:
            warnings.warn(text, RuntimeWarning, stacklevel=5)

    def reward(self, reward: Any, lane: int, step: int) -> None:
        """Raise unless the reward is a finite number that float32 can hold."""
        try:
            size = math.fabs(reward)
        except TypeError:
            raise InvalidStepError(
                f"reward of environment {lane} at step {step} must be a number, got {reward!r}"
            ) from None
        except OverflowError:
            raise InvalidStepError(f"reward of environment {lane} at step {step} exceeds float32") from None
        # `not <=` is true for NaN, too.
        if not size <= _LARGEST:
            fault = "exceeds float32" if math.isfinite(size) else "is not finite"
            raise InvalidStepError(f"reward of environment {lane} at step {step} {fault}: {reward!r}")


def _weights(size: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return weights whose dot product with an array `[size]` is finite only if float32 can hold all of its values.

    For float64, a product overflows if a value exceeds float32. For other dtypes, the weights are 0, and 0 times a
    value that is not finite is NaN. Values of longdouble beyond float32 are not found.
    """
    if dtype == np.float64:
        # A value beyond float32 times this weight exceeds float64, so that the sum is infinite.
        return np.full(size, np.finfo(np.float64).max / _LARGEST)
    # Only infinity or NaN times 0 is not finite; all finite values of float32 and of integers fit.
    return np.zeros(size, dtype)


def _is_converted(space: spaces.Space[Any]) -> bool:
    """Return whether a conversion to the space's dtype may change a value that float32 can hold."""
    if isinstance(space, spaces.Dict):
        return any(map(_is_converted, space.spaces.values()))
    dtype = np.dtype(space.dtype or np.float32)
    return dtype.kind != "f" or dtype.itemsize < 4


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
    """Return whether a value lies within the bounds of the space, after conversion to the dtype of the space."""
    if isinstance(space, spaces.Dict):
        return all(_is_inside(value[name], part) for name, part in space.spaces.items())
    if isinstance(space, spaces.Discrete):
        # `_check_array` has compared it already.
        return True
    low, high = (space.low, space.high) if isinstance(space, spaces.Box) else (0, getattr(space, "nvec", 2) - 1)
    value = np.asarray(value, space.dtype)
    return bool(((value >= low) & (value <= high)).all())

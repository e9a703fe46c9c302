"""What every collector checks and counts.

Owns: the checks of what an environment returns, the ledger of the episodes in flight, and how one is brought back.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl import envs


class InvalidStepError(ValueError):
    """An environment returned what it must not; the message names the lane and the step."""


class Checker:
    """Checks observations and rewards, at a cost of well under a microsecond for small observations.

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
        # 0 * x is 0 for every finite x and NaN for all others: one dot product finds them.
        self._zeros = np.zeros(size, observation_space.dtype if self._floating else np.float32)

    def observation(self, observation: Any, lane: int, step: int) -> None:
        """Raise unless the observation has the space's shape and is finite, and one of a Discrete space is of it."""
        if self._shape is None:
            for key, checker in self._parts.items():
                if key not in observation:
                    raise InvalidStepError(f"{self._name} of environment {lane} at step {step} lacks {key!r}")
                checker.observation(observation[key], lane, step)
            return
        # What is no Box of floats is not made an array: frames may be stacked only when they are asked for.
        value = np.asarray(observation) if self._floating and type(observation) is not np.ndarray else observation
        shape = value.shape if type(value) is np.ndarray else np.shape(value)
        if shape != self._shape:
            raise InvalidStepError(
                f"{self._name} of environment {lane} at step {step} has the shape {shape}; its space says {self._shape}"
            )
        if self._floating:
            if math.isnan((value if value.ndim == 1 else value.reshape(-1)).dot(self._zeros)):
                raise InvalidStepError(
                    f"{self._name} of environment {lane} at step {step} is not finite: {observation!r}"
                )
        elif self._discrete is not None and not 0 <= value < self._discrete.n:
            raise InvalidStepError(
                f"{self._name} of environment {lane} at step {step} is none of {self._discrete}: {observation!r}"
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


class Ledger:
    """Returns, lengths and numbers of the episodes in flight, one per lane.

    Attributes:
        over: lanes whose episode is over, and was not counted yet: several may end in one tick of a vector environment,
            and the agent may be saved as the first of them is told.
    """

    def __init__(self, lanes: int) -> None:
        self.returns = [0.0] * lanes
        self.lengths = [0] * lanes
        self.numbers = [-1] * lanes
        self.running = [False] * lanes
        self.over: list[int] = []

    def begin(self, lane: int, number: int) -> None:
        """Open an episode."""
        self.returns[lane], self.lengths[lane], self.numbers[lane], self.running[lane] = 0.0, 0, number, True

    def get_state(self) -> dict[str, Any]:
        """Return everything."""
        return {
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "numbers": list(self.numbers),
            "running": list(self.running),
            "over": list(self.over),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned."""
        self.returns, self.lengths = list(state["returns"]), list(state["lengths"])
        self.numbers, self.running = list(state["numbers"]), list(state["running"])
        self.over = list(state.get("over", ()))  # files of before know of none


def resume(environment: Any, saved: dict[str, Any], past: list[Any], *, over: bool) -> str | None:
    """Bring one environment to where it was; return why that failed, or None.

    Args:
        environment: the environment.
        saved: "seed" of its last reset, its "observation", and what it said of itself as "environment", or None.
        past: the actions since the reset.
        over: whether the last of them ended the episode.
    """
    try:
        if saved["environment"] is not None:
            envs.set_state(environment, saved["environment"])
            return None
        observation = envs.replay(environment, saved["seed"], past[:-1] if over else past)
        if over and observation is not None:
            observation = environment.step(past[-1])[0]
    except Exception as error:  # an environment of another kind, or one that has changed, may fail in any way
        return f"{type(error).__name__}: {error}"
    return None if envs.equal(observation, saved["observation"]) else "it gives other observations"


def warn_afresh(what: str, fault: str) -> None:
    """Say that what was saved of an episode in flight cannot be brought back."""
    warnings.warn(
        f"{what} cannot be brought back to where it was ({fault}): it starts afresh and the run goes on inexactly "
        "(noterl.envs.check says why)",
        RuntimeWarning,
        stacklevel=3,
    )

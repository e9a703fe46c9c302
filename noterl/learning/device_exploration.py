"""Exploration on the device: the policies and noises whose actions compiled calls can choose."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from noterl.backends import on_device, ops
from noterl.explorer import Explorer
from noterl.heads import Deterministic, Head, Q
from noterl.noise import GaussianWhiteNoiseProcess
from noterl.policies import AdaptiveEpsGreedyPolicy, EpsGreedyQPolicy, GreedyQPolicy, LinearEpsGreedyPolicy

# The exact types of policies that `EpsilonGreedy` computes.
_EPSILON_GREEDY = (EpsGreedyQPolicy, LinearEpsGreedyPolicy, AdaptiveEpsGreedyPolicy, GreedyQPolicy)


class Exploration(on_device.Exploration, Protocol):
    """How actions are chosen in a compiled call, with the same distribution as by `Head.explore`.

    `find_exploration` makes the objects. A runner asks for the settings of each round before a call.
    """

    def settings(self, step: int, passed: int) -> tuple[float, ...]:
        """Return the settings of a round, `[E]`, computed on the host. May set the schedules of a noise.

        Args:
            step: environment steps before the round.
            passed: environment steps between the last `Explorer.skip` and the round.
        """

    def select(self, values: Any, numbers: Any, settings: Any) -> Any:
        """Return the actions `[N, ...]` for outputs `[N, ...]` and random numbers `[N, num_sampled]`, as tensors."""


class Sampling:
    """Actions that the head samples from its own distribution."""

    num_settings = 0

    def __init__(self, head: Any) -> None:
        self.sampled_from: Any = head.sampled_from
        self.num_sampled: Any = head.num_sampled
        self._head = head

    def settings(self, step: int, passed: int) -> tuple[float, ...]:
        """Return no settings."""
        return ()

    def select(self, values: Any, numbers: Any, settings: Any) -> Any:
        """Return samples."""
        return self._head.sample_actions(values, numbers)


class EpsilonGreedy:
    """A uniformly random action with probability epsilon, else the one with the highest value."""

    sampled_from: str = "uniform"
    num_sampled: int = 1
    num_settings: int = 1

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def settings(self, step: int, passed: int) -> tuple[float, ...]:
        """Set the schedules of the policy to `step`; return epsilon."""
        self._policy.update_schedules(step)
        return (0.0 if isinstance(self._policy, GreedyQPolicy) else self._policy.epsilon(step),)

    def select(self, values: Any, numbers: Any, settings: Any) -> Any:
        """Return actions `[N]`; a number below epsilon, divided by epsilon, is again uniform."""
        number = numbers[:, 0]
        epsilon = settings[0]
        # If epsilon is 0, 1e-12 prevents a division by zero, and the result is not used.
        explored = index_of(number / ops.maximum(epsilon, 1e-12), values.shape[1])
        return ops.where(number < epsilon, explored, ops.cast(ops.argmax(values, axis=-1), "int32"))


class GaussianNoise:
    """Gaussian noise that is added to scaled actions."""

    sampled_from: str = "normal"
    num_settings: int = 2

    def __init__(self, head: Deterministic, noise: GaussianWhiteNoiseProcess) -> None:
        self._head = head
        self._noise = noise
        self.num_sampled: int = noise.size

    def settings(self, step: int, passed: int) -> tuple[float, ...]:
        """Set the schedules of the noise to `step`; return the mean and standard deviation of the noise."""
        noise = self._noise
        noise.update_schedules(step)
        return noise.mu, noise.sigma_at(noise.n + passed)

    def select(self, values: Any, numbers: Any, settings: Any) -> Any:
        """Return actions `[N, ...]`."""
        noise = settings[0] + settings[1] * numbers
        return self._head.unscale_tensors(ops.clip(self._head.act(values) + noise, -1.0, 1.0))


def find_exploration(head: Head, explorer: Explorer) -> Exploration | None:
    """Return how a head explores with this policy or noise in a compiled call; None if a call cannot compute that.

    Subclasses of the policies and noises may behave differently, so only the exact types are accepted.
    """
    explorer_class = type(explorer)
    if head.sampled_from is not None and explorer_class is Explorer:
        return Sampling(head)
    if head.noisy:
        return None
    if type(head) is Q and explorer_class in _EPSILON_GREEDY:
        return EpsilonGreedy(explorer)
    if isinstance(head, Deterministic) and explorer_class is GaussianWhiteNoiseProcess:
        return GaussianNoise(head, explorer)  # type: ignore[arg-type]
    return None


def has_uniform_actions(space: spaces.Space[Any]) -> bool:
    """Return whether `uniform_actions` supports the space."""
    has_bounds = isinstance(space, spaces.Box) and space.is_bounded() and space.dtype.kind == "f"
    return has_bounds or isinstance(space, spaces.Discrete | spaces.MultiDiscrete)


def num_uniform(space: spaces.Space[Any]) -> int:
    """Return the number of random numbers for one action of `uniform_actions`."""
    return math.prod(space.shape or ())


def uniform_actions(space: Any, numbers: Any) -> Any:
    """Return uniformly random actions `[N, ...]` as tensors, from numbers `[N, num_uniform]` in [0, 1)."""
    numbers = ops.reshape(numbers, (-1, *(space.shape or ())))
    if isinstance(space, spaces.Box):
        low, high = (np.asarray(side, np.float32) for side in (space.low, space.high))
        return low + numbers * (high - low)
    return index_of(numbers, space.n if isinstance(space, spaces.Discrete) else space.nvec)


def index_of(numbers: Any, count: Any) -> Any:
    """Return integers from 0 to `count - 1` for uniform numbers in [0, 1), int32."""
    # In float32, the product can be `count`.
    return ops.cast(ops.minimum(ops.floor(numbers * count), count - 1), "int32")

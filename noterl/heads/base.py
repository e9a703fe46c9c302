"""The base of all heads, and the head of action values."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.explorer import Explorer


class _Ops:
    """`keras.ops`, imported when it is first used: workers only act, and import no backend."""

    def __getattr__(self, name: str) -> Any:
        from noterl.backends import ops

        return getattr(ops, name)


ops: Any = _Ops()

HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


class Head:
    """Base of the heads: from the network's output `[N, ...]` to actions, on the host in NumPy.

    A head of an agent is bound to its action space. It explores with an `Explorer`: the agent's policy, its noise, or
    a plain generator for a head with its own distribution.

    Attributes:
        acts_on: the kinds of output that a policy for this head may use (`Policy.acts_on`); empty if it takes none.
        takes_noise: whether a noise of `noterl.noise` can explore.
        samples: whether the head explores with its own distribution, without policy and noise.
        action_space: the space that the head is bound to.
    """

    acts_on: tuple[str, ...] = ()
    takes_noise: bool = False
    samples: bool = False
    action_space: spaces.Space[Any]

    @property
    def noise_size(self) -> int:
        """The number of values that a noise adds to an action."""
        return int(np.prod(self.action_space.shape or ()))

    def bind(self, action_space: spaces.Space[Any]) -> Head:
        """Return a copy of this head for an action space.

        Raises:
            ValueError: if the head cannot choose actions of this space.
        """
        bound = copy.copy(self)
        bound.action_space = action_space
        return bound

    def check(self, shape: tuple[int, ...], action_space: spaces.Space[Any]) -> None:
        """Raise a ValueError if outputs of this shape `[N, ...]` do not fit the action space."""

    def deterministic(self, values: np.ndarray) -> np.ndarray:
        """Return the best actions `[N, ...]` for the network's outputs."""
        raise NotImplementedError(f"{type(self).__name__} must define deterministic(values)")

    def explore(self, values: np.ndarray, explorer: Explorer, step: int) -> np.ndarray:
        """Return the training actions `[N, ...]` at environment step `step`."""
        raise NotImplementedError(f"{type(self).__name__} must define explore(values, explorer, step)")

    def random(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """Return uniformly random actions `[count, ...]`."""
        return random_actions(self.action_space, count, generator)

    def executed(self, actions: np.ndarray) -> np.ndarray:
        """Return the actions `[N, ...]` that the environment receives; the same actions by default."""
        return actions


def check_width(shape: tuple[int, ...], count: int, outputs: str) -> None:
    """Raise a ValueError, with a description of the outputs, if their shape is not `[N, count]`."""
    if shape[1:] != (count,):
        raise ValueError(f"forward must return {outputs}, [B, {count}], got {shape}")


class Q(Head):
    """Outputs are action values `[N, A]` of a Discrete action space; a policy explores."""

    acts_on = ("q",)

    def bind(self, action_space: spaces.Space[Any]) -> Head:
        """Return a copy of this head for a Discrete space.

        Raises:
            ValueError: for another space.
        """
        if not isinstance(action_space, spaces.Discrete):
            raise ValueError(f"env: the head Q takes a Discrete action space, got {action_space}")
        return super().bind(action_space)

    def check(self, shape: tuple[int, ...], action_space: spaces.Space[Any]) -> None:
        """Raise a ValueError if there is not one value for each action."""
        count = int(action_space.n)  # type: ignore[attr-defined]
        check_width(shape, count, f"a value for each of the {count} actions")

    def deterministic(self, values: np.ndarray) -> np.ndarray:
        """Return the actions of the highest value `[N]`; the first of equal ones."""
        return np.argmax(values, axis=-1)

    def explore(self, values: np.ndarray, explorer: Any, step: int) -> np.ndarray:
        """Return the actions `[N]` that the policy selects."""
        actions: Any = explorer.select_action(values, step)
        return actions


def split(values: Any, sizes: Sequence[int]) -> list[Any]:
    """Split `[N, sum(sizes)]`, an array or a tensor, into parts `[N, size]`."""
    if len(sizes) == 1:
        return [values]
    ends = np.cumsum(sizes).tolist()
    return [values[:, end - size : end] for end, size in zip(ends, sizes, strict=True)]


def one_of(actions: np.ndarray, index: int, space: spaces.Space[Any]) -> Any:
    """Return one of actions `[N, ...]` in the form of its space: an int if it is Discrete, else an array.

    Example:
    >>> from noterl.heads import one_of
    >>> one_of(np.array([0.5, 1.0]), 1, spaces.Box(-1.0, 1.0, ()))
    array(1.)
    """
    return actions[index].item() if isinstance(space, spaces.Discrete) else actions[index, ...]


def random_actions(space: spaces.Space[Any], count: int, generator: np.random.Generator) -> np.ndarray:
    """Return uniformly random actions `[count, ...]` of a Discrete, MultiDiscrete or Box space.

    Values of a Box without finite bounds come from a standard normal distribution.
    """
    if isinstance(space, spaces.Discrete):
        return generator.integers(space.n, size=count)
    if isinstance(space, spaces.MultiDiscrete):
        return generator.integers(space.nvec, size=(count, *space.nvec.shape))
    box: Any = space
    low, high, shape = box.low, box.high, (count, *box.shape)
    bounded = np.isfinite(low) & np.isfinite(high)
    uniform = generator.uniform(np.where(bounded, low, 0.0), np.where(bounded, high, 1.0), shape)
    if not bounded.all():
        uniform = np.where(bounded, uniform, np.clip(generator.standard_normal(shape), low, high))
    return uniform.astype(space.dtype)

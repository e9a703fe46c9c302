"""What networks see of an observation.

Owns: the one rule by which observations become arrays, for acting and for batches alike. A Box is seen as it is. All
else is seen as one float32 vector, its parts one after the other, flattened as `gymnasium.spaces.flatten` does it:
discrete values are one-hot. Of a goal environment the parts are "observation" and "desired_goal", in this order; the
achieved goal is remembered, to relabel with, but seen by no network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

Array = np.ndarray[Any, Any]

GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")
_SEEN_OF_GOALS = ("observation", "desired_goal")


class Part(NamedTuple):
    """One space within a space: the keys that lead to it, and which columns of the vector it fills."""

    path: tuple[str, ...]
    space: Any
    columns: slice


class View:
    """The rule for one observation space.

    Args:
        space: a Box, Discrete, MultiDiscrete or MultiBinary, or a Dict of such.

    Attributes:
        space: the Box that networks see.
        plain: whether observations are seen as they are.

    Raises:
        ValueError: for another space, or a Dict with an image in it.

    Example:
    >>> import numpy as np
    >>> from gymnasium.spaces import Box, Dict, Discrete
    >>> from noterl.envs.observation import View
    >>> view = View(Dict({"gear": Discrete(3), "speed": Box(0, 9, (2,))}))
    >>> view({"gear": 1, "speed": np.array([5.0, 6.0])}).tolist()
    [0.0, 1.0, 0.0, 5.0, 6.0]
    >>> view({"gear": np.array([1, 2]), "speed": np.ones((2, 2))}).shape
    (2, 5)
    """

    def __init__(self, space: Space[Any]) -> None:
        self.whole = space
        self.plain = isinstance(space, spaces.Box) and space.shape != ()
        self.parts: tuple[Part, ...] = ()
        if isinstance(space, spaces.Box) and math.prod(space.shape) == 0:
            raise ValueError(f"env: observation_space holds nothing: {space}")
        if isinstance(space, spaces.Box) and self.plain:
            self.space = space
        else:
            self.parts = _parts(space)
            self.space = spaces.Box(-np.inf, np.inf, (self.parts[-1].columns.stop,), np.float32)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type observations have when networks see them: bytes stay bytes, all else is float32."""
        return np.dtype(np.uint8) if self.space.dtype == np.uint8 else np.dtype(np.float32)

    def __call__(self, observation: Any) -> Array:
        """Return what is seen of one observation or, with leading axes on every part, of many: `[..., *shape]`."""
        if self.plain:
            return np.asarray(observation)
        first = self.parts[0]
        value = np.asarray(_at(observation, first.path))
        seen = np.empty((*value.shape[: value.ndim - len(first.space.shape)], *self.space.shape), np.float32)
        self.write(observation, seen)
        return seen

    def write(self, observation: Any, seen: Array) -> None:
        """Write what is seen of observations into `seen [..., D]`; only for what is not `plain`."""
        for path, space, columns in self.parts:
            value = np.asarray(_at(observation, path))
            if isinstance(space, spaces.Discrete):
                seen[..., columns] = value[..., None] == np.arange(space.n)
            elif isinstance(space, spaces.MultiDiscrete):
                seen[..., columns] = _one_hot(value, space)
            elif len(space.shape) == 1:
                seen[..., columns] = value
            else:
                seen[..., columns] = value.reshape(*seen.shape[:-1], -1)

    def stack(self, observations: Sequence[Any]) -> Array:
        """Return what is seen of several observations `[N, *shape]`."""
        return np.stack([self(observation) for observation in observations])

    def axes(self, observation: Any, argument: str = "observation") -> int:
        """Return how many axes lie before an observation's own, in all its parts: 0 for one, 1 for a batch.

        Raises:
            ValueError: naming the argument, if it has not the form of one or of a batch.
        """
        axes = _axes(self.whole, observation)
        if axes is None:
            shape, got = _shapes(self.whole), _shapes_of(observation)
            raise ValueError(f"{argument} must have the shape {shape} or (N, *{shape}), got {got}")
        return axes


class Present:
    """The present observations of N lanes, where they are more than an array: a list of copies, and what is seen.

    Args:
        view: of the space.
        lanes: N.
    """

    def __init__(self, view: View, lanes: int) -> None:
        self._view = view
        self._whole = [zeros(view.whole)] * lanes
        self.seen = view.stack(self._whole)

    def __getitem__(self, lane: int) -> Any:
        """Return a lane's observation; it is replaced, never changed."""
        return self._whole[lane]

    def __setitem__(self, lane: int, observation: Any) -> None:
        self._whole[lane] = own(self._view.whole, observation)
        self._view.write(observation, self.seen[lane])


def present(view: View, lanes: int) -> tuple[Any, Array]:
    """Return where the present observations of N lanes lie by lane, and what is seen of them `[N, ...]`, always."""
    if not view.plain:
        kept = Present(view, lanes)
        return kept, kept.seen
    whole = np.zeros((lanes, *view.space.shape), view.space.dtype)
    return whole, whole


def zeros(space: Space[Any]) -> Any:
    """Return an observation of zeros."""
    if isinstance(space, spaces.Dict):
        return {name: zeros(part) for name, part in space.spaces.items()}
    return np.zeros(space.shape or (), space.dtype)


def own(space: Space[Any], observation: Any) -> Any:
    """Return a copy of an observation in the types of its space: an array, or a dict of them."""
    if isinstance(space, spaces.Dict):
        return {name: own(part, observation[name]) for name, part in space.spaces.items()}
    return np.array(observation, space.dtype)


def fits(space: Space[Any], value: Any) -> bool:
    """Tell whether a value has the shapes and types that `own` gives; what it holds is not looked at."""
    if isinstance(space, spaces.Dict):
        same = isinstance(value, Mapping) and value.keys() == space.spaces.keys()
        return same and all(fits(part, value[name]) for name, part in space.spaces.items())
    return isinstance(value, np.ndarray) and value.shape == space.shape and value.dtype == space.dtype


def at(observations: Any, index: int) -> Any:
    """Return one of a batch of observations."""
    if isinstance(observations, Mapping):
        return {name: at(part, index) for name, part in observations.items()}
    return observations[index]


def is_goal_space(space: Space[Any]) -> bool:
    """Tell whether observations are those of a goal environment."""
    return isinstance(space, spaces.Dict) and set(space.spaces) == set(GOAL_KEYS)


def _parts(space: Space[Any]) -> tuple[Part, ...]:
    found: list[Part] = []
    names = _SEEN_OF_GOALS if is_goal_space(space) else ()
    for path, leaf in _leaves(space, (), names):
        start = found[-1].columns.stop if found else 0
        found.append(Part(path, leaf, slice(start, start + _width(leaf, path))))
    if not found:
        raise ValueError(f"env: observation_space holds nothing: {space}")
    return tuple(found)


def _leaves(space: Space[Any], path: tuple[str, ...], names: Sequence[str] = ()) -> list[tuple[tuple[str, ...], Any]]:
    if not isinstance(space, spaces.Dict):
        return [(path, space)]
    return [leaf for name in names or space.spaces for leaf in _leaves(space.spaces[name], (*path, name))]


def _width(space: Space[Any], path: tuple[str, ...]) -> int:
    """Return how many numbers are seen of a value."""
    name = "observation_space" + "".join(f"[{key!r}]" for key in path)
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    if not isinstance(space, spaces.Box | spaces.MultiBinary):
        raise ValueError(f"env: {name} must be a Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these: {space}")
    if space.dtype == np.uint8 and len(space.shape) > 1:
        raise ValueError(
            f"env: {name} is an image within a Dict, which networks cannot be given as numbers among others; use a "
            f"wrapper that gives the image alone, or its features: {space}"
        )
    return math.prod(space.shape)


def _one_hot(value: Array, space: spaces.MultiDiscrete) -> Array:
    """Return the one-hot vectors of all entries, one after the other: bool `[..., sum of nvec]`."""
    sizes = space.nvec.ravel()
    flat = value.reshape(*value.shape[: value.ndim - len(space.shape)], -1)
    counted = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.repeat(flat, sizes, axis=-1) == counted


def _axes(space: Space[Any], value: Any) -> int | None:
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or not set(space.spaces) <= set(value):
            return None
        found = {_axes(part, value[name]) for name, part in space.spaces.items()}
        return found.pop() if len(found) == 1 else None
    shape, own_shape = np.shape(value), space.shape or ()
    extra = len(shape) - len(own_shape)
    return extra if extra in (0, 1) and shape[extra:] == own_shape else None


def _shapes(space: Space[Any]) -> Any:
    return (
        {name: _shapes(part) for name, part in space.spaces.items()} if isinstance(space, spaces.Dict) else space.shape
    )


def _shapes_of(value: Any) -> Any:
    return {name: _shapes_of(part) for name, part in value.items()} if isinstance(value, Mapping) else np.shape(value)


def _at(observation: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        observation = observation[name]
    return observation

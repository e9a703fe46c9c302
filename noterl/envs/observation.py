"""Encoding of observations for networks: a Box with axes is unchanged, other spaces become one float32 vector.

The vector concatenates the parts in the order of `gymnasium.spaces.flatten`; discrete values are one-hot. For a goal
environment, it holds "observation" and "desired_goal", in this order. The achieved goal is stored for relabeling, but
networks do not receive it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from noterl.utils.masks import part_sizes

Array = np.ndarray[Any, Any]

GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")
_ENCODED_GOAL_KEYS = ("observation", "desired_goal")
_ROUNDING = 1e-3  # the largest error of an integer that was computed with floats


class Part(NamedTuple):
    """A part of an observation space: the keys, the space, and the columns in the vector."""

    path: tuple[str, ...]
    space: Any
    columns: slice


class ObservationEncoder:
    """Encodes observations of a space as the arrays that networks receive.

    Args:
        space: a Box, Discrete, MultiDiscrete or MultiBinary, or a Dict of these.

    Attributes:
        original_space: `space`.
        space: the Box of encoded observations.
        is_identity: whether encoding leaves observations unchanged.
        dtype: the dtype in which networks receive observations: uint8 stays uint8, all others become float32.
        parts: the parts of the space with their columns among all values; if `is_identity`, the only part is the Box.

    Raises:
        ValueError: if the space is of another kind, or is empty.

    Example:
    >>> import numpy as np
    >>> from gymnasium.spaces import Box, Dict, Discrete
    >>> from noterl.envs.observation import ObservationEncoder
    >>> encoder = ObservationEncoder(Dict({"gear": Discrete(3), "speed": Box(0, 9, (2,))}))
    >>> encoder({"gear": 1, "speed": np.array([5.0, 6.0])}).tolist()
    [0.0, 1.0, 0.0, 5.0, 6.0]
    >>> encoder({"gear": np.array([1, 2]), "speed": np.ones((2, 2))}).shape
    (2, 5)
    """

    def __init__(self, space: Space[Any]) -> None:
        self.original_space = space
        # A Box with axes passes through, so that images keep their shape for convolutions.
        self.is_identity: bool = isinstance(space, spaces.Box) and space.shape != ()
        if isinstance(space, spaces.Box) and math.prod(space.shape) == 0:
            raise ValueError(f"env: observation_space is empty: {space}")
        self.parts: tuple[Part, ...] = _parts(space)
        self.space: Any = space
        if not self.is_identity:
            self.space = spaces.Box(-np.inf, np.inf, (self.parts[-1].columns.stop,), np.float32)
        self.dtype: np.dtype[Any] = np.dtype(np.uint8 if self.space.dtype == np.uint8 else np.float32)

    def __call__(self, observation: Any) -> Array:
        """Encode one observation or, if all parts have leading axes, many; return an array `[..., *shape]`."""
        if self.is_identity:
            return np.asarray(observation)
        first = self.parts[0]
        value = np.asarray(_get(observation, first.path))
        # What the first part has beyond its own shape are the axes of a batch.
        encoded = np.empty((*value.shape[: value.ndim - len(first.space.shape)], *self.space.shape), np.float32)
        self.write(observation, encoded)
        return encoded

    def write(self, observation: Any, encoded: Array) -> None:
        """Encode observations into `encoded [..., D]`; do not call this if `is_identity`."""
        for path, space, columns in self.parts:
            value = np.asarray(_get(observation, path))
            if isinstance(space, spaces.Discrete):
                # One-hot without an index array: a comparison works for any number of leading axes.
                encoded[..., columns] = value[..., None] == np.arange(space.n)
            elif isinstance(space, spaces.MultiDiscrete):
                encoded[..., columns] = _one_hot(value, space)
            elif len(space.shape) == 1:
                encoded[..., columns] = value
            else:
                encoded[..., columns] = value.reshape(*encoded.shape[:-1], -1)

    def stack(self, observations: Sequence[Any]) -> Array:
        """Encode a sequence of N observations as one array `[N, *shape]`."""
        return np.stack([self(observation) for observation in observations])

    def axes(self, observation: Any, argument: str = "observation") -> int:
        """Return the number of leading axes: 0 for one observation, 1 for a batch.

        Raises:
            ValueError: if `observation` is neither one observation nor a batch; the message names `argument`.
        """
        if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
            raise ValueError(
                f"{argument} must be an observation or a batch, got (observation, info), as `reset` returns it"
            )
        axes = _leading_axes(self.original_space, observation)
        if axes is None:
            shape = _shapes(zeros(self.original_space))
            got = _shapes(observation)
            raise ValueError(f"{argument} must have the shape {shape} or (N, *{shape}), got {got}")
        return axes


def zeros(space: Space[Any]) -> Any:
    """Return an observation of zeros: an array, or a dict of arrays."""
    if isinstance(space, spaces.Dict):
        return {name: zeros(part) for name, part in space.spaces.items()}
    return np.zeros(space.shape or (), space.dtype)


def copy_observation(space: Space[Any], observation: Any) -> Any:
    """Return a copy of an observation in the dtypes of the space: an array, or a dict of arrays."""
    if isinstance(space, spaces.Dict):
        return {name: copy_observation(part, observation[name]) for name, part in space.spaces.items()}
    return np.array(observation, space.dtype)


def fit_dtype(space: Space[Any], observation: Any, name: str = "observation") -> Any:
    """Return an observation, or a batch of observations, whose values the dtypes of the space can represent.

    Floats within 0.001 of an integer are rounded to the integer if the space holds integers. If nothing is rounded, the
    result is `observation` itself.

    Raises:
        ValueError: if a conversion to the dtype, or to float32 for a wider one, would change a value, or a value is not
            a finite number or not in a Discrete space; the message begins with `name`.

    Example:
    >>> from gymnasium.spaces import Discrete
    >>> from noterl.envs.observation import fit_dtype
    >>> fit_dtype(Discrete(4), 2), int(fit_dtype(Discrete(4), 2.9999999))
    (2, 3)
    """
    if isinstance(space, spaces.Dict):
        fitting = {key: fit_dtype(part, observation[key], f"{name}[{key!r}]") for key, part in space.spaces.items()}
        # The same object where nothing changed, so that callers compare by identity.
        return observation if all(part is observation[key] for key, part in fitting.items()) else fitting
    dtype = np.dtype(space.dtype)
    value = np.asarray(observation)
    if value.dtype.kind not in "biufO":
        raise ValueError(f"{name} must hold numbers, got {value.dtype}")
    if isinstance(space, spaces.Discrete) and not ((value >= 0) & (value < space.n)).all():
        raise ValueError(f"{name} must be in {space}, got {observation!r}")
    is_float = dtype.kind == "f"
    if is_float and dtype.itemsize > 4:
        dtype = np.dtype(np.float32)  # that of networks and memories
    if value.dtype == dtype and (not is_float or np.isfinite(value).all()):
        return observation
    # A cast of NaN or of a large number warns, and the comparison finds it.
    with np.errstate(all="ignore"):
        cast = value.astype(dtype, copy=False)
        lost = ~np.isfinite(cast) if is_float else cast != value
        if not lost.any():
            return observation
        rounded = cast if is_float else np.rint(value).astype(dtype)
        if not is_float and (np.abs(rounded.astype(np.float64) - value) <= _ROUNDING).all():
            return rounded[()]
    wrong = value[lost].flat[0]
    if is_float and not np.isfinite(wrong):
        raise ValueError(f"{name} must be finite, got {wrong!r}")
    raise ValueError(
        f"{name} must fit {dtype}, the dtype of its space {space}, got {wrong!r}: convert it in the environment, or "
        "give the space the dtype of the observations"
    )


def at(observations: Any, index: int) -> Any:
    """Return one observation of a batch."""
    if isinstance(observations, Mapping):
        return {name: at(part, index) for name, part in observations.items()}
    return observations[index]


def is_goal_space(space: Space[Any]) -> bool:
    """Return whether a space of observations belongs to a goal environment."""
    return isinstance(space, spaces.Dict) and set(space.spaces) == set(GOAL_KEYS)


def _parts(space: Space[Any]) -> tuple[Part, ...]:
    """Return the parts of a space that networks receive, each with its columns in the vector."""
    parts: list[Part] = []
    names = _ENCODED_GOAL_KEYS if is_goal_space(space) else ()
    for path, leaf in _leaves(space, (), names):
        start = parts[-1].columns.stop if parts else 0
        parts.append(Part(path, leaf, slice(start, start + _width(leaf, path))))
    if not parts:
        raise ValueError(f"env: observation_space is empty: {space}")
    return tuple(parts)


def _leaves(space: Space[Any], path: tuple[str, ...], names: Sequence[str] = ()) -> list[tuple[tuple[str, ...], Any]]:
    if not isinstance(space, spaces.Dict):
        return [(path, space)]
    return [leaf for name in names or space.spaces for leaf in _leaves(space.spaces[name], (*path, name))]


def _width(space: Space[Any], path: tuple[str, ...]) -> int:
    """Return the number of columns of a part."""
    name = "observation_space" + "".join(f"[{key!r}]" for key in path)
    if sizes := part_sizes(space):
        return sum(sizes)
    if not isinstance(space, spaces.Box | spaces.MultiBinary):
        raise ValueError(
            f"env: {name} must be a Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these, got {space}; wrap "
            "the environment: env = gymnasium.wrappers.FlattenObservation(env)"
        )
    return math.prod(space.shape)


def _one_hot(value: Array, space: spaces.MultiDiscrete) -> Array:
    """Return the one-hot vectors of all entries, one after the other: bool `[..., sum of nvec]`."""
    sizes = space.nvec.ravel()
    flat = value.reshape(*value.shape[: value.ndim - len(space.shape)], -1)
    # The number of each column within its own entry, to compare with the entry's value.
    counted = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.repeat(flat, sizes, axis=-1) == counted


def _leading_axes(space: Space[Any], value: Any) -> int | None:
    """Return 0 for one observation of the space, 1 for a batch, and None for anything else."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or not set(space.spaces) <= set(value):
            return None
        axes = {_leading_axes(part, value[name]) for name, part in space.spaces.items()}
        # Parts with different numbers of axes are neither one observation nor a batch.
        return axes.pop() if len(axes) == 1 else None
    shape = np.shape(value)
    own_shape = space.shape or ()
    extra = len(shape) - len(own_shape)
    return extra if extra in (0, 1) and shape[extra:] == own_shape else None


def _shapes(value: Any) -> Any:
    return {name: _shapes(part) for name, part in value.items()} if isinstance(value, Mapping) else np.shape(value)


def _get(observation: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        observation = observation[name]
    return observation

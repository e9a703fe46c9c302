"""Arrays of stored experience: checks of their values, and joining."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

Array = np.ndarray[Any, Any]

# The space of a reward.
REWARD = spaces.Box(-np.inf, np.inf, ())
# Box actions may exceed their bounds by this share of the largest bound, from rounding.
_TOLERANCE = 1e-5
_PIECE = 2**26  # bytes


def checked(name: str, values: Any, space: Space[Any], length: int) -> Any:
    """Return values as an array `[length, ...]` of a space, or a dict of arrays.

    Args:
        name: of the values, for error messages.
        values: an array, which may be mapped from a file, or a dict of arrays.
        space: of one value.
        length: the number of values.

    Raises:
        ValueError: if the shape or dtype does not fit the space, or a value is not finite.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(values, Mapping) or not set(space.spaces) <= set(values):
            keys = sorted(values) if isinstance(values, Mapping) else repr(values)[:80]
            raise ValueError(f"{name} must be a dict with the keys {sorted(space.spaces)}, got {keys}")
        members = space.spaces.items()
        return {key: checked(f"{name}[{key!r}]", values[key], part, length) for key, part in members}
    array = np.asarray(values)
    shape = (length, *(space.shape or ()))
    dtype = np.dtype(space.dtype)
    if array.shape != shape:
        raise ValueError(f"{name} must have the shape {shape}, got {array.shape}")
    if array.dtype.kind not in ("fiub" if dtype.kind == "f" else "iub"):
        raise ValueError(f"{name} must hold {'numbers' if dtype.kind == 'f' else 'ints'}, got {array.dtype}")
    # A value beyond the dtype becomes infinite, which the next lines report.
    with np.errstate(over="ignore"):
        cast = array.astype(dtype, copy=False)
    # Ints that are not cast are right.
    if dtype.kind == "f" or array.dtype != dtype:
        for rows in pieces(length, cast.nbytes):
            # Ints wrap around in a cast, so the result is compared.
            wrong = ~np.isfinite(cast[rows]) if dtype.kind == "f" else cast[rows] != array[rows]
            if wrong.any():
                needed = "be finite in" if dtype.kind == "f" else "fit"
                raise ValueError(f"{name} must {needed} {dtype}, got {array[rows][wrong][0]}")
    return cast


def pieces(length: int, size: int) -> Iterator[slice]:
    """Return slices of arrays of `length` rows and `size` bytes, because a mapped array may exceed the memory."""
    rows = max(1, _PIECE * length // max(1, size))
    return (slice(start, start + rows) for start in range(0, length, rows))


def outside(actions: Array, space: Space[Any]) -> Array:
    """Return which of the values of actions `[n, ...]` are not in the space, bool `[n, ...]`."""
    if isinstance(space, spaces.Box):
        # Bounds may be infinite on some sides.
        finite = [np.abs(side[np.isfinite(side)]).max(initial=0.0) for side in (space.low, space.high)]
        slack = _TOLERANCE * max(finite)
        return (actions < space.low - slack) | (actions > space.high + slack)
    if isinstance(space, spaces.MultiBinary):
        return (actions < 0) | (actions > 1)
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    size = space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n
    return (actions < 0) | (actions >= size)


def joined(arrays: Sequence[Any]) -> Any:
    """Return arrays, or dicts of arrays, one after the other."""
    if isinstance(arrays[0], Mapping):
        return {name: joined([part[name] for part in arrays]) for name in arrays[0]}
    return np.concatenate(arrays)


def stack_observations(space: Space[Any], observations: Iterable[Any]) -> Any:
    """Return observations as one array `[n, ...]`, or a dict of arrays for a Dict space."""
    observations = list(observations)
    if isinstance(space, spaces.Dict):
        return {name: stack_observations(part, [entry[name] for entry in observations]) for name, part in space.items()}
    return np.stack([np.asarray(observation, space.dtype) for observation in observations])

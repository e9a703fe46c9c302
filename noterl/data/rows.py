"""Arrays of stored experience: their checks, and rows with the keys of D4RL, which form episodes.

Format: Fu et al., "D4RL: Datasets for Deep Data-Driven Reinforcement Learning", 2020.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from noterl.envs.observation import ObservationEncoder
from noterl.envs.spaces import convert, show
from noterl.replay.columns import Array, action_layout, map_leaves, scatter
from noterl.saving.arrays import row_slices
from noterl.utils.budget import LIMITS, Budget

ARRAYS = ("observations", "actions", "rewards")
_REQUIRED = (*ARRAYS, "terminals")
KEYS = (*_REQUIRED, "timeouts", "next_observations")
# The space of a reward.
REWARD = spaces.Box(-np.inf, np.inf, ())
# Box actions may exceed their bounds by this share of the largest bound, from rounding.
_TOLERANCE = 1e-5


def check_spaces(observation_space: Any, action_space: Any) -> tuple[Space[Any], Space[Any]]:
    """Return the spaces in gymnasium's own classes.

    Raises:
        ValueError: if agents do not support a space, or a space is too large.
    """
    converted = convert(observation_space, "observation_space"), convert(action_space, "action_space")
    for space in converted:
        Budget(show(space), ValueError).spend("values of a space", int(spaces.flatdim(space)))
    ObservationEncoder(converted[0])
    action_layout(converted[1])
    return converted


def checked(name: str, values: Any, space: Space[Any], length: int) -> Any:
    """Return values as an array `[length, ...]` of a space, or a dict of arrays.

    Args:
        name: of the values, for error messages.
        values: an array, which may be mapped from a file, or a dict of arrays.
        space: of one value.
        length: the number of values.

    Raises:
        ValueError: if the shape or dtype does not fit the space, a value is not finite, or a value is not in a space
            that is not a Box.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(values, Mapping) or not set(space.spaces) <= set(values):
            keys = sorted(values) if isinstance(values, Mapping) else repr(values)[:80]
            raise ValueError(f"{name} must be a dict with the keys {sorted(space.spaces)}, got {keys}")
        return {key: checked(f"{name}[{key!r}]", values[key], part, length) for key, part in space.spaces.items()}
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
    for rows in row_slices(cast) if dtype.kind == "f" or array.dtype != dtype else ():
        # Ints wrap around in a cast, so the result is compared.
        wrong = ~np.isfinite(cast[rows]) if dtype.kind == "f" else cast[rows] != array[rows]
        if wrong.any():
            needed = "be finite in" if dtype.kind == "f" else "fit"
            raise ValueError(f"{name} must {needed} {dtype}, got {array[rows][wrong][0]}")
    if not isinstance(space, spaces.Box):
        check_inside(name, cast, space)
    return cast


def check_inside(name: str, values: Array, space: Space[Any]) -> None:
    """Raise a ValueError if one of the values `[n, ...]` is not in the space."""
    wrong = outside(values, space)
    if wrong.any():
        raise ValueError(f"{name} must be in {space}, got {values[wrong][0]}")


def outside(values: Array, space: Space[Any]) -> Array:
    """Return which numbers of the values `[n, ...]` are not in the space, bool `[n, ...]`."""
    if isinstance(space, spaces.Box):
        # Bounds may be infinite on some sides.
        slack = _TOLERANCE * max(np.abs(side[np.isfinite(side)]).max(initial=0.0) for side in (space.low, space.high))
        return (values < space.low - slack) | (values > space.high + slack)
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    size = 2 if isinstance(space, spaces.MultiBinary) else space.nvec if hasattr(space, "nvec") else space.n
    return (values < 0) | (values >= size)


def joined(*arrays: Any) -> Any:
    """Return arrays, or dicts of arrays, one after the other."""
    return map_leaves(lambda *leaves: np.concatenate(leaves), *arrays)


def stacked(values: Sequence[Any]) -> Any:
    """Return arrays, or dicts of arrays, along a new first axis."""
    return map_leaves(lambda *leaves: np.stack(leaves), *values)


def digest(*values: Any) -> str:
    """Return a hash of arrays, or of dicts of arrays."""
    total = hashlib.blake2b(digest_size=16)
    for value in values:
        map_leaves(lambda array: total.update(np.ascontiguousarray(array).data), value)
    return total.hexdigest()


def join_rows(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `Dataset.get_config` returns, for rows with the keys of D4RL; `Dataset.load` documents the rules.

    Without next observations, the last observation of an episode that terminates is repeated: the value of an
    observation after a termination does not count.

    Args:
        columns: the arrays by key, perhaps with an "observation_space" and an "action_space". An "origin" holds what
            was found before the rows were written.

    Raises:
        ValueError: if a key is missing, values do not fit, or no transition has a next observation.
    """
    missing = [key for key in _REQUIRED if key not in columns]
    if missing:
        raise ValueError(f"the key {missing[0]!r} is missing; there are {sorted(set(KEYS) & set(columns))}")
    count = np.size(columns["rewards"])
    if not count:
        raise ValueError("rewards must hold at least one row, got none")
    observation_space, action_space = (columns.get(f"{name}_space") for name in ("observation", "action"))
    is_inferred = observation_space is None or action_space is None
    observation_space, action_space = check_spaces(
        observation_space or _inferred(columns, ("observations", "next_observations"), np.inf),
        action_space or _inferred(columns, ("actions",)),
    )
    observations = _shaped("observations", columns, observation_space, count)
    following = observations
    terminals = _flags("terminals", columns, count)
    ends = terminals | _flags("timeouts", columns, count)
    has_next = terminals  # the value of an observation after a termination does not count
    cuts = np.zeros(count, np.bool_)
    if "next_observations" in columns:
        following = _shaped("next_observations", columns, observation_space, count)
        map_leaves(lambda *leaves: _mark_cuts(cuts, *leaves), observations, following)
        cuts &= ~ends
        ends |= cuts
        has_next = np.ones(count, np.bool_)
    ends[-1] = True
    last = np.flatnonzero(ends)
    has_next = has_next[last]
    # An episode whose last next observation is unknown loses its last transition.
    lengths = np.diff(last, prepend=-1) - ~has_next
    if not lengths.any():
        raise ValueError("the key 'next_observations' is missing, and no row is followed by one of the same episode")
    # The rows of the observations, and after each last row, its number plus `count` for the next observation.
    order = np.insert(np.arange(count), last + 1, count + last)
    # Unknown next observations are left out, and so is the only observation of an episode without transitions.
    order = order[~np.isin(order, np.concatenate([count + last[~has_next], last[lengths == 0]]))]
    seen = map_leaves(lambda array: array[order % count], observations)
    is_next = np.flatnonzero(order >= count)
    scatter(seen, is_next, map_leaves(lambda array: array[order[is_next] - count], following))
    rows = np.delete(np.arange(count), last[~has_next])
    origin = {"cut": int(cuts.sum()), "left_out": int((~has_next).sum()), "inferred_spaces": int(is_inferred)}
    return {
        "lengths": lengths[lengths > 0],
        "observations": seen,
        "actions": _shaped("actions", columns, action_space, count)[rows],
        "rewards": _shaped("rewards", columns, REWARD, count)[rows],
        "terminated": terminals[last][lengths > 0],
        "observation_space": observation_space,
        "action_space": action_space,
        "origin": {**origin, "without_timeouts": int("timeouts" not in columns), **columns.get("origin", {})},
    }


def _inferred(columns: Mapping[str, Any], keys: tuple[str, ...], bound: float | None = None) -> Space[Any]:
    """Return a space that holds the values of the keys that exist.

    Args:
        columns: the arrays by key.
        keys: at least the first one exists.
        bound: the bound of floats. Observations have inf; then rows of several ints become floats, and uint8 arrays
            become images. Actions have None; then the bound is the largest absolute value, at least 1.

    Raises:
        ValueError: if the values are not numbers.
    """
    arrays = [np.asarray(columns[key]) for key in keys if key in columns]
    first = arrays[0]
    if any(array.dtype.kind not in "fiub" or not array.size for array in arrays):
        raise ValueError(f"{keys[0]} must hold numbers, got {first.dtype}{list(first.shape)}")
    if bound and first.dtype == np.uint8:
        return spaces.Box(0, 255, first.shape[1:], np.uint8)
    # The size is larger than the length if rows have several values.
    if first.dtype.kind == "f" or (bound and first.size > len(first)):
        bound = bound or max(1.0, float(np.abs(first).max()))
        return spaces.Box(-bound, bound, first.shape[1:] or (1,))
    # The largest value in each column, in all keys.
    largest = np.max([array.reshape(len(array), -1).max(axis=0) for array in arrays], axis=0)
    # Values that are negative or too large are found when they are compared with the space.
    counts = np.clip(largest.astype(np.float64) + 1, 1, LIMITS["values of a space"]).astype(np.int64)
    return spaces.Discrete(int(counts[0])) if len(counts) == 1 else spaces.MultiDiscrete(counts)


def _shaped(key: str, columns: Mapping[str, Any], space: Space[Any], count: int) -> Any:
    """Return the checked values of a key; a column of one value may have an axis more or less than the space."""
    values = columns[key]
    if not isinstance(space, spaces.Dict) and np.size(values) == count and np.prod(space.shape or (), dtype=int) == 1:
        values = np.reshape(values, (count, *(space.shape or ())))
    return checked(key, values, space, count)


def _flags(key: str, columns: Mapping[str, Any], count: int) -> Array:
    """Return the flags of each row, bool `[rows]`; False for a key that is missing."""
    values = np.asarray(columns.get(key, np.zeros(count, np.bool_)))
    if values.size != count or values.dtype.kind not in "fiub" or not np.isin(values, (0, 1)).all():
        raise ValueError(f"{key} must hold a flag, 0 or 1, for each of {count} rows, got {values!r:.80}")
    return values.reshape(count).astype(np.bool_)


def _mark_cuts(cuts: Array, observations: Array, following: Array) -> None:
    """Set the rows, bool `[rows]`, whose next observation is not the observation of the next row."""
    for rows in row_slices(observations[1:]):
        unequal = following[:-1][rows] != observations[1:][rows]
        cuts[:-1][rows] |= unequal.reshape(len(unequal), -1).any(axis=1)


def rows_of(dataset: Any) -> dict[str, Array]:
    """Return the rows of a `Dataset`, by the keys of D4RL."""
    ends = np.zeros(len(dataset), np.bool_)
    ends[np.cumsum(dataset.lengths) - 1] = True
    terminals = ends.copy()
    terminals[ends] = dataset.terminated
    # Each episode has an observation more than steps, the last one.
    acted = np.arange(len(dataset)) + np.repeat(np.arange(len(dataset.lengths)), dataset.lengths)
    return {
        "observations": dataset.observations[acted],
        "actions": dataset.actions,
        "rewards": dataset.rewards,
        "terminals": terminals,
        "timeouts": ends & ~terminals,
        "next_observations": dataset.observations[acted + 1],
    }

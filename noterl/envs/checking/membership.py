"""Why a value is not in its space, in words.

Owns: the wording of what is wrong with an observation, a reward or an end-of-episode flag.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from noterl.envs.spaces import parts_of, show


class Fault(NamedTuple):
    """One thing that is wrong with a value: "error" or "warning", a key of its kind, and the text."""

    severity: str
    key: str
    text: str


def faults(space: Space[Any], value: Any, name: str) -> Iterator[Fault]:
    """Yield what is wrong with `value` as a member of `space`; `name` is what the text calls it."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        yield from _part_faults(space, value, name)
    elif isinstance(space, spaces.Discrete):
        yield from _discrete_faults(space, value, name)
    else:
        yield from _array_faults(space, value, name)


def _part_faults(space: Space[Any], value: Any, name: str) -> Iterator[Fault]:
    expected = dict if isinstance(space, spaces.Dict) else tuple
    if not isinstance(value, Mapping if expected is dict else tuple):
        yield Fault("error", f"{name} type", f"{name} must be a {expected.__name__}, got {type(value).__name__}")
        return
    parts = parts_of(space)
    held = dict(value) if isinstance(value, Mapping) else dict(enumerate(value))
    if set(held) != set(parts):
        text = f"{name} must have the keys {sorted(map(str, parts))}, got {sorted(map(str, held))}"
        yield Fault("error", f"{name} keys", text)
    for key in parts:
        if key in held:
            yield from faults(parts[key], held[key], f"{name}[{key!r}]")


def _discrete_faults(space: spaces.Discrete, value: Any, name: str) -> Iterator[Fault]:
    array = np.asarray(value)
    if array.shape != () or array.dtype.kind not in "iu":
        yield Fault("error", f"{name} type", f"{name} must be an int of {space}, got {show(repr(value))}")
    elif not space.start <= array < space.start + space.n:
        yield Fault("error", f"{name} range", f"{name} = {int(array)} is not in {space}")


def _array_faults(space: Space[Any], value: Any, name: str) -> Iterator[Fault]:
    if not isinstance(value, np.ndarray | np.generic):
        text = (
            f"{name} must be a numpy array of shape {space.shape} and dtype {space.dtype}, got {type(value).__name__}"
        )
        yield Fault("error", f"{name} type", text)
        return
    if value.shape != space.shape:
        yield Fault("error", f"{name} shape", f"{name} must have the shape {space.shape}, got {value.shape}")
        return
    yield from _dtype_faults(space, value, name)
    if value.dtype.kind == "f" and np.isnan(value).any():
        text = f"{name} is NaN at {_where(np.isnan(value))}"
        yield Fault("error", f"{name} nan", text)
    elif value.dtype.kind in "biuf":
        yield from _bound_faults(space, value, name)


def _dtype_faults(space: Space[Any], value: Any, name: str) -> Iterator[Fault]:
    assert space.dtype is not None
    if value.dtype == space.dtype:
        return
    text = f"{name} must have the dtype {space.dtype}, got {value.dtype}"
    if np.can_cast(value.dtype, space.dtype):
        yield Fault("warning", f"{name} dtype", f"{text}, which is converted at every step")
    else:
        yield Fault("error", f"{name} dtype", text)


def _bound_faults(space: Space[Any], value: Any, name: str) -> Iterator[Fault]:
    low, high = _bounds(space)
    outside = (value < low) | (value > high)
    if not outside.any():
        return
    index = tuple(int(axis) for axis in np.argwhere(outside)[0])
    lows, highs = np.broadcast_to(low, value.shape), np.broadcast_to(high, value.shape)
    count = int(outside.sum())
    others = f" (and {count - 1} more)" if count > 1 else ""
    text = f"{name}{_where(outside)} = {value[index]} is outside [{lows[index]}, {highs[index]}]{others}"
    yield Fault("error", f"{name} bounds", text)


def _bounds(space: Space[Any]) -> tuple[Any, Any]:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return 0, 1


def _where(mask: Any) -> str:
    """Return the first place at which `mask` holds, as an index in brackets; "" for a single number."""
    index = np.argwhere(mask)[0]
    return str([int(axis) for axis in index]) if index.size else ""


def reward_fault(reward: Any) -> Fault | None:
    """Return what is wrong with a reward, which must be one finite number."""
    array = np.asarray(reward)
    if array.shape != () or array.dtype.kind not in "biuf":
        return Fault("error", "reward type", f"reward must be one number, got {show(repr(reward))}")
    if not np.isfinite(array):
        return Fault("error", "reward finite", f"reward must be finite, got {reward}")
    return None


def flag_fault(name: str, flag: Any) -> Fault | None:
    """Return what is wrong with `terminated` or `truncated`, which must be a bool."""
    if isinstance(flag, bool | np.bool_):
        return None
    return Fault("error", name, f"{name} must be a bool, got {show(repr(flag))}")

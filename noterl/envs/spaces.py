"""Spaces: taken from gymnasium and from classic gym, said in JSON, refused by name.

Owns: which kinds of space an environment may have. Everything else in the library sees gymnasium's own classes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

KINDS: dict[str, type[Space[Any]]] = {
    "Box": spaces.Box,
    "Discrete": spaces.Discrete,
    "MultiDiscrete": spaces.MultiDiscrete,
    "MultiBinary": spaces.MultiBinary,
    "Dict": spaces.Dict,
    "Tuple": spaces.Tuple,
}
_KIND_LIST = "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"

# A file may ask for any shape; 64 Mi entries are more than an 8K colour image has, and fit in memory.
_MAX_ENTRIES = 2**26


def kind(space: Any) -> str | None:
    """Return which of the supported kinds `space` is, or None.

    Spaces of classic gym are known by the names of their classes: gym itself is never imported.
    """
    for name, cls in KINDS.items():
        if isinstance(space, cls):
            return name
    if isinstance(space, Space):
        return None
    bases = {base.__name__ for base in type(space).__mro__}
    return next((name for name in KINDS if name in bases), None)


def is_space(value: Any) -> bool:
    """Tell whether `value` is a space of gymnasium or of classic gym, supported or not."""
    return isinstance(value, Space) or (
        not isinstance(value, type) and any(base.__name__ == "Space" for base in type(value).__mro__)
    )


def show(value: Any) -> str:
    """Return `value` as text short enough for an error message."""
    text = " ".join(str(value).split())
    return text if len(text) <= 160 else f"{text[:157]}..."


def convert(space: Any, name: str) -> Space[Any]:
    """Return `space` as one of gymnasium's; gymnasium's own come back as they are.

    Args:
        space: a space of gymnasium, or of classic gym (told by its class name and attributes).
        name: what the error calls it, such as "observation_space".

    Raises:
        ValueError: if it is not a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple of those, or if a discrete
            space does not start at zero.
    """
    which = kind(space)
    if which is None:
        raise ValueError(f"env: {name} must be a {_KIND_LIST} space, got {show(space)} ({type(space).__name__})")
    if which in ("Discrete", "MultiDiscrete") and np.any(getattr(space, "start", 0)):
        raise ValueError(f"env: {name} must start at zero, got {show(space)}; {_start_hint(space, name)}")
    try:
        parts = parts_of(space)
        converted = {key: convert(part, f"{name}[{key!r}]") for key, part in parts.items()}
        if isinstance(space, Space):
            return space
        return _CONVERTERS[which](space, converted)
    except (AttributeError, TypeError, AssertionError) as error:
        raise ValueError(f"env: {name} looks like a {which} space but cannot be read as one: {error}") from error


def _start_hint(space: Any, name: str) -> str:
    """Return the line that wraps an environment so that its discrete values start at zero."""
    start = np.asarray(space.start).tolist()
    size = f"Discrete({space.n})" if kind(space) == "Discrete" else f"MultiDiscrete({np.asarray(space.nvec).tolist()})"
    if name == "action_space":
        transform = f"TransformAction(env, lambda action: action + {start}, gymnasium.spaces.{size})"
    elif name == "observation_space":
        transform = f"TransformObservation(env, lambda value: value - {start}, gymnasium.spaces.{size})"
    else:
        return f"wrap the environment so that this part is gymnasium.spaces.{size}"
    return f"wrap the environment: env = gymnasium.wrappers.{transform}"


def parts_of(space: Any) -> dict[Any, Any]:
    """Return the spaces inside a Dict (by key) or a Tuple (by index); {} for the other kinds."""
    which = kind(space)
    if which == "Dict":
        return dict(space.spaces.items())
    return dict(enumerate(space.spaces)) if which == "Tuple" else {}


_CONVERTERS: dict[str, Callable[[Any, dict[Any, Space[Any]]], Space[Any]]] = {
    "Box": lambda space, _: spaces.Box(
        np.asarray(space.low), np.asarray(space.high), shape=tuple(space.shape), dtype=np.dtype(space.dtype).type
    ),
    "Discrete": lambda space, _: spaces.Discrete(int(space.n)),
    "MultiDiscrete": lambda space, _: spaces.MultiDiscrete(np.asarray(space.nvec, np.int64)),
    "MultiBinary": lambda space, _: spaces.MultiBinary(
        int(space.n) if np.ndim(space.n) == 0 else [int(size) for size in space.n]
    ),
    "Dict": lambda _, parts: spaces.Dict(OrderedDict(parts)),
    "Tuple": lambda _, parts: spaces.Tuple(list(parts.values())),
}


def check_spaces(
    algorithm: str,
    observation_space: Space[Any],
    action_space: Space[Any],
    *,
    observations: Sequence[str] = ("Box",),
    actions: Sequence[str] = ("Discrete",),
    bounded_actions: bool = False,
    hint: str = "",
) -> None:
    """Refuse spaces that an algorithm cannot learn on, by name, before anything is built.

    Args:
        algorithm: who refuses, such as "DQN".
        observation_space: of one environment.
        action_space: of one environment.
        observations: the kinds of observation space it takes: "Box", "Discrete", "Dict" ...
        actions: the kinds of action space it takes.
        bounded_actions: whether a Box of actions must have finite bounds (squashed policies).
        hint: what to do instead; ends the message.

    Raises:
        ValueError: if one of the spaces is of another kind.

    Example:
    >>> from gymnasium.spaces import Box, Discrete
    >>> check_spaces("DQN", Box(-1, 1, (3,)), Box(-2, 2, (1,)), hint="use SAC or TD3")
    Traceback (most recent call last):
        ...
    ValueError: env: DQN takes a Discrete action space, got Box(-2.0, 2.0, (1,), float32); use SAC or TD3
    """
    ending = f"; {hint}" if hint else ""
    for role, space, allowed in (("observation", observation_space, observations), ("action", action_space, actions)):
        if kind(space) not in allowed:
            raise ValueError(f"env: {algorithm} takes a {' or '.join(allowed)} {role} space, got {show(space)}{ending}")
    unbounded = isinstance(action_space, spaces.Box) and not action_space.is_bounded()
    if bounded_actions and unbounded:
        raise ValueError(f"env: {algorithm} takes actions with finite bounds, got {show(action_space)}{ending}")


def same_layout(first: Space[Any], second: Space[Any]) -> bool:
    """Tell whether values of both spaces have the same structure, shapes and dtypes (bounds may differ)."""
    which = kind(first)
    if which != kind(second):
        return False
    if which in ("Dict", "Tuple"):
        ours, theirs = parts_of(first), parts_of(second)
        return list(ours) == list(theirs) and all(same_layout(ours[key], theirs[key]) for key in ours)
    if which == "Box":
        return first.shape == second.shape and first.dtype == second.dtype
    return first == second


def describe_space(space: Space[Any]) -> dict[str, Any]:
    """Return `space` as a dict that JSON can hold exactly; `build_space` makes it again.

    Example:
    >>> from gymnasium.spaces import Box
    >>> describe_space(Box(-1, float("inf"), (3,)))
    {'type': 'Box', 'shape': [3], 'dtype': 'float32', 'low': -1.0, 'high': 'inf'}
    """
    which = kind(space)
    if isinstance(space, spaces.Box):
        bounds = {"low": _say_array(space.low), "high": _say_array(space.high)}
        return {"type": "Box", "shape": list(space.shape), "dtype": space.dtype.name, **bounds}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        lists = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"type": "MultiDiscrete", "dtype": space.dtype.name, **lists}
    if isinstance(space, spaces.MultiBinary):
        # To gymnasium MultiBinary(4) and MultiBinary([4]) are two spaces.
        return {"type": "MultiBinary", "shape": list(space.shape), "flat": isinstance(space.n, int | np.integer)}
    if isinstance(space, spaces.Dict):
        # Pairs, not a JSON object: the order of the keys is the order in which they are concatenated.
        return {"type": "Dict", "spaces": [[key, describe_space(part)] for key, part in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [describe_space(part) for part in space.spaces]}
    raise ValueError(f"env: a space must be a {_KIND_LIST}, got {show(space)} ({which})")


def _say_array(array: np.ndarray) -> Any:
    """Return one number where all entries are equal, else the flat list; infinities as text, which JSON lacks."""
    flat = array.reshape(-1)
    if flat.size and (flat == flat[0]).all():
        return _say_number(flat[0].tolist())
    return [_say_number(value) for value in flat.tolist()]


def _say_number(value: float) -> Any:
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def build_space(description: Any) -> Space[Any]:
    """Make the space that `describe_space` described. The description may come from a file, so nothing is believed.

    Raises:
        ValueError: if it describes no space, or one too large to be true.
    """
    try:
        if _entries(description) > _MAX_ENTRIES:
            raise ValueError(f"it has more than {_MAX_ENTRIES} entries")
        return _BUILDERS[description["type"]](description)
    except (AssertionError, LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        problem = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else error
        raise ValueError(f"not the description of a space: {show(problem)}") from error


def _entries(description: dict[str, Any]) -> int:
    """Return how many numbers one value of the described space has, without allocating anything."""
    which = description["type"]
    if which in ("Dict", "Tuple"):
        parts = [part[1] if which == "Dict" else part for part in description["spaces"]]
        return sum(_entries(part) for part in parts)
    return math.prod(_shape(description)) if "shape" in description else 1


def _shape(description: dict[str, Any]) -> tuple[int, ...]:
    shape = tuple(description["shape"])
    if not all(type(size) is int and 0 <= size <= _MAX_ENTRIES for size in shape) or len(shape) > 32:
        raise ValueError(f"shape must be a list of non-negative ints, got {show(shape)}")
    return shape


def _build_box(description: dict[str, Any]) -> spaces.Box:
    shape, dtype = _shape(description), np.dtype(str(description["dtype"]))
    if dtype.kind not in "biuf":
        raise ValueError(f"dtype must be a kind of number, got {dtype}")
    low, high = (_hear_array(description[name], shape, dtype) for name in ("low", "high"))
    return spaces.Box(low, high, shape=shape, dtype=dtype.type)


def _hear_array(said: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    numbers = [float(number) if isinstance(number, str) else number for number in np.ravel(np.array(said, object))]
    if not all(isinstance(number, int | float) for number in numbers):
        raise ValueError("bounds must be numbers")
    array = np.array(numbers, dtype)
    return np.full(shape, array[0], dtype) if not isinstance(said, list) else array.reshape(shape)


def _build_multi_discrete(description: dict[str, Any]) -> spaces.MultiDiscrete:
    dtype = np.dtype(str(description["dtype"])).type
    return spaces.MultiDiscrete(
        np.array(description["nvec"], dtype), dtype=dtype, start=np.array(description["start"], dtype)
    )


_BUILDERS: dict[str, Callable[[dict[str, Any]], Space[Any]]] = {
    "Box": _build_box,
    "Discrete": lambda said: spaces.Discrete(said["n"], start=said["start"]),
    "MultiDiscrete": _build_multi_discrete,
    "MultiBinary": lambda said: spaces.MultiBinary(_shape(said)[0] if said.get("flat") else _shape(said)),
    "Dict": lambda said: spaces.Dict(OrderedDict((str(key), build_space(part)) for key, part in said["spaces"])),
    "Tuple": lambda said: spaces.Tuple([build_space(part) for part in said["spaces"]]),
}

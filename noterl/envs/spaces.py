"""The supported kinds of space, of gymnasium or of classic gym."""

from __future__ import annotations

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


def kind(space: Any) -> str | None:
    """Return the name of the supported kind that `space` is, or None.

    Spaces are recognized by the names of the classes, because classic gym is never imported.
    """
    bases = {base.__name__ for base in type(space).__mro__}
    return next((name for name in KINDS if name in bases), None)


def is_space(value: Any) -> bool:
    """Return whether `value` is a space of gymnasium or of classic gym, supported or not."""
    # A class is not a space, though it has one among its bases.
    return isinstance(value, Space) or (
        not isinstance(value, type) and any(base.__name__ == "Space" for base in type(value).__mro__)
    )


def show(value: Any) -> str:
    """Return `value` as text short enough for an error message."""
    text = " ".join(str(value).split())
    return text if len(text) <= 160 else f"{text[:157]}..."


def convert(space: Any, name: str) -> Space[Any]:
    """Return `space` as one of gymnasium's own classes, which a file can hold; such a space is returned unchanged.

    Args:
        space: a space of gymnasium (or a subclass) or of classic gym (recognized by class name and attributes).
        name: the name in error messages, such as "observation_space".

    Raises:
        ValueError: if `space` is not a Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of these, or if
            a discrete space does not start at zero.
    """
    which = kind(space)
    if space is None:
        raise ValueError(f"env: the environment has no {name}; set it in its constructor, to a space of gymnasium")
    if which is None:
        single = ", ".join(name_of_kind for name_of_kind in KINDS if name_of_kind != "Tuple")
        wrapper = f"gymnasium.wrappers.Transform{'Action' if name.startswith('action') else 'Observation'}"
        raise ValueError(
            f"env: {name} must be a {single} space, or for several agents a Tuple of them, got {show(space)} "
            f"({type(space).__name__}); wrap the environment in {wrapper}, so that it has arrays of one shape"
        )
    if which in ("Discrete", "MultiDiscrete") and np.any(getattr(space, "start", 0)):
        raise ValueError(f"env: {name} must start at zero, got {show(space)}; {_start_hint(space, name)}")
    try:
        children = parts_of(space)
        converted = {key: convert(part, f"{name}[{key!r}]") for key, part in children.items()}
        # Return the same object for a space whose parts are unchanged: the caller finds converted spaces by identity.
        same = type(space) is KINDS[which] and all(part is converted[key] for key, part in children.items())
        return space if same else _CONVERTERS[which](space, converted)
    except (AttributeError, TypeError, AssertionError) as error:
        raise ValueError(f"env: {name} looks like a {which} space but cannot be read as one: {error}") from error


def _start_hint(space: Any, name: str) -> str:
    """Return advice: how to wrap an environment so that discrete values start at zero."""
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
    "MultiBinary": lambda space, _: spaces.MultiBinary(np.asarray(space.n).tolist()),
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
    """Raise if an algorithm does not support the spaces.

    Args:
        algorithm: the name in the error, such as "DQN".
        observation_space: of one environment.
        action_space: of one environment.
        observations: the kinds of observation space that the algorithm supports: "Box", "Discrete", "Dict" ...
        actions: the kinds of action space that the algorithm supports.
        bounded_actions: whether a Box of actions must have finite bounds, as for squashed policies.
        hint: advice at the end of the message.

    Raises:
        ValueError: if one of the spaces is of another kind, or if required finite bounds of actions are missing.

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
            algorithms = _ALGORITHMS.get(str(kind(space)), "") if role == "action" else ""
            advice = ending or (f"; use {algorithms}" if algorithms else _wrapper_hint(role, space))
            raise ValueError(f"env: {algorithm} takes a {' or '.join(allowed)} {role} space, got {show(space)}{advice}")
    if 0 in (action_space.shape or ()):
        raise ValueError(f"env: action_space must have at least one value, got {show(action_space)}, which is empty")
    if bounded_actions and isinstance(action_space, spaces.Box) and not action_space.is_bounded():
        raise ValueError(f"env: {algorithm} takes actions with finite bounds, got {show(action_space)}{ending}")


# Kind of action space -> some algorithms for it.
_ALGORITHMS = {
    "Box": "PPO, SAC or TD3",
    "Discrete": "PPO or DQN",
    "MultiDiscrete": "PPO or A2C",
    "MultiBinary": "PPO or A2C",
}


def _wrapper_hint(role: str, space: Any) -> str:
    """Return the end of a message about a space that no algorithm takes: the wrapper for it; "" for other spaces."""
    if role == "observation" and kind(space) == "Tuple":
        return "; wrap the environment: env = gymnasium.wrappers.FlattenObservation(env)"
    if role == "action" and kind(space) in ("Tuple", "Dict"):
        return "; wrap the environment in gymnasium.wrappers.TransformAction, so that an action is one array"
    return ""


def find_unsupported(observation_space: Any, action_space: Any) -> list[str]:
    """Return a sentence for each space of an environment with one agent that no algorithm takes.

    Example:
    >>> from gymnasium.spaces import Discrete, Tuple
    >>> find_unsupported(Tuple([Discrete(3), Discrete(2)]), Discrete(2))[0].partition(";")[0]
    'no agent takes the observation space Tuple(Discrete(3), Discrete(2))'
    """
    pairs = ("observation", observation_space), ("action", action_space)
    hints = [(role, space, _wrapper_hint(role, space)) for role, space in pairs]
    return [f"no agent takes the {role} space {show(space)}{hint}" for role, space, hint in hints if hint]


def same_layout(first: Space[Any], second: Space[Any]) -> bool:
    """Return whether values of both spaces have the same structure, shapes and dtypes; bounds of a Box may differ."""
    which = kind(first)
    if which != kind(second):
        return False
    if which in ("Dict", "Tuple"):
        ours = parts_of(first)
        theirs = parts_of(second)
        return list(ours) == list(theirs) and all(same_layout(ours[key], theirs[key]) for key in ours)
    if which == "Box":
        return first.shape == second.shape and first.dtype == second.dtype
    return first == second

"""What a saved file may say of the environments.

Owns: the check of it, for lanes of every kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from noterl.envs.observation import fits

if TYPE_CHECKING:
    from noterl.envs import EnvSource


def check_state(state: Any, source: EnvSource) -> None:
    """Refuse what `set_state` of lanes could not take; it comes from a file, and is taken when the next `fit` begins.

    Raises:
        ValueError: if it is not what their `get_state` returns for environments of these spaces.
    """
    try:
        lanes, ledger = state["lanes"], state["ledger"]
        right = len(lanes) > 0 and type(state["cursor"]) is int and 0 <= state["cursor"] <= len(lanes)
        right &= all(len(ledger[name]) == len(lanes) for name in ("returns", "lengths", "numbers", "running"))
        right &= all(type(running) is bool for running in ledger["running"])
        right &= all(type(number) is int and number >= -1 for name in ("lengths", "numbers") for number in ledger[name])
        right &= all(type(value) is float for value in ledger["returns"])
        right &= all(ledger["numbers"][lane] >= 0 for lane, running in enumerate(ledger["running"]) if running)
        over = ledger.get("over", [])
        right &= isinstance(over, list) and len({*over}) == len(over)
        for lane in over:
            right &= type(lane) is int and 0 <= lane < len(lanes) and not ledger["running"][lane]
            right &= ledger["numbers"][lane] >= 0
        if state["actions"] is not None:
            right &= len(state["actions"]) == len(lanes) and state["cursor"] < len(lanes)
            right &= _are_actions(state["actions"], source.action_space)
        if "vector" in state and state["vector"] is None:
            right &= all(lane is None for lane in lanes)
        else:
            right &= all(_is_lane(lane, source) for lane in lanes)
            right &= "vector" not in state or _is_vector(state["vector"], state, source)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"the state of the environments is malformed: {error!r}") from error
    if not right:
        raise ValueError("the state of the environments is malformed, or of environments with other spaces")


def _is_lane(lane: Any, source: EnvSource) -> bool:
    right = (
        type(lane["seed"]) is int and 0 <= lane["seed"] < 2**31 and fits(source.observation_space, lane["observation"])
    )
    if source.team is not None:
        right &= np.shape(lane["earned"]) == (len(source.team),) and lane["earned"].dtype == np.float64
    return right and isinstance(lane["environment"], dict | None) and _are_actions(lane["actions"], source.action_space)


def _is_vector(said: Any, state: Any, source: EnvSource) -> bool:
    count, space = len(state["lanes"]), source.observation_space
    right = isinstance(said["mode"], str) and isinstance(said["left"], list)
    right &= said["over"].shape == (count,) and said["over"].dtype == bool
    right &= bool(said["left"]) == (state["actions"] is not None)
    for left in said["left"]:
        right &= type(left["lane"]) is int and 0 <= left["lane"] < count and state["ledger"]["running"][left["lane"]]
        right &= fits(space, left["observation"]) and fits(space, left["next_observation"])
        right &= type(left["reward"]) is float and all(type(left[name]) is bool for name in ("terminated", "truncated"))
    return right


def _are_actions(actions: np.ndarray, space: spaces.Space[Any]) -> bool:
    """Say whether an array holds actions of the space, `[n, ...]`; none at all may be of any dtype."""
    if not actions.size:
        return actions.ndim > 0
    if not isinstance(space, spaces.Discrete):
        return actions.shape[1:] == space.shape and actions.dtype == space.dtype
    return actions.ndim == 1 and actions.dtype.kind == "i" and bool((actions >= 0).all() and (actions < space.n).all())

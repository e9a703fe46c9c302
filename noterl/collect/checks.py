"""Checks of saved states of lanes, which may come from hostile files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from noterl.envs.observation import has_layout

if TYPE_CHECKING:
    from noterl.envs import EnvSource

# Bytes of actions that vector lanes keep to restore a run: 64 million steps of up to 256 discrete actions.
MAX_HISTORY = 2**26


def check_state(state: Any, source: EnvSource) -> None:
    """Raise unless lanes of environments with the source's spaces can restore a state in the next `fit`.

    Raises:
        ValueError: if their `get_state` never returns such a state.
    """
    try:
        lanes, ledger = state["lanes"], state["ledger"]
        valid = len(lanes) > 0
        valid &= all(len(ledger[name]) == len(lanes) for name in ("returns", "lengths", "numbers", "running"))
        valid &= all(type(running) is bool for running in ledger["running"])
        valid &= all(type(number) is int and number >= -1 for name in ("lengths", "numbers") for number in ledger[name])
        valid &= all(type(value) is float for value in ledger["returns"])
        valid &= all(ledger["numbers"][lane] >= 0 for lane, running in enumerate(ledger["running"]) if running)
        over = ledger["over"]
        valid &= isinstance(over, list) and len({*over}) == len(over)
        for lane in over:
            valid &= type(lane) is int and 0 <= lane < len(lanes) and not ledger["running"][lane]
            valid &= ledger["numbers"][lane] >= 0
        valid &= all(has_layout(source.observation_space, lane["observation"]) for lane in lanes)
        if "vector" in state:
            valid &= _is_vector(state["vector"], len(lanes), source)
        else:
            valid &= type(state["cursor"]) is int and 0 <= state["cursor"] <= len(lanes)
            valid &= all(_is_lane(lane, source) for lane in lanes)
            if state["actions"] is not None:
                valid &= len(state["actions"]) == len(lanes) and state["cursor"] < len(lanes)
                valid &= _are_actions(state["actions"], source.action_space)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"the state of the environments is malformed: {error!r}") from error
    if not valid:
        raise ValueError("the state of the environments is malformed, or of environments with other spaces")


def _is_lane(lane: Any, source: EnvSource) -> bool:
    valid = type(lane["seed"]) is int and 0 <= lane["seed"] < 2**31
    if source.team is not None:
        valid &= np.shape(lane["earned"]) == (len(source.team),) and lane["earned"].dtype == np.float64
    return valid and isinstance(lane["environment"], dict | None) and _are_actions(lane["actions"], source.action_space)


def _is_vector(vector: Any, count: int, source: EnvSource) -> bool:
    actions = vector["actions"]
    valid = isinstance(vector["mode"], str) and type(vector["discarded"]) is bool
    valid &= type(vector["seed"]) is int and 0 <= vector["seed"] < 2**31
    valid &= vector["unreset"].shape == (count,) and vector["unreset"].dtype == bool
    if valid and actions is not None:
        valid = actions.shape[1:2] == (count,) and actions.nbytes <= MAX_HISTORY
        valid = valid and _are_actions(actions.reshape(-1, *actions.shape[2:]), source.action_space)
    return valid


def _are_actions(actions: np.ndarray, space: spaces.Space[Any]) -> bool:
    """Return whether an array holds actions of the space, `[n, ...]`; an empty array may have any dtype."""
    if not actions.size:
        return actions.ndim > 0
    if not isinstance(space, spaces.Discrete):
        return actions.shape[1:] == space.shape and actions.dtype == space.dtype
    return actions.ndim == 1 and actions.dtype.kind in "iu" and bool((actions >= 0).all() and (actions < space.n).all())

"""Checks of saved states of lanes, which may come from hostile files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.acting.policy_state import NO_STATE, State
from noterl.collect.action_log import MAX_BYTES, ActionLog
from noterl.collect.device import check_device_state
from noterl.collect.info import REDUCTIONS, STATE
from noterl.collect.workers.transitions import INFO, row_specs
from noterl.envs import EnvSource
from noterl.types import ACTING_OUTPUTS
from noterl.types import STATE as POLICY_STATE
from noterl.utils.schema import Array, DictOf, Int, ListOf, check

_SEED = Int(0, 2**31 - 1)


def check_state(
    state: Any,
    source: EnvSource,
    extra_spec: Any = None,
    info_spec: Any = None,
    start: State = NO_STATE,
    outputs: int = 0,
) -> None:
    """Check a state that the lanes of the source's environments restore in the next `fit`.

    Args:
        state: the state.
        source: makes the environments.
        extra_spec: name -> (shape, dtype) of the fields that the actor adds to actions.
        info_spec: name -> (shape, dtype, default) of the fields of `info`.
        start: the state of the policy before the first step of an episode, `[...]` by name.
        outputs: the size of the head's input.

    Raises:
        ValueError: if `get_state` of such lanes cannot have returned the state.
        KeyError, TypeError: if a part of the state is missing or of another type; the caller raises a ValueError.
    """
    count = len(state["lanes"])
    lane: dict[str, Any] = {"observation": _layout(source.observation_space)}
    ledger = {**_episodes(count), "over": ListOf(Int(0, count - 1)), "info": [DictOf(STATE)] * count}
    if start:
        ledger["policy_state"] = _states(start, count)
    expected = {"lanes": ListOf(lane), "ledger": ledger}
    action_space = source.action_space
    log = ActionLog(action_space, count if "vector" in state else None)
    recorded = (Array(log.dtype, (None, *log.shape[1:])), None)
    if "device" in state:
        check(state, {"lanes": [{}] * count, "ledger": ledger, "device": dict}, "lanes")
        check_device_state(state["device"], count)
        actions = []
    elif "vector" in state:
        actions = [state["vector"]["actions"]]
        unreset = Array(np.bool_, (count,))
        vector: dict[str, Any] = {"mode": str, "seed": _SEED, "actions": recorded, "unreset": unreset}
        vector |= {"discarded": bool, "info": _fields(info_spec, count)}
        check(state, {**expected, "vector": vector}, "lanes")
    else:
        actions = [state["actions"], *(saved["actions"] for saved in state["lanes"])]
        lane |= {"seed": _SEED, "environment": (dict, None), "actions": recorded}
        if source.team is not None:
            lane["earned"] = Array(np.float64, (len(source.team),))
        chosen = Array(np.int64 if isinstance(action_space, spaces.Discrete) else log.dtype, (count, *log.shape[1:]))
        # Within a round, at least one lane has not stepped yet.
        cursor = Int(0, count - (state["actions"] is not None))
        extra = _fields(extra_spec, count) if state["actions"] is not None else {}
        expected |= {"actions": (chosen, None), "cursor": cursor, "extra": extra, "info": _fields(info_spec, count)}
        if "pool" in state:
            expected["pool"] = _pool(source, count, state["pool"], info_spec, start, outputs)
        check(state, expected, "lanes")
        if "pool" in state:
            if not _is_possible_pool(**state["pool"], actions=state["actions"], count=count):
                raise ValueError("the state of the workers is malformed")
            actions += [rows["action"] for rows in state["pool"]["rows"]]
    stored = [array for array in actions if array is not None]
    reductions = {reduction for info in state["ledger"]["info"] for reduction, _, _ in info.values()}
    valid = count > 0 and reductions <= {*REDUCTIONS}
    valid &= _is_possible(**state["ledger"]) and all(array.nbytes <= MAX_BYTES for array in stored)
    if isinstance(action_space, spaces.Discrete):
        valid &= all(((array >= 0) & (array < action_space.n)).all() for array in stored)
    if not valid:
        raise ValueError("the state of the environments is malformed")


def _fields(spec: Mapping[str, Any] | None, count: int) -> dict[str, Array]:
    """Return the schema of the fields of `count` lanes."""
    return {name: Array(np.dtype(dtype), (count, *shape)) for name, (shape, dtype, *_) in (spec or {}).items()}


def _states(start: State, count: int) -> dict[str, Array]:
    """Return the schema of the states of the policy in `count` lanes."""
    return {name: Array(value.dtype, (count, *value.shape)) for name, value in start.items()}


def _episodes(count: int) -> dict[str, Any]:
    """Return the schema of the episodes in flight of `count` lanes."""
    numbers = {"returns": [float] * count, "lengths": [Int(0)] * count, "numbers": [Int(-1)] * count}
    return {**numbers, "running": [bool] * count}


def _pool(source: EnvSource, count: int, pool: Any, info_spec: Any, start: State, outputs: int) -> dict[str, Any]:
    """Return the schema of what workers add to the state: see `PoolLanes.get_state`."""
    keys = [name.removeprefix(INFO) for name in pool["rows"][0] if name.startswith(INFO)]
    acted = any(name.startswith(POLICY_STATE) for name in pool["rows"][0])  # whether workers have chosen the actions
    outputs = outputs if ACTING_OUTPUTS in pool["rows"][0] else 0
    specs = row_specs(source, info_spec, keys, start if acted else NO_STATE, outputs)
    row = {spec.name: Array(spec.dtype, (None, *spec.shape)) for spec in specs}
    ledgers = []
    for ledger in pool["ledgers"]:
        lanes = len(ledger["running"])
        has_state = start and acted and "policy_state" in ledger
        state = {"policy_state": _states(start, lanes)} if has_state else {}
        ledgers.append({**_episodes(lanes), "over": [], "info": [{}] * lanes, **state})
    return {
        "rows": [row] * len(ledgers),
        "ledgers": ledgers,
        "explorers": [(dict, None)] * len(ledgers),
        "seen": ListOf(dict),
        "fresh": ListOf(Int(0, count - 1)),
    }


def _is_possible_pool(*, rows: Any, ledgers: Any, actions: Any, count: int, **_: Any) -> bool:
    """Return whether the workers share the lanes out, and have whole rounds, at least the one in progress."""
    lanes = [len(ledger["running"]) for ledger in ledgers]
    # For each worker, the numbers of rounds in the fields of the rows: all must be the same whole number.
    rounds = [
        {len(array) / max(num_lanes, 1) for array in fields.values()}
        for fields, num_lanes in zip(rows, lanes, strict=True)
    ]
    are_whole = all(len(numbers) == 1 and min(numbers).is_integer() for numbers in rounds)
    workers = len(lanes)
    are_possible = all(_is_possible(**ledger) for ledger in ledgers)
    # Worker k has the lanes from k * count // workers on, as in `noterl.collect.workers.pool`.
    expected_lanes = [(index + 1) * count // workers - index * count // workers for index in range(workers)]
    # While a round is in progress, each worker has a row for it, unless the worker was lost.
    pairs = zip(rounds, ledgers, strict=True)
    have_round = actions is None or all(min(numbers) >= 1 or not any(ledger["running"]) for numbers, ledger in pairs)
    return 0 < workers <= count and are_possible and are_whole and lanes == expected_lanes and have_round


def _is_possible(*, running: list[bool], numbers: list[int], over: list[int], **_: Any) -> bool:
    """Return whether every running or finished lane has had an episode, and no lane is both."""
    begun = all(number >= 0 for number, runs in zip(numbers, running, strict=True) if runs)
    return begun and len({*over}) == len(over) and all(numbers[lane] >= 0 and not running[lane] for lane in over)


def _layout(space: spaces.Space[Any]) -> Any:
    """Return the schema of what `copy_observation` returns."""
    if isinstance(space, spaces.Dict):
        return {name: _layout(part) for name, part in space.spaces.items()}
    return Array(space.dtype, space.shape)

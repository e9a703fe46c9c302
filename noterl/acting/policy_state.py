"""The state of a policy: what acting passes from one step of an episode to the next, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

# By name, arrays `[N, ...]` for N episodes, or `[...]` for one.
State = Mapping[str, np.ndarray]

# What actors of agents without a state receive and return.
NO_STATE: State = {}


def read_spec(state_spec: Any, owner: str) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return `state_spec` as name -> (shape of one lane, dtype); a shape alone means float32.

    Raises:
        ValueError: if `state_spec` is anything else; `owner` is the name of the class in the message.
    """
    try:
        return {name: _entry(name, entry) for name, entry in state_spec.items()}
    except (AttributeError, TypeError):  # not a dict, or a wrong entry
        raise ValueError(
            f"state_spec of {owner} must be a dict of name -> shape or (shape, dtype), such as "
            f'{{"memory": (64,)}}, got {state_spec!r}'
        ) from None


def _entry(name: Any, entry: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return an entry of a `state_spec` as (shape, dtype).

    Raises:
        TypeError: if the name is not a str, or the entry is anything but a shape or such a pair.
    """
    has_dtype = isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], tuple)
    shape, dtype = entry if has_dtype else (entry, np.float32)
    sizes = shape if isinstance(shape, tuple) and isinstance(name, str) else (None,)
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise TypeError
    return shape, np.dtype(dtype)


def starting_state(
    state_spec: Any, initial_state: Callable[[], Mapping[str, Any]] | None, owner: str
) -> dict[str, np.ndarray]:
    """Return the state before the first step of an episode, `[...]` by name: `initial_state()`, or zeros.

    Raises:
        ValueError: if `state_spec` is malformed, or `initial_state` returns other names or shapes.
    """
    spec = read_spec(state_spec, owner)
    if initial_state is None:
        return {name: np.zeros(shape, dtype) for name, (shape, dtype) in spec.items()}
    returned = {name: np.asarray(value) for name, value in initial_state().items()}
    shapes = {name: value.shape for name, value in returned.items()}
    expected = {name: shape for name, (shape, _) in spec.items()}
    if shapes != expected:
        raise ValueError(f"initial_state of {owner} must return the names and shapes {expected}, got {shapes}")
    return {name: returned[name].astype(dtype) for name, (_, dtype) in spec.items()}


def read_state(state: Any, starts: Any, start: State, count: int, single: bool = False) -> State:
    """Return the states `[N, ...]` of the rows of a batch, as `Agent.act` receives them.

    Args:
        state: the states, `[N, ...]` by name; for one observation, `[...]`. None starts all episodes.
        starts: the rows whose episode starts, bool `[N]`; for one observation, a bool. None for no row.
        start: the state before the first step of an episode, `[...]` by name.
        count: N.
        single: whether the caller has passed one observation.

    Raises:
        ValueError: if `state` or `starts` is not one of these, or is given for a policy without a state.
    """
    if not start:
        for name, value in (("state", state), ("starts", starts)):
            if value is not None:
                raise ValueError(f"{name} must be None for an agent without a state_spec, got {value!r:.80}")
        return NO_STATE
    episodes = PolicyState(start, count)
    if state is not None:
        shapes = {name: value.shape[single:] for name, value in episodes.values.items()}
        passed = {name: np.shape(value) for name, value in state.items()} if isinstance(state, Mapping) else None
        if passed != shapes:
            raise ValueError(f"state must be None, or a dict with the shapes {shapes}, got {passed or state!r:.200}")
        episodes.advance({name: np.asarray(value)[None] if single else value for name, value in state.items()})
    if starts is not None:
        rows = np.asarray(starts)
        if rows.dtype != np.bool_ or rows.shape != (() if single else (count,)):
            raise ValueError(f"starts must be None or bool {'' if single else [count]}, got {starts!r:.80}")
        for row in np.flatnonzero(rows):
            episodes.begin(int(row))
    return episodes.values


class PolicyState:
    """The states of a policy in N episodes that go on at the same time; the code that runs the episodes holds them.

    Args:
        start: the state before the first step of an episode, `[...]` by name; empty for a policy without a state.
        count: N.

    Attributes:
        start: the state before the first step of an episode.
        values: the state before the next step of each episode, `[N, ...]` by name.
    """

    def __init__(self, start: State, count: int) -> None:
        self.start = start
        self.values: dict[str, np.ndarray] = {
            name: np.repeat(value[None], count, axis=0) for name, value in start.items()
        }

    def begin(self, lane: int) -> None:
        """Start another episode in a lane."""
        for name, value in self.start.items():
            self.values[name][lane] = value

    def advance(self, state: State) -> None:
        """Copy the states `[N, ...]` that the policy has returned; the arrays of frameworks are read-only views."""
        for name, value in state.items():
            self.values[name][:] = value

    def get_state(self) -> dict[str, np.ndarray]:
        """Return copies of the states."""
        return {name: value.copy() for name, value in self.values.items()}

    def set_state(self, values: State) -> None:
        """Restore the states of `get_state`, of any policy; see `Ledger.record_policy_state`."""
        self.values = {name: np.array(value) for name, value in values.items()}


def as_rows(observations: np.ndarray, state: State, names: Iterable[str]) -> np.ndarray:
    """Return observations and states side by side, `[N, D + W]`; the states in the order of these names."""
    return np.concatenate([observations.reshape(len(observations), -1), *(state[name] for name in names)], 1)


def from_rows(rows: np.ndarray, widths: Mapping[str, int]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the output and the state in rows that hold both, the state last; with the widths of the state's parts."""
    place = rows.shape[1] - sum(widths.values())
    output = rows[:, :place]
    state = {}
    for name, width in widths.items():
        state[name] = rows[:, place : place + width]
        place += width
    return output, state


def stacked(states: Sequence[State]) -> dict[str, np.ndarray]:
    """Return the states of single episodes as arrays `[N, ...]` by name."""
    return {name: np.stack([state[name] for state in states]) for name in states[0]}


def rows_of(state: State, count: int) -> list[State]:
    """Return copies of the states `[...]` of single episodes; the opposite of `stacked`."""
    return [{name: np.array(value[row]) for name, value in state.items()} for row in range(count)]

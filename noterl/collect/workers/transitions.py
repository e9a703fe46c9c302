"""The rows in which workers return transitions: the fields of a ring, and how transitions are written and read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.acting.policy_state import NO_STATE, State
from noterl.collect.info import number_of
from noterl.collect.workers.shared_memory import ArraySpec
from noterl.envs import EnvSource
from noterl.heads import members
from noterl.types import ACTING_OUTPUTS, STATE, InfoSpec, Transition

Array = np.ndarray[Any, Any]

OBSERVATION = "observation"
NEXT_OBSERVATION = "next_observation"
FIELDS = "fields/"
INFO = "info/"
HAS_INFO = "has_info/"
TEAM = "team/"

# Observation, next observation, action, "reward", "unclipped", "terminated", "truncated" and "begun".
Row = tuple[Any, Any, Any, float, float, bool, bool, bool]

# The fields of `TeamLanes`. "reward" holds the agents' own rewards: the learner computes those to learn from, because
# `team_reward` is a method of the agent, which a worker does not have.
TEAM_FIELDS = {"reward": np.float64, "terminated": np.bool_, "present": np.bool_, "remaining": np.bool_}


def row_specs(
    source: EnvSource,
    info_spec: InfoSpec | None = None,
    info_keys: Iterable[str] = (),
    start: State = NO_STATE,
    outputs: int = 0,
) -> list[ArraySpec]:
    """Return the fields of one row.

    - "observation", "next_observation": of the environment. The quoted names of the parts of a Dict are appended with
      "/", so that the part "b" of a part "a" has another name than a part "a/b".
    - "action": what the environment received.
    - "chosen": what the agent chose (`Head.executed`); float32 for a Box, as in rollouts.
    - "reward", "terminated", "truncated": the outcome.
    - "unclipped": the reward for the logs; see `noterl.envs.ClipRewards`.
    - "begun": whether the lane was reset before this step.
    - "updates": gradient updates in the weights that chose the action; 0 if the learner chose the action.
    - "state....": the state of the policy before the step, if a worker chose the action.
    - "acting_outputs": the input of the head, if a worker chose the action for a rollout.
    - "team/...": the outcome of each agent, if there are several.
    - "fields/...": the fields of `info` that the memory stores, before and after the step.
    - "info/...", "has_info/...": the values of the step's `info` for the logs, and whether `info` has these values.

    Args:
        source: has the spaces of the environments.
        info_spec: the fields that the memory stores; see `Algorithm.info_spec`.
        info_keys: the keys for the logs.
        start: the state of the policy before the first step of an episode, `[...]` by name.
        outputs: the size of "acting_outputs"; 0 for no such field.
    """
    space: Any = source.action_space
    shape = space.shape or ()
    dtype = np.dtype(np.int64) if isinstance(space, spaces.Discrete) else np.dtype(space.dtype)
    specs = [
        ArraySpec(name + path, leaf.shape or (), leaf.dtype)
        for name in (OBSERVATION, NEXT_OBSERVATION)
        for path, leaf in _leaves(source.observation_space, "")
    ]
    specs += [
        ArraySpec("action", shape, dtype),
        ArraySpec("chosen", shape, np.float32 if isinstance(space, spaces.Box) else dtype),
    ]
    specs += [ArraySpec(name, (), np.float64) for name in ("reward", "unclipped")]
    specs += [ArraySpec(name, (), np.bool_) for name in ("terminated", "truncated", "begun")]
    specs.append(ArraySpec("updates", (), np.int64))
    specs += [ArraySpec(f"{STATE}{name}", value.shape, value.dtype) for name, value in start.items()]
    if outputs:
        specs.append(ArraySpec(ACTING_OUTPUTS, (outputs,), np.float32))
    if source.team is not None:
        specs += [ArraySpec(f"{TEAM}{name}", (len(source.team),), dtype) for name, dtype in TEAM_FIELDS.items()]
    for name, (shape, dtype, _) in (info_spec or {}).items():
        specs += [ArraySpec(f"{FIELDS}{key}", shape, dtype) for key in (name, f"next_{name}")]
    for key in info_keys:
        specs += [ArraySpec(f"{INFO}{key}", (), np.float64), ArraySpec(f"{HAS_INFO}{key}", (), np.bool_)]
    return specs


def _leaves(space: spaces.Space[Any], path: str) -> list[tuple[str, Any]]:
    """Return the parts of a space that are not a Dict, with the paths; see `row_specs`."""
    if not isinstance(space, spaces.Dict):
        return [(path, space)]
    return [leaf for name, part in space.spaces.items() for leaf in _leaves(part, f"{path}/{name!r}")]


class RowWriter:
    """Writes transitions into the fields of a ring.

    Args:
        fields: arrays `[capacity, ...]` of the fields of `row_specs`.
        space: of observations.
    """

    def __init__(self, fields: Mapping[str, Array], space: spaces.Space[Any]) -> None:
        self._fields = fields
        self._observation = _writer(fields, OBSERVATION, space)
        self._next_observation = _writer(fields, NEXT_OBSERVATION, space)
        self._outcome = tuple(fields[name] for name in ("action", "reward", "unclipped", "terminated", "truncated"))
        extra = [name for name in fields if name.startswith((FIELDS, TEAM))]
        self._extra = {name.partition("/")[2]: fields[name] for name in extra}

    def write(self, row: int, transition: Transition, earned: float) -> None:
        """Write a transition, except for the fields that `write_round` writes, and the reward for the logs."""
        self._observation(row, transition.observation)
        self._next_observation(row, transition.next_observation)
        action, reward, unclipped, terminated, truncated = self._outcome
        action[row] = transition.action
        reward[row] = transition.reward
        unclipped[row] = earned
        terminated[row] = transition.terminated
        truncated[row] = transition.truncated

    def write_round(
        self, rows: slice, chosen: Array, begun: Array, updates: int, state: State, outputs: Array | None
    ) -> None:
        """Write, for all lanes of a round, the chosen actions and the fields that do not depend on the outcome."""
        fields = self._fields
        if ACTING_OUTPUTS in fields:
            fields[ACTING_OUTPUTS][rows] = outputs
        for name, values in state.items():
            fields[f"{STATE}{name}"][rows] = values
        fields["chosen"][rows] = chosen
        fields["begun"][rows] = begun
        fields["updates"][rows] = updates

    def write_extra(self, row: int, extra: Mapping[str, Any]) -> None:
        """Write the outcome of each agent of a team, or the fields of `info` that the memory stores."""
        for name, array in self._extra.items():
            array[row] = extra[name]

    def write_info(self, row: int, info: Mapping[str, Any], keys: Iterable[str]) -> None:
        """Write the values of `info` for the logs; raises a ValueError if one is not a number."""
        for key in keys:
            has = key in info
            self._fields[f"{HAS_INFO}{key}"][row] = has
            if has:
                self._fields[f"{INFO}{key}"][row] = number_of(key, info[key])


class RowReader:
    """Reads rows of a ring, all at once: in Python, one after another takes three times as long.

    Args:
        observation_space: of the environments.
        action_space: of the environments.
    """

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self._observation_space = observation_space
        self._action_space = action_space

    def read(self, fields: Mapping[str, Array], rows: slice) -> list[Row]:
        """Return the rows of a slice with a start and a stop; the observations are views of the fields."""
        observations = _observations(fields, OBSERVATION, self._observation_space, rows)
        following = _observations(fields, NEXT_OBSERVATION, self._observation_space, rows)
        actions = members(fields["action"][rows].copy(), self._action_space)
        outcome = (fields[name][rows].tolist() for name in ("reward", "unclipped", "terminated", "truncated", "begun"))
        return list(zip(observations, following, actions, *outcome, strict=True))


def _observations(fields: Mapping[str, Array], name: str, space: Any, rows: slice) -> list[Any]:
    """Return the observations of a slice of rows, one by one, as views."""
    if name in fields:
        return list(fields[name][rows])
    return [observation_at(fields, name, space, row) for row in range(rows.start, rows.stop)]


def info_at(fields: Mapping[str, Array], keys: Iterable[str], row: int) -> dict[str, float]:
    """Return the values of `info` for the logs that a row has."""
    return {key: float(fields[f"{INFO}{key}"][row]) for key in keys if fields[f"{HAS_INFO}{key}"][row]}


def _writer(fields: Mapping[str, Array], name: str, space: spaces.Space[Any]) -> Callable[[int, Any], None]:
    """Return a function that writes an observation into a row."""
    if not isinstance(space, spaces.Dict):
        return fields[name].__setitem__
    writers = [(key, _writer(fields, f"{name}/{key!r}", part)) for key, part in space.spaces.items()]

    def write(row: int, observation: Any) -> None:
        for key, write_part in writers:
            write_part(row, observation[key])

    return write


def observation_at(fields: Mapping[str, Array], name: str, space: Any, rows: Any) -> Any:
    """Return the observation of a row, or the observations of a slice of rows, as views."""
    if name in fields:  # not the type of the space, which takes longer to look at than an observation
        return fields[name][rows]
    return {key: observation_at(fields, f"{name}/{key!r}", part, rows) for key, part in space.items()}

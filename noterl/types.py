"""Types that several parts share.

Axis letters in all comments: T time steps of a rollout, N lanes (environments that are stepped together), K gradient
updates in one compiled call, B transitions of a batch, A actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

Logs = dict[str, Any]

# By name: the shape and dtype of a field of `info`, and its value where `info` lacks it.
InfoSpec = Mapping[str, tuple[tuple[int, ...], Any, Any]]

# Variables with this name hold the noise of acting of a noisy network; they are zero except while the agent explores.
NOISE = "noise_of_acting"

# The names under which memories store whether a step is the first one of its episode, and the policy's state before it.
STARTS = "starts"
STATE = "state."

# The name under which rollouts store the input of the head that chose an action, if a worker has chosen the action.
ACTING_OUTPUTS = "acting_outputs"


class Batch(NamedTuple):
    """The argument of `Agent.loss` and `Agent.update`: arrays `[B, ...]`, or `[K, B, ...]` for a group of updates.

    For several agents, observation, action, reward, next_observation and discount are tuples with an entry per agent.
    `noterl.MultiAgent` documents the fields `present` and `remaining` that `extra` then has.

    Attributes:
        observation: the observation before the step.
        action: the action of the step.
        reward: the discounted sum of n rewards, or of fewer if the episode ends earlier.
        next_observation: the observation after these steps; at the end of an episode the last observation, never the
            first of the next episode.
        discount: gamma^n * (1 - terminated), with the current gamma. Truncated episodes are bootstrapped.
        weight: corrects the bias of the sampler; 1 for uniform sampling. In a rollout, 0 for rows without a step.
        index: the indices of the transitions in the memory.
        extra: further fields, such as the fields that `Agent.prepare` returns.
    """

    observation: Any
    action: Any
    reward: Any
    next_observation: Any
    discount: Any
    weight: Any
    index: Any
    extra: Mapping[str, Any]


def map_arrays(function: Callable[[Any], Any], value: Any) -> Any:
    """Return a `Batch`, a dict or one array, with `function` applied to each array inside."""
    if isinstance(value, Batch):
        return Batch(*(map_arrays(function, part) for part in value))
    if isinstance(value, dict):
        return {name: map_arrays(function, part) for name, part in value.items()}
    return function(value)


class Transition(NamedTuple):
    """One environment step of one lane.

    `next_observation` always belongs to the same episode, also at the end. `extra` holds further fields for the memory.
    """

    lane: int
    observation: Any
    action: Any
    reward: float
    next_observation: Any
    terminated: bool
    truncated: bool
    extra: Mapping[str, Any] | None = None


@runtime_checkable
class ActionData(Protocol):
    """Observations and an expert's actions, such as `noterl.imitation.Demonstrations`.

    Attributes:
        observation_space: of the environment.
        action_space: of the environment.
    """

    observation_space: Any
    action_space: Any

    def pairs(self) -> tuple[Any, Any]:
        """Return the observations `[n, ...]`, a dict of arrays for a Dict space, and the actions `[n, ...]`."""


@dataclass(slots=True)
class Counters:
    """An agent's counts so far: environment steps, gradient updates, finished episodes and started episodes.

    Attributes:
        epochs: finished epochs of updates on data sets.
        epoch_updates: updates of the epoch in progress.
        data_updates: all updates of `fit(dataset=, updates=)`.
    """

    steps: int = 0
    updates: int = 0
    episodes: int = 0
    episodes_begun: int = 0
    epochs: int = 0
    epoch_updates: int = 0
    data_updates: int = 0


@dataclass(slots=True)
class StopRequest:
    """Whether `Agent.stop` was called, and the reason."""

    is_set: bool = False
    reason: str | None = None


@dataclass
class CallEvents:
    """The events of a compiled call, for which the hooks are called one by one.

    Attributes:
        first_step: environment steps before position 0.
        last: the position at which the call ended.
        ends: the positions of the steps that ended an episode, in order, `[E]`.
        returns: the returns of these episodes, `[E]`.
        lengths: the numbers of steps of these episodes, `[E]`.
        learns: the positions of the steps that a group of updates followed, in order, `[R]`.
        due: the number of updates of each group, `[R]`.
        applied: the number of these updates that were applied, `[R]`.
        stopped: whether `stop_epochs` ended the group, `[R]`.
        logs: what the updates logged, by name, `[sum of due, ...]`.
        returns_after: the returns so far of the episodes in flight after the call, `[N]`.
        lengths_after: the numbers of steps of these episodes, `[N]`.
        next_end: number of ends whose hooks were called.
        next_learn: number of groups of updates that were reported.
    """

    first_step: int
    last: int
    ends: np.ndarray
    returns: np.ndarray
    lengths: np.ndarray
    learns: np.ndarray
    due: np.ndarray
    applied: np.ndarray
    stopped: np.ndarray
    logs: dict[str, np.ndarray]
    returns_after: np.ndarray
    lengths_after: np.ndarray
    next_end: int = 0
    next_learn: int = 0

"""The shapes that travel between the parts.

Axis letters, used in comments everywhere: T time steps of a rollout, N lanes (environments stepped side by side),
K gradient updates that run in one compiled call, B rows of a batch, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Logs = dict[str, Any]


class Batch(NamedTuple):
    """What `Agent.loss` and `Agent.update` are given; `[B, ...]` each, `[K, B, ...]` while a group is in transit.

    `reward` is the n-step sum and `discount` is gamma^n * (1 - terminated), both formed at sampling from the live
    gamma: no algorithm sees a "done" flag, and truncation never cuts a bootstrap. `weight` corrects the sampler's bias
    (ones for uniform sampling); `index` names the rows in the memory; `extra` holds the agent's own fields.

    For several agents observation, action, reward, next_observation and discount are tuples, with an entry for each
    agent; `extra` has `present` and `remaining` likewise: 1 for an agent that takes part in the step, and in the state
    that the next observation shows.
    """

    observation: Any
    action: Any
    reward: Any
    next_observation: Any
    discount: Any
    weight: Any
    index: Any
    extra: Mapping[str, Any]


class Transition(NamedTuple):
    """One environment step of one lane, as a collector hands it to the loop.

    `next_observation` is the true one: at the end of an episode the last observation, never the first of the next
    episode. `extra` are further fields for the memory.
    """

    lane: int
    observation: Any
    action: Any
    reward: float
    next_observation: Any
    terminated: bool
    truncated: bool
    extra: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Counters:
    """How far an agent has come: environment steps, gradient updates, finished episodes and started episodes."""

    steps: int = 0
    updates: int = 0
    episodes: int = 0
    episodes_begun: int = 0

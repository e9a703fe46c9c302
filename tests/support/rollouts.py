"""Small spaces of all kinds of action, and a rollout of random steps for agents on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

import noterl
from noterl import heads
from noterl.backends import current
from noterl.types import Transition
from tests.support.parts import learner_of

OBSERVATIONS = spaces.Box(-9.0, 9.0, (3,), np.float32)
SPACES = {
    "discrete": spaces.Discrete(3),
    "multi": spaces.MultiDiscrete([3, 2]),
    "binary": spaces.MultiBinary(2),
    "box": spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 0.5], np.float32)),
}
ROUNDS, LANES = 6, 2


def enlarged(agent: Any) -> None:
    """Enlarge the weights of the actor's last layer, which start near zero."""
    weights = noterl.networks.get_weights(agent.actor)
    weights[2] = np.random.default_rng(8).normal(size=weights[2].shape).astype(np.float32)
    noterl.networks.set_weights(agent.actor, weights)


def filled(agent: Any, masked: bool = False) -> dict[str, np.ndarray]:
    """Fill the agent's rollout with random steps, ends of both kinds and a missing step; return its fields.

    If `masked`, the steps have random masks, and the actions are legal.
    """
    rng, memory = np.random.default_rng(4), learner_of(agent).rollout
    memory.open(LANES)
    extra: list[Any] = [None] * LANES
    for t in range(ROUNDS):
        observations = rng.normal(size=(LANES, 3)).astype(np.float32)
        if masked:
            masks = random_masks(agent, 2 * LANES, rng)
            actions = agent.head.random(LANES, rng, masks[:LANES])
            pairs = zip(masks[:LANES], masks[LANES:], strict=True)
            extra = [{"action_mask": now, "next_action_mask": after} for now, after in pairs]
        else:
            actions = heads.random_actions(agent.action_space, LANES, rng)
        if isinstance(agent.action_space, spaces.Box):
            actions = rng.normal(size=actions.shape).astype(np.float32)  # also beyond the bounds
        memory.begin_round(observations, actions)
        for lane in range(LANES):
            if (t, lane) != (3, 1):
                ends = ((t, lane) == (1, 0), (t, lane) in ((2, 1), (4, 0)))
                memory.add(Transition(lane, None, None, rng.normal(), rng.normal(size=3), *ends, extra[lane]))
        memory.end_round()
    batch = memory.batch(gamma=0.9)
    names = ("observation", "action", "reward", "next_observation", "discount", "weight")
    found = {name: np.array(getattr(batch, name)) for name in names}
    found = {name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in found.items()}
    found |= {"action_mask": np.array(batch.extra["action_mask"])} if masked else {}
    return {**found, "continues": batch.extra["continues"] > 0}


def random_masks(agent: Any, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return masks `[count, A]` with a legal choice in each part."""
    masks = rng.random((count, agent.head.size)) < 0.5
    ends = np.cumsum(agent.head.counts)
    for end, size in zip(ends, agent.head.counts, strict=True):
        masks[np.arange(count), rng.integers(end - size, end, count)] = True
    return masks


def flat(rollout: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.reshape(-1, *array.shape[2:]) for name, array in rollout.items()}


def fetched(values: Any) -> dict[str, np.ndarray]:
    return {name: current().fetch(value) for name, value in values.items()}

"""Rollouts of random steps and disturbed weights, to compare the updates of ACER with a reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from noterl.types import Transition
from tests.support.batches import row
from tests.support.parts import learner_of

ROUNDS, LANES = 6, 2


def fill(agent: Any, seed: int, actions: Callable[[np.random.Generator], np.ndarray]) -> None:
    """Fill the agent's rollout with random steps, ends of both kinds and a missing step.

    `actions` returns the random actions `[LANES, ...]` of a round. Observations have three values.
    """
    rng, memory = np.random.default_rng(seed), learner_of(agent).rollout
    learner_of(agent).open(LANES)
    observations = rng.normal(size=(ROUNDS + 1, LANES, 3)).astype(np.float32)
    for t in range(ROUNDS):
        memory.begin_round(observations[t], actions(rng))
        for lane in range(LANES):
            if (t, lane) != (3, 1):
                ends = ((t, lane) == (1, 0), (t, lane) in ((2, 1), (4, 0)))
                after = rng.normal(size=3) if any(ends) else observations[t + 1, lane]
                memory.add(Transition(lane, None, None, rng.normal(), after, *ends))
        memory.end_round()


def disturb(agent: Any, seed: int, scale: float = 0.4) -> None:
    """Add noise to all weights, so that the policy differs from the one that collected the rollout and the average."""
    rng = np.random.default_rng(seed)
    weights = agent.get_weights()
    agent.set_weights(
        {name: (w + rng.normal(scale=scale, size=w.shape)).astype("float32") for name, w in weights.items()}
    )


def fields(batch: Any, k: int) -> dict[str, np.ndarray]:
    """Return the batch of one update in float64."""
    one = row(batch, k)
    found = {**one._asdict(), **one.extra}
    found.pop("extra")
    return {name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in found.items()}

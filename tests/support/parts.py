"""The parts of an agent that tests look at directly: its learner, its actor and its environments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import noterl
from noterl import backends
from noterl.acting.actor import Actor
from noterl.backends.common import GatheredRows, GroupResult
from noterl.learning.learner import Learner


def learner_of(agent: noterl.Agent) -> Learner:
    """Return the built learner."""
    return agent._parts.build()[0]


def actor_of(agent: noterl.Agent) -> Actor:
    """Return the built actor."""
    return agent._parts.build()[1]


def lanes_of(agent: noterl.Agent) -> Any:
    """Return the open environments; None if they are closed."""
    return agent._parts.session.lanes


def run_updates(agent: noterl.Agent, batch: Any, count: int) -> GroupResult:
    """Make `count` updates on batches `[K, B, ...]`, or on row indices `[K, B]` of the prepared rollout.

    The numbers are those of a long run: on torch, losses are traced.
    """
    learner: Any = learner_of(agent)
    if learner.rollout is not None and learner.replay is None and not isinstance(batch, GatheredRows):
        batch = GatheredRows(learner.prepared_rows, batch)
    with tracing_at_once():
        return learner.update(batch, count)


@contextmanager
def tracing_at_once() -> Iterator[None]:
    """On torch, trace losses in their first update, as in update `EAGER_UPDATES` of a run."""
    if ".torch" not in backends.current().__name__:
        yield
        return
    from noterl.backends.torch import updates

    before, updates.EAGER_UPDATES = updates.EAGER_UPDATES, 0
    try:
        yield
    finally:
        updates.EAGER_UPDATES = before


def gather_batch(agent: noterl.Agent, sample: Any) -> Any:
    """Return the batches `[K, B, ...]` of a sample, as the agent's updates receive them."""
    with learner_of(agent).batches([sample], len(sample)) as batches:
        return next(batches)


def sample_batch(agent: noterl.Agent, updates: int) -> Any:
    """Sample and return the batches `[K, B, ...]` of a group of updates."""
    return gather_batch(agent, learner_of(agent).sample(updates))

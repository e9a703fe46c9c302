"""`Publisher`: what the learner sends to workers that act, besides the number of rounds to collect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from noterl.acting.actor import Actor
from noterl.collect.workers.shared_memory import SharedWeights
from noterl.explorer import Explorer


def block_shapes(actor: Actor) -> list[tuple[tuple[int, ...], Any]]:
    """Return shape and dtype of the arrays of the shared block: the weights, then the statistics for normalization."""
    normalizers = actor.normalizers
    statistics = [] if normalizers is None else list(normalizers.arrays().values())
    return [(array.shape, array.dtype) for array in (*actor.forward.weights(), *statistics)]


class Publisher:
    """Publishes weights and the statistics for normalization, and finds what a callback has changed in the exploration.

    Args:
        actor: of the learner.
        weights: the shared block of the arrays of `block_shapes`; None if the learner chooses the actions.
        seen: attributes of the policies or noises that the workers have, from a saved state.

    Attributes:
        seen: the attributes of the policy or noise that the workers have; a callback may have changed the learner's.
            The list holds an entry for each worker if `compile` received a list, otherwise one for all.
    """

    def __init__(self, actor: Actor, weights: SharedWeights | None, seen: Sequence[Mapping[str, Any]]) -> None:
        self._actor = actor
        self._weights = weights
        self._explorers = actor.worker_explorers or (actor.explorer,)
        self._assignments = [-1] * len(self._explorers)  # `assignments` of each, at the last `changes`
        self.seen: list[dict[str, Any]] = [_values(explorer) for explorer in self._explorers]
        if len(seen) == len(self.seen):
            self.seen = [{**current, **saved} for current, saved in zip(self.seen, seen, strict=True)]

    @property
    def is_stale(self) -> bool:
        """Whether a callback may have changed the weights since the last publication."""
        return bool(self._actor.forward.stale)

    def publish(self, updates: int) -> None:
        """Write the newest weights and statistics, which `updates` gradient updates have led to."""
        assert self._weights is not None
        normalizers = self._actor.normalizers
        statistics = () if normalizers is None else normalizers.arrays().values()
        self._weights.publish([*self._actor.forward.weights(), *statistics], updates)

    def changes(self, workers: int) -> list[dict[str, Any]]:
        """Return the attributes of each worker's policy or noise that were changed since the last call.

        The caller must send the attributes to the workers, because the next call does not return the same changes.
        """
        changes: list[dict[str, Any]] = []
        for position, explorer in enumerate(self._explorers):
            if explorer.assignments == self._assignments[position]:
                changes.append({})  # no attribute was assigned since the last call
                continue
            values = _values(explorer)
            seen = self.seen[position]
            self._assignments[position] = explorer.assignments
            self.seen[position] = dict(values)
            changes.append({name: value for name, value in values.items() if not _is_same(value, seen[name])})
        return changes if len(changes) == workers else changes * workers

    def count_steps(self, step: int, steps: int) -> None:
        """Count the steps of a round, after `step` steps, in the learner's policies or noises, which do not act.

        Workers count these steps themselves, so `changes` does not return the counters.
        """
        for explorer, seen in zip(self._explorers, self.seen, strict=True):
            explorer.update_schedules(step)
            explorer.skip(steps)
            for name in explorer.counters:
                seen[name] += steps


def _values(explorer: Explorer) -> dict[str, Any]:
    """Return the attributes of a policy or noise that a callback may change."""
    return {name: getattr(explorer, name) for name in explorer.tunables if name not in explorer.schedules}


def _is_same(value: Any, other: Any) -> bool:
    return value is other or bool(np.array_equal(value, other))

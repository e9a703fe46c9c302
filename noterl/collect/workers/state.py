"""`PoolState`: the saved state of lanes in worker processes, divided among the workers."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from noterl.collect.ledger import Ledger, is_ahead, joint_kind, warn_restarted
from noterl.collect.workers.pool import Pool
from noterl.collect.workers.rounds import Rounds
from noterl.envs.observation import zeros


class PoolState:
    """What the next `start` of a pool restores.

    A state has the entries of a state of `ScalarLanes`. With "pool", it also holds the rounds that workers have
    collected and the loop has not consumed, and the episodes of the workers, which are further than the loop.

    Args:
        own: the lanes of each worker.

    Attributes:
        saved: the state; None if nothing is restored.
    """

    def __init__(self, own: Sequence[slice]) -> None:
        self._own = own
        self.saved: dict[str, Any] | None = None

    def accept(self, state: dict[str, Any]) -> bool:
        """Keep a state of `PoolLanes` or `ScalarLanes`; return whether the state can be restored.

        A state of another number of lanes is ignored. If workers had collected further than the loop, all episodes
        restart with another number of workers, with a warning.
        """
        origin = joint_kind(state)
        if origin is not None:
            warn_restarted("the environments", f"the state is of {origin}", "Their episodes restart")
            return False
        if len(state["lanes"]) != self._own[-1].stop:
            return False
        if not self.has_workers_of(state) and is_ahead(state):
            warn_restarted("the environments", "their workers had collected further", "Their episodes restart")
            return False
        self.saved = state
        return True

    def has_workers_of(self, state: Mapping[str, Any]) -> bool:
        """Return whether a state is of this number of workers."""
        return "pool" in state and len(state["pool"]["rows"]) == len(self._own)

    @property
    def pool(self) -> dict[str, Any]:
        """The entry "pool" of a saved state of this number of workers; empty if there is none."""
        saved = self.saved
        return {} if saved is None or not self.has_workers_of(saved) else saved["pool"]

    def explorer_of(self, index: int) -> dict[str, Any] | None:
        """Return the saved state of a worker's exploration; None if there is none."""
        explorers: list[Any] = self.pool.get("explorers", [])
        return explorers[index] if explorers else None

    def lanes_of(self, index: int) -> dict[str, Any] | None:
        """Return the saved state of a worker's lanes, in the form for `ScalarLanes`; None if there is none."""
        saved = self.saved
        lane_range = self._own[index]
        if saved is None:
            return None
        if self.pool:
            ledger = self.pool["ledgers"][index]
        else:
            ledger = {name: values[lane_range] for name, values in saved["ledger"].items() if name != "policy_state"}
            # The learner keeps what workers do not.
            ledger |= {"over": [], "info": [{}] * (lane_range.stop - lane_range.start)}
        states = saved["ledger"].get("policy_state", {})
        ledger = {"policy_state": {name: values[lane_range] for name, values in states.items()}, **ledger}
        return {
            "lanes": saved["lanes"][lane_range],
            "ledger": ledger,
            "actions": None,
            "cursor": 0,
            "extra": {},
            "info": {name: values[lane_range] for name, values in saved["info"].items()},
        }


def join(lanes: Pool, rounds: Rounds, states: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """Return the state of a pool from what the workers have sent.

    The generators of the agent are set to the states that the workers have sent, and `resets` of the lanes is set
    accordingly.

    Args:
        lanes: the pool, between two rounds or within a round whose actions the learner has chosen.
        rounds: of the `fit`.
        states: of each worker; None for a worker that has failed, whose lanes start new episodes.
    """
    workers = [_lost_state(lanes, index) if state is None else state for index, state in enumerate(states)]
    for index, state in enumerate(workers):
        for name, values in state["generators"].items():
            lanes.generators(name).bit_generator.state = values
        # The generators have made the resets in these rows, which the loop counts when it consumes the rows.
        lanes.resets[lanes.own[index]] = -rounds.pending_resets(index)
    single = [lane for state in workers for lane in state["lanes"]["lanes"]]
    if lanes.source.team is not None:
        for lane, earned in zip(single, lanes.earned, strict=True):
            lane["earned"] = earned.copy()
    pool = {
        "rows": [inbox.get_state() for inbox in lanes.inboxes],
        "ledgers": [state["lanes"]["ledger"] for state in workers],
        "explorers": [
            None if state is None else rounds.explorer_state(index, state) for index, state in enumerate(states)
        ],
        "seen": [
            {name: list(value) if isinstance(value, tuple) else copy.copy(value) for name, value in seen.items()}
            for seen in rounds.publisher.seen
        ],
        "fresh": rounds.fresh(),
    }
    infos = [state["lanes"]["info"] for state in workers]
    ledger = lanes.ledger.get_state()
    for lane_range, state in zip(lanes.own, workers, strict=True):
        # The learner has the state before the round, and lanes without workers need the state after it.
        for name, values in state["lanes"]["ledger"].get("policy_state", {}).items():
            ledger["policy_state"][name][lane_range] = values
    return {
        "lanes": single,
        "ledger": ledger,
        **lanes.round_state(),
        "info": {name: np.concatenate([info[name] for info in infos]) for name in lanes.fields.spec},
        "pool": pool,
    }


def _lost_state(lanes: Pool, index: int) -> dict[str, Any]:
    """Return the state of a worker that has failed: the lanes start new episodes."""
    lane_range = lanes.own[index]
    count = lane_range.stop - lane_range.start
    lane = {"seed": 0, "actions": None, "environment": None, "observation": zeros(lanes.source.observation_space)}
    single = {"lanes": [dict(lane) for _ in range(count)], "ledger": Ledger(count).get_state()}
    info = {name: values[lane_range] for name, values in lanes.info.items()}
    return {"lanes": {**single, "info": info}, "generators": {}}

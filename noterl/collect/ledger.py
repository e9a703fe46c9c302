"""The returns and lengths of the episodes in flight."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from noterl.acting.policy_state import NO_STATE, PolicyState, State
from noterl.collect.info import EpisodeInfo
from noterl.types import STARTS, STATE

_LISTS = ("returns", "lengths", "numbers", "running", "over")


class Ledger:
    """Returns, lengths and numbers of the episodes in flight, one per lane.

    Attributes:
        returns: sums of rewards.
        lengths: numbers of steps.
        numbers: episode numbers; -1 in a lane before the first episode.
        running: whether the lane's episode is in progress.
        over: lanes whose episode has ended but is not yet counted. Several episodes may end in one step of a vector
            environment, and a callback may save the agent when the first of these is counted.
        reductions: "sum", "mean", "max" or "last" for each key of the step's `info` that the logs hold.
        info: the values of these keys.
        policy_state: the states of the policy; without names for a policy without a state.
    """

    def __init__(self, lanes: int) -> None:
        self.returns: list[float] = [0.0] * lanes
        self.lengths: list[int] = [0] * lanes
        self.numbers: list[int] = [-1] * lanes
        self.running: list[bool] = [False] * lanes
        self.over: list[int] = []
        self.reductions: dict[str, str] = {}
        self.info: list[EpisodeInfo] = [EpisodeInfo() for _ in range(lanes)]
        self.policy_state: PolicyState = PolicyState(NO_STATE, lanes)

    def record_info(self, reductions: Mapping[str, str]) -> None:
        """Set the reductions; episodes in flight keep the values of the keys that have the same reduction."""
        self.reductions = dict(reductions)
        self.info = [episode.copy(reductions) for episode in self.info]

    def record_policy_state(self, start: State) -> None:
        """Keep a state of the policy for each episode; episodes in flight keep a state of the same names and shapes.

        Args:
            start: the state before the first step of an episode, `[...]` by name.
        """
        before = self.policy_state.values
        self.policy_state = PolicyState(start, len(self.running))
        layout = {name: (value.shape, value.dtype) for name, value in self.policy_state.values.items()}
        if layout == {name: (value.shape, value.dtype) for name, value in before.items()}:
            self.policy_state.values = before

    def fields_of_state(self) -> dict[str, np.ndarray]:
        """Return what memories store of the policy's state before a step.

        These are "starts" `[N]`, which is 1 on the first step of an episode, and "state.<name>" `[N, ...]`.
        """
        starts = np.array([length == 0 for length in self.lengths], np.float32)
        states = {f"{STATE}{name}": value for name, value in self.policy_state.get_state().items()}
        return {STARTS: starts, **states}

    def begin(self, lane: int, number: int) -> None:
        """Start an episode."""
        self.returns[lane] = 0.0
        self.lengths[lane] = 0
        self.numbers[lane] = number
        self.running[lane] = True
        self.info[lane] = EpisodeInfo(self.reductions)
        self.policy_state.begin(lane)

    def finish(self, lane: int) -> None:
        """Mark an episode as over."""
        self.running[lane] = False

    def get_state(self) -> dict[str, Any]:
        """Return copies of all attributes but `reductions`."""
        lists = {name: list(getattr(self, name)) for name in _LISTS}
        state: dict[str, Any] = {**lists, "info": [episode.get_state() for episode in self.info]}
        if self.policy_state.values:  # only of a policy with a state, so that other files stay as they were
            state["policy_state"] = self.policy_state.get_state()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` returned."""
        for name in _LISTS:
            setattr(self, name, list(state[name]))
        self.info = [EpisodeInfo.from_state(saved) for saved in state["info"]]
        self.policy_state.set_state(state.get("policy_state", NO_STATE))


def is_ahead(state: Mapping[str, Any]) -> bool:
    """Return whether the state of lanes holds rounds that workers have collected and the loop has not consumed."""
    return "pool" in state and any(len(rows["reward"]) for rows in state["pool"]["rows"])


def joint_kind(state: Mapping[str, Any]) -> str | None:
    """Return whose state this is if the environments are stepped together, without a state of each lane; else None."""
    kinds = {"vector": "a vector environment", "device": "environments on the device"}
    return next((name for key, name in kinds.items() if key in state), None)


def warn_restarted(what: str, reason: str, restarts: str = "Its episode restarts") -> None:
    """Warn that saved episodes could not be restored.

    Args:
        what: the environment.
        reason: why the episodes could not be restored.
        restarts: the beginning of the second sentence of the warning.
    """
    warnings.warn(
        f"could not restore {what} ({reason}). {restarts}, so this run will differ from an uninterrupted one. Run "
        "`noterl.envs.check(env)` for the reason.",
        RuntimeWarning,
        stacklevel=3,
    )


def warn_too_long(what: str) -> None:
    """Warn that actions are no longer recorded, so the episodes cannot be restored."""
    warnings.warn(
        f"{what} has more actions than fit into 64 MiB, so they are no longer recorded. A restored run will restart "
        "its episodes. Environments with get_state() and set_state(state), stepped with num_envs=, have no such limit.",
        RuntimeWarning,
        stacklevel=3,
    )

"""Lanes of environments with several agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from noterl.collect.lanes import ScalarLanes
from noterl.envs import EnvSource
from noterl.envs.multi_agent.parallel import TeamReward
from noterl.types import Transition


class TeamLanes(ScalarLanes):
    """N environments with several agents; a lane's reward is the team's.

    Args:
        source: makes the environments; the source has a team.
        num_envs: the number of lanes.
        generators: see `ScalarLanes`.
        team_reward: see `noterl.envs.multi_agent.parallel.TeamEnv`.
        first: see `ScalarLanes`.
    """

    def __init__(
        self,
        source: EnvSource,
        num_envs: int,
        generators: Callable[[str], np.random.Generator],
        team_reward: TeamReward | None,
        first: int = 0,
    ) -> None:
        super().__init__(source, num_envs, generators, first)
        assert source.team is not None and team_reward is not None, "several agents need a team_reward"
        self._names = source.team.names
        self._earned = np.zeros((num_envs, len(self._names)))
        for environment in self.environments:
            environment.team_reward = team_reward

    def reset(self, lane: int, number: int, step: int) -> None:
        """Start episode `number` in a lane, with a new seed."""
        super().reset(lane, number, step)
        self._earned[lane] = 0.0

    def tick(self, step: int) -> tuple[Transition, ...]:
        """Step the next lane of the round and return the transition, with each agent's outcome in `extra`."""
        transitions = super().tick(step)
        if not transitions:
            return ()
        (transition,) = transitions
        outcome = self.environments[transition.lane].outcome
        self._earned[transition.lane] += outcome.earned
        extra = {name: getattr(outcome, name) for name in ("reward", "terminated", "present", "remaining")}
        return (transition._replace(extra=extra),)

    def logs(self, lane: int) -> dict[str, float]:
        """Return each agent's return in a lane's episode."""
        return {f"reward/{name}": earned for name, earned in zip(self._names, self._earned[lane].tolist(), strict=True)}

    def get_state(self) -> dict[str, Any]:
        """Return the state of `ScalarLanes`, with the agents' returns in the state of each lane."""
        state = super().get_state()
        for lane, earned in zip(state["lanes"], self._earned, strict=True):
            lane["earned"] = earned.copy()
        return state

    def _restore_lane(self, lane: int, saved: dict[str, Any]) -> None:
        super()._restore_lane(lane, saved)
        self._earned[lane] = saved["earned"]

"""The source without an environment: a pair of spaces, for an agent that acts only."""

from __future__ import annotations

from typing import Any

from noterl.envs.making import MAY_BE, Builder
from noterl.envs.multi_agent.team import Team
from noterl.envs.sources.base import Opened
from noterl.envs.sources.scalar import ScalarSource
from noterl.envs.spaces import is_space, kind, show


class SpacesSource(ScalarSource):
    """Holds the spaces only; two Tuple spaces are for several agents.

    Args:
        observation_space: see `EnvSource`.
        action_space: see `EnvSource`.
        absent: the reason why there is no environment, for error messages.
        team: the agents; None for the names "0", "1" and so on, if the spaces are Tuples.
        **settings: the other arguments of `EnvSource`.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        absent: str = "there is no environment, only its spaces",
        team: Team | None = None,
        **settings: Any,
    ) -> None:
        # Without an environment, the agents have no names, so they are numbered.
        if team is None and kind(observation_space) == kind(action_space) == "Tuple":
            names = [str(number) for number in range(len(observation_space))]
            team = Team(names, list(observation_space), list(action_space))
        super().__init__(observation_space, action_space, team=team, **settings)
        self._absent = absent

    @classmethod
    def matches(cls, env: Any) -> bool:
        """Return whether `env` is a tuple or a list."""
        return isinstance(env, tuple | list)

    @classmethod
    def open(cls, env: Any, build: Builder | None = None) -> Opened:
        """Return the pair of spaces.

        Raises:
            ValueError: if `env` is not a pair of spaces.
        """
        if len(env) != 2 or not all(is_space(space) for space in env):
            raise ValueError(f"env must be {MAY_BE}, got {show(env)}")
        return Opened((env[0], env[1]), cls)

    def _builder(self) -> Builder:
        raise ValueError(f"env: {self._absent}; pass env=")

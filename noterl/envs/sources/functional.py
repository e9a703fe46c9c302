"""The source of functional environments: pure functions on JAX arrays."""

from __future__ import annotations

from typing import Any

from noterl.envs.functional import FunctionalEnv, FunctionalVectorEnv, Functions
from noterl.envs.making import Builder
from noterl.envs.sources.base import Opened
from noterl.envs.sources.scalar import ScalarSource


class FunctionalSource(ScalarSource):
    """Makes environments of the same pure functions; the arguments are the same as for `EnvSource`."""

    steps_together = True

    def __init__(self, observation_space: Any, action_space: Any, **settings: Any) -> None:
        super().__init__(observation_space, action_space, **settings)
        self.functions: Functions = self._env.functions

    @classmethod
    def matches(cls, env: Any) -> bool:
        """Return whether `env` is a functional environment."""
        return isinstance(env, FunctionalEnv)

    @classmethod
    def open(cls, env: Any, build: Builder | None = None) -> Opened:
        """Return another environment with the functions of `env`."""
        if build is None:
            build = env.copy
            env = env.copy()  # the user's own object is not a lane
        return Opened.around(env, cls, build)

    def open_vector(self, num_envs: int | None = None) -> Any:
        """Return a vector environment of `num_envs` lanes, stepped by one compiled call."""
        return FunctionalVectorEnv(self.functions, num_envs or 1)

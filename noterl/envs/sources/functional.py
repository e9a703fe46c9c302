"""The source of functional environments: pure functions on JAX arrays."""

from __future__ import annotations

import functools
from typing import Any

from noterl.envs.functional import FunctionalEnv, FunctionalVectorEnv, Functions
from noterl.envs.functional_adapters import adapter_of, find_functional
from noterl.envs.making import Builder
from noterl.envs.sources.base import Opened
from noterl.envs.sources.scalar import ScalarSource


class FunctionalSource(ScalarSource):
    """Makes environments of the same pure functions; the arguments are the same as for `EnvSource`."""

    functions: Functions
    steps_together = True

    def __init__(self, observation_space: Any, action_space: Any, **settings: Any) -> None:
        super().__init__(observation_space, action_space, **settings)
        self.functions = self._env.functions

    @classmethod
    def matches(cls, env: Any) -> bool:
        """Return whether `env` is a functional environment, perhaps of another package, or the id of one."""
        return isinstance(env, FunctionalEnv) or adapter_of(env) is not None

    @classmethod
    def open(cls, env: Any, build: Builder | None = None) -> Opened:
        """Return another environment with the functions of `env`."""
        adapted = env if isinstance(env, FunctionalEnv) else find_functional(env)
        assert adapted is not None, "`matches` accepts only what can be adapted"
        if build is None:
            build = functools.partial(_copy, adapted)
            adapted = adapted.copy() if adapted is env else adapted  # the user's own object is not a lane
        return Opened.around(adapted, cls, build)

    def open_vector(self, num_envs: int | None = None) -> Any:
        """Return a vector environment of `num_envs` lanes, stepped by one compiled call."""
        return FunctionalVectorEnv(self.functions, num_envs or 1)


def _copy(env: FunctionalEnv, render_mode: str | None) -> FunctionalEnv:
    return env.copy()

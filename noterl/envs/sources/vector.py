"""The source of a vector environment that the user passed or whose factory the user passed."""

from __future__ import annotations

from typing import Any

from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv, VectorEnv

from noterl.envs.making import Builder, Env, name_of, single_spec, vector_builder
from noterl.envs.sources.base import EnvSource, Opened
from noterl.envs.wrappers.masks import with_masks


class VectorSource(EnvSource):
    """Holds a vector environment; the arguments are the same as for `EnvSource`.

    The environments of a `SyncVectorEnv` run as scalar lanes: `make(lane)` returns these environments.
    """

    def __init__(self, observation_space: Any, action_space: Any, **settings: Any) -> None:
        super().__init__(observation_space, action_space, **settings)
        self.num_envs: int | None = self._env.num_envs
        self.steps_together: bool = type(self._env) is not SyncVectorEnv
        self._is_open = True

    @classmethod
    def matches(cls, env: Any) -> bool:
        """Return whether `env` is a vector environment of gymnasium."""
        return isinstance(env, VectorEnv)

    @classmethod
    def open(cls, env: Any, build: Builder | None = None) -> Opened:
        """Return the vector environment with the spaces of one lane."""
        return Opened.around(env, cls, build, prefix="single_")

    @property
    def spec(self) -> EnvSpec | None:
        """The `EnvSpec` of one environment, or None."""
        return single_spec(self._env)

    def _single(self) -> Any:
        return next(iter(getattr(self._env.unwrapped, "envs", ())), None)

    def make(self, index: int = 0) -> Env:
        """Return an environment of a `SyncVectorEnv`."""
        return super().make(index) if self.steps_together else with_masks(self.open_vector().envs[index])

    def open_vector(self, num_envs: int | None = None) -> Any:
        """Return the vector environment; if the one made here has been closed, make another."""
        if not self._is_open and self._build is not None:
            self._env = self._build(None)
            self._is_open = True
        return self._env

    def detached(self) -> EnvSource:
        """Raise: worker processes step single environments."""
        raise ValueError(
            f"workers: env must make single environments, but {name_of(self._env)} is a vector environment; pass an id "
            "or a factory, such as lambda: MyEnv(), as env="
        )

    def _builder(self) -> Builder:
        return vector_builder(self._env)

    def close(self) -> None:
        """Close the vector environment if made by a factory."""
        super().close()
        self._is_open = False

"""The source of a maker of vector environments, such as `noterl.envs.Atari`."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from gymnasium.vector import VectorEnv

from noterl.envs import description
from noterl.envs.atari import Atari
from noterl.envs.making import Builder
from noterl.envs.sources.base import EnvSource, Opened
from noterl.envs.spaces import convert, same_layout, show
from noterl.envs.vectorized import VectorMaker


class MakerSource(EnvSource):
    """Makes a vector environment of any number of lanes, and single environments for evaluation.

    Args:
        observation_space: see `EnvSource`.
        action_space: see `EnvSource`.
        maker: makes the vector environments.
        **settings: the other arguments of `EnvSource`.
    """

    steps_together = True

    def __init__(self, observation_space: Any, action_space: Any, *, maker: VectorMaker, **settings: Any) -> None:
        super().__init__(observation_space, action_space, **settings)
        self.maker: VectorMaker = maker
        self._vector: VectorEnv[Any, Any, Any] | None = None

    @classmethod
    def matches(cls, env: Any) -> bool:
        """Return whether `env` is a maker or names one, such as "atari:Pong"."""
        prefix, _, name = env.partition(":") if isinstance(env, str) else ("", "", "")
        # A name is needed: "atari:" alone is no game.
        return isinstance(env, VectorMaker) or (prefix == "atari" and bool(name))

    @classmethod
    def open(cls, env: Any, build: Builder | None = None) -> Opened:
        """Make one environment for evaluation, with the spaces of a lane."""
        maker = Atari(env.removeprefix("atari:")) if isinstance(env, str) else env
        return Opened.around(maker.make_single(), functools.partial(cls, maker=maker), maker.make_single)

    def _maker_entry(self) -> dict[str, Any]:
        return description.describe_object("maker", self.maker)

    def __repr__(self) -> str:
        return repr(self.maker)

    def open_vector(self, num_envs: int | None = None) -> Any:
        """Make a vector environment of `num_envs` lanes; the one before is closed."""
        self._close_vector()
        vector = self.maker.make_vector(1 if num_envs is None else num_envs)
        spaces = convert(vector.single_observation_space, "observation_space"), vector.single_action_space
        if not same_layout(spaces[0], self.observation_space) or spaces[1] != self.action_space:
            vector.close()
            ours = self.observation_space, self.action_space
            raise ValueError(
                f"env: the vector environment has other spaces than a single one: {show(spaces)}, not {show(ours)}; "
                "Atari games need noterl.envs.Atari"
            )
        self._vector = vector
        return vector

    def detached(self) -> EnvSource:
        """Raise: worker processes step single environments."""
        raise ValueError(f"workers must be 0 for {self.maker}, whose lanes are stepped by its own threads")

    def _builder(self) -> Builder:
        return self.maker.make_single if self._build is None else self._build

    def close(self) -> None:
        """Close the vector environment and the environments that were made here."""
        # An `ExitStack`, so that an error of one `close` does not keep the other open.
        with contextlib.ExitStack() as closing:
            closing.callback(super().close)
            closing.callback(self._close_vector)

    def _close_vector(self) -> None:
        if self._vector is not None:
            self._vector.close()
            self._vector = None

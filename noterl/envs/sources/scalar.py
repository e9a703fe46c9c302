"""The source of single environments: an id, a game, an environment of gymnasium or classic gym, or one with agents."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from noterl.envs import description
from noterl.envs.games.game import Game, GameEnv
from noterl.envs.making import Builder, Env, as_env, importable, make_registered, name_of, remake
from noterl.envs.owners import set_owner
from noterl.envs.sources.base import EnvSource, Opened
from noterl.envs.sources.maker import MakerSource
from noterl.envs.vectorized import RegisteredVector
from noterl.envs.wrappers.classic import copier


class _KeptOpen(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The user's own environment, which the user closes."""

    def close(self) -> None:
        """Do nothing."""


class ScalarSource(EnvSource):
    """Makes single environments, which are stepped one after another.

    Args:
        observation_space: see `EnvSource`.
        action_space: see `EnvSource`.
        game: the game that the environments play, if no environment has been made yet.
        **settings: the other arguments of `EnvSource`.
    """

    def __init__(self, observation_space: Any, action_space: Any, *, game: Game | None = None, **settings: Any) -> None:
        super().__init__(observation_space, action_space, **settings)
        self._is_free = self._owned  # whether `_env` was made here and is not a lane yet
        self._game = self._env.game if isinstance(self._env, GameEnv) else game
        self._vectorized: EnvSource | None = None
        self._is_lent = False

    @classmethod
    def matches(cls, env: Any) -> bool:
        """Return whether `env` is an id, a spec, a game, or a single environment."""
        return isinstance(env, str | EnvSpec | Game) or as_env(env) is not None

    @classmethod
    def open(cls, env: Any, build: Builder | None = None) -> Opened:
        """Open an id, a spec, a game, or a single environment."""
        single: Any = as_env(env)
        if single is None:
            build = functools.partial(GameEnv if isinstance(env, Game) else make_registered, env)
            single = build(None)
        return Opened.around(single, cls, build)

    @property
    def game(self) -> Game | None:
        """The game that the environments play, or None.

        Raises:
            ValueError: if a wrapper is around the environment of a game, because a search would bypass the wrapper.
        """
        base = getattr(self._env, "unwrapped", None)
        if isinstance(base, GameEnv) and base is not self._env:
            raise ValueError(f"env: a search does not see wrappers around a game; pass the game, not {self._env}")
        return self._game

    def _maker_entry(self) -> dict[str, Any]:
        return {} if self._game is None else description.describe_object("game", self._game)

    def make(self, index: int = 0) -> Env:
        """Return the environment of lane `index`: the user's own object, if there is one, for lane 0."""
        if index == 0 and self._env is not None and not self._owned:
            return self._env
        # The first lane uses the environment that was made to read the spaces.
        env = self._env if self._is_free else self._make_another()
        self._is_free = False
        self._made.append(env)
        return env

    def lend(self, lent: bool) -> None:
        """Set whether the next environment for an evaluation is the user's own object, which stays open."""
        self._is_lent = lent and self._env is not None and not self._owned and self.team is None

    def make_evaluation(self, *, render_mode: str | None = None) -> Env:
        """Return an environment like the lanes' environments, or the user's own object if lent.

        `lend` holds for one call only.
        """
        is_lent = self._is_lent
        self._is_lent = False
        # An object with another render mode cannot show the episode, so a copy is made.
        if is_lent and render_mode in (None, self._env.render_mode):
            kept = _KeptOpen(self._env)
            set_owner(kept, kept)  # another agent that uses the object then restarts its episode
            return kept
        return super().make_evaluation(render_mode=render_mode)

    def vectorized(self) -> EnvSource:
        """Return a source of the same environments whose lanes gymnasium's native vector environment steps.

        The source is made once, and `close` closes this source too.
        """
        if self._vectorized is None:
            spec = self.spec
            if spec is None and self._env is None:  # a source from a file has no environment
                with contextlib.closing(self.make_evaluation()) as env:
                    spec = env.spec
            if spec is None:
                raise ValueError(
                    "vectorize must be False unless env is an id of gymnasium with a vector environment, such as "
                    f"'CartPole-v1'; got {name_of(self._env)}"
                )
            maker = RegisteredVector(spec)
            # The maker does not call a factory, so what the factory changes is missing, too.
            with contextlib.closing(maker.make_single()) as env:
                self._compare(env)
            self._vectorized = MakerSource(self.observation_space, self.action_space, build=self._build, maker=maker)
        return self._vectorized

    def detached(self) -> EnvSource:
        """Return a source without an environment; another process that receives the source makes an environment."""
        build: Any = self._builder()
        of_gym = copier(self._env)
        spec = self.spec
        if self._build is None and (of_gym is not None or spec is not None):
            self.make_evaluation().close()  # warns if a copy lacks what the user has changed
            build = functools.partial(make_registered, importable(spec)) if spec is not None else of_gym
        elif getattr(build, "func", None) is make_registered:
            build = functools.partial(make_registered, importable(build.args[0]), **build.keywords)
        elif self._build is None:
            raise ValueError(
                f"workers: no copy of {name_of(self._env)} can be made (it has no spec); pass an id or a factory, such "
                "as lambda: MyEnv(), as env="
            )
        parts: dict[str, Any] = {"team": self.team, "described": self.describe(), "game": self._game}
        return ScalarSource(self.observation_space, self.action_space, build=build, **parts)

    def portable(self) -> EnvSource | None:
        """Return a source of copies of an environment of classic gym, which a file does not describe."""
        build = copier(self._env)
        if build is None or self._build is not None:
            return None
        return ScalarSource(self.observation_space, self.action_space, build=build)

    def _builder(self) -> Builder:
        return functools.partial(remake, self._env) if self._build is None else self._build

    def close(self) -> None:
        """Close the environments that were made here; the user's own object stays open."""
        self._is_free = False
        with contextlib.ExitStack() as closing:
            closing.callback(super().close)
            if self._vectorized is not None:
                closing.callback(self._vectorized.close)

"""The contract of environment sources, which make the environments of lanes and evaluations."""

from __future__ import annotations

import contextlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec

from noterl.envs import description
from noterl.envs.functional import Functions
from noterl.envs.games.game import Game
from noterl.envs.making import Builder, Env, NotRemade, as_env, find_statistics, name_of, plain_attributes
from noterl.envs.multi_agent.parallel import TeamEnv
from noterl.envs.multi_agent.team import Team
from noterl.envs.spaces import convert, same_layout, show
from noterl.envs.vectorized import VectorMaker
from noterl.envs.wrappers.classic import layers
from noterl.envs.wrappers.images import ClipRewards


class Opened(NamedTuple):
    """What a kind of source found in the argument `env=`.

    Attributes:
        spaces: the observation space and the action space of one environment, as the environment defines them; None in
            place of a missing space.
        make_source: makes the source from the two spaces and the keyword arguments of `EnvSource`.
        env: the environment; None if there are only spaces.
        build: makes another environment, in a render mode; None if `env` is the user's own object.
        owned: whether noterl made `env`.
    """

    spaces: tuple[Any, Any]
    make_source: Callable[..., EnvSource]
    env: Any = None
    build: Builder | None = None
    owned: bool = False

    @classmethod
    def around(cls, env: Any, make_source: Callable[..., EnvSource], build: Builder | None, prefix: str = "") -> Opened:
        """Return an environment with the spaces, whose names may have a prefix; with a `build`, noterl owns it."""
        spaces = getattr(env, f"{prefix}observation_space", None), getattr(env, f"{prefix}action_space", None)
        return cls(spaces, make_source, env, build, owned=build is not None)

    def source(self) -> EnvSource:
        """Return the source.

        Raises:
            ValueError: if a space is missing or of an unsupported kind.
        """
        return self.make_source(*self.spaces, env=self.env, build=self.build, owned=self.owned)


class EnvSource(ABC):
    """Holds the spaces of an environment and makes environments on demand; `resolve` returns a source.

    Each subclass is one kind of `env=`: `matches` recognizes the argument, and `open` opens the first environment.

    Args:
        observation_space: observation space of one environment, not encoded.
        action_space: action space of one environment, not encoded.
        env: the first environment, or the vector environment: the user's own, or one made to read the spaces.
        build: makes an environment like `env`, in a render mode.
        owned: whether noterl made `env`, so that `close` closes the object.
        team: the agents of an environment with several; None for one agent.
        described: the description in a file, from which the source was made; None if there is none.

    Raises:
        ValueError: if a space is of an unsupported kind.

    Attributes:
        observation_space: of one environment. With several agents, the space of the observation vector of `Team`.
        action_space: of one environment. With several agents, the space of the action vector of `Team`.
        team: the agents of an environment with several; None for one agent.
        num_envs: the number of environments in the user's vector environment; None for other environments.
        maker: makes a vector environment of any number of lanes; None for other environments.
        functions: the pure functions of the environment; None for other environments.
        steps_together: whether a vector environment steps the lanes together.
    """

    num_envs: int | None = None
    maker: VectorMaker | None = None
    functions: Functions | None = None
    steps_together = False

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        env: Any = None,
        build: Builder | None = None,
        owned: bool = False,
        team: Team | None = None,
        described: dict[str, Any] | None = None,
    ) -> None:
        self.team: Team | None = env.team if isinstance(env, TeamEnv) else team
        if self.team is not None:
            observation_space = self.team.joined_observation_space
            action_space = self.team.joined_action_space
        self.observation_space: Any = convert(observation_space, "observation_space")
        self.action_space: Any = convert(action_space, "action_space")
        self._env: Any = env
        self._build = build
        self._owned = owned
        self._described = described
        self._made: list[Env] = []  # environments that this source made, and closes
        # What the user has changed on an environment is missing in copies by its spec. A step changes attributes, too.
        self._attributes = plain_attributes(self._single())

    @classmethod
    @abstractmethod
    def matches(cls, env: Any) -> bool:
        """Return whether `env` is of this kind; nothing is made."""

    @classmethod
    @abstractmethod
    def open(cls, env: Any, build: Builder | None = None) -> Opened:
        """Open an argument that `matches` accepts.

        Args:
            env: the argument.
            build: makes another environment like `env`, if a factory of the user made `env`.

        Raises:
            ValueError: if no environment can be made.
            ImportError: if the environment needs a package that is not installed.
        """

    @property
    def spec(self) -> EnvSpec | None:
        """The `EnvSpec` of one environment, or None."""
        spec = getattr(self._env, "spec", None)
        return spec if isinstance(spec, EnvSpec) else None

    @property
    def clips_rewards(self) -> bool:
        """Whether agents learn from the signs of the rewards, by `ClipRewards` or `Atari`."""
        is_wrapped = any(isinstance(layer, ClipRewards) for layer in layers(self._single()))
        return is_wrapped or bool(getattr(self.maker, "clip_rewards", False))

    @property
    def game(self) -> Game | None:
        """The game that the environments play, or None.

        Raises:
            ValueError: if a wrapper is around the environment of a game, because a search would bypass the wrapper.
        """
        return None

    def find_statistics(self) -> list[str]:
        """Return a sentence for each wrapper of gymnasium whose running statistics a copy of the environment lacks."""
        return list(dict.fromkeys(find_statistics(self._env) + find_statistics(self._single())))

    def describe(self) -> dict[str, Any]:
        """Return the description that is stored in a saved file.

        The description always holds the spaces. "id", "kwargs" and "max_episode_steps" are added if these suffice to
        make the environment, and "agents", the names, for several agents.

        Example:
        >>> from noterl.envs import resolve
        >>> described = resolve("CartPole-v1").describe()
        >>> described["id"], described["kwargs"], described["max_episode_steps"], described["action_space"]
        ('CartPole-v1', {}, 500, Discrete(2))
        """
        # A source from a file keeps the file's description, because its id may not be registered here.
        if self._described is not None:
            return self._described
        if self.team is None:
            return {**description.describe(self.spec, self.observation_space, self.action_space), **self._maker_entry()}
        spaces = self.team.observation_space, self.team.action_space
        return {**description.describe(self.spec, *spaces), "agents": list(self.team.names)}

    def _maker_entry(self) -> dict[str, Any]:
        """Return the entry of the description about the registered object that makes the environments, if any."""
        return {}

    def __repr__(self) -> str:
        described = self.describe()
        return repr(described["id"]) if "id" in described else super().__repr__()

    def layer_with(self, name: str) -> Any:
        """Return the outermost wrapper (or the environment) that has an attribute of this name; None if none has it.

        The attribute belongs to the task, such as `compute_reward`; the returned object must not be stepped.

        Raises:
            ValueError: if there is no environment yet and none can be made.
        """
        env = self._single()
        env = self.make_evaluation() if env is None else env
        return next((layer for layer in layers(env) if hasattr(layer, name)), None)

    def _single(self) -> Any:
        """Return one environment that is open, or None."""
        return self._env

    def make(self, index: int = 0) -> Env:
        """Return a scalar environment for lane `index`, with gymnasium's interface.

        If the user passed an environment object, lane 0 is that object. `close` closes all others.

        Raises:
            ValueError: if no environment, or no further one, can be made, or if a vector environment steps the lanes
                together.
        """
        raise ValueError("env: a vector environment steps its lanes together and has no single lane")

    def open_vector(self, num_envs: int | None = None) -> Any:
        """Return the vector environment that steps the lanes together.

        Args:
            num_envs: the number of lanes; ignored for a vector environment of the user, which has a fixed number.

        Raises:
            ValueError: if no vector environment steps the lanes, or the spaces differ from the spaces of single
                environments.
        """
        raise ValueError(f"env: no vector environment steps the lanes of {self!r}")

    def vectorized(self) -> EnvSource:
        """Return a source of the same environments whose lanes are stepped by gymnasium's native vector environment.

        A vector environment of the user and a maker stay as they are.

        Raises:
            ValueError: if the environment has no gymnasium id, or no vector environment is registered for it.
        """
        return self

    @abstractmethod
    def detached(self) -> EnvSource:
        """Return a source without an environment; another process that receives the source makes an environment.

        Raises:
            ValueError: if there is no environment, if `env` is a vector environment, or if `gymnasium.make` cannot make
                the environment again.
        """

    def portable(self) -> EnvSource | None:
        """Return the source that another process needs beside the agent's file; None if the file is all it can have."""
        return None

    def make_evaluation(self, *, render_mode: str | None = None) -> Env:
        """Return an environment like the lanes' environments, but never one of these. The caller closes it.

        If the environment is a copy of the user's object, the first call warns of attributes that the copy lacks.

        Args:
            render_mode: the render mode, such as "rgb_array"; None for the default.

        Raises:
            ValueError: if no environment can be made, or none with this render mode.
        """
        env = self._make_another(render_mode)
        if render_mode is not None and env.render_mode != render_mode:
            env.close()
            raise ValueError(
                f"env: {name_of(env)} has render_mode={env.render_mode!r}, not {render_mode!r}; pass env= with a "
                "factory that accepts render_mode"
            )
        return env

    @abstractmethod
    def _builder(self) -> Builder:
        """Return the function that makes one more environment.

        Raises:
            NotRemade: if the user passed an environment object that cannot be made again.
        """

    def _make_another(self, render_mode: str | None = None) -> Env:
        """Return one more environment, whose spaces are checked; raise a ValueError if none can be made."""
        try:
            env = self._checked(self._builder()(render_mode))
            # A factory makes its changes again, and may make others each time.
            if self._build is None:
                self._compare(env)
            return env
        except NotRemade as error:
            raise ValueError(
                f"env: evaluate, play and callbacks use a copy of the environment, and no copy of {name_of(self._env)} "
                f"can be made ({error}); pass an id or a factory, such as lambda: MyEnv(), as env="
            ) from error

    def _compare(self, env: Env) -> None:
        """Warn once if a copy by the spec has other attributes than the user's object or the factory's environment."""
        attributes = self._attributes
        self._attributes = {}
        copied = plain_attributes(env)
        changed = [f"{name}={value!r}" for name, value in attributes.items() if copied.get(name, value) != value]
        if changed:
            warnings.warn(
                f"env: noterl made a copy of {name_of(self._env)} by its spec, which lacks what was changed on the "
                f"object: {', '.join(changed)}. Pass a function that makes the changed environment: "
                "env=lambda: make_my_environment(), without vectorize=True",
                stacklevel=2,
            )

    @property
    def own_object(self) -> Any:
        """The environment object that the user passed; None if there is none."""
        return None if self._owned else self._env

    def lend(self, lent: bool) -> None:  # noqa: B027 - other sources have no single environment to lend
        """Set whether the next environment for an evaluation is the user's own object, which stays open."""

    def _checked(self, product: Any) -> Env:
        """Return the product with gymnasium's interface; raise if it is not a new environment or has other spaces."""
        env = as_env(product)
        if not isinstance(env, gymnasium.Env):
            raise ValueError(f"env: the factory must return environments, but this time it returned {show(product)}")
        # Each layer, because a factory may wrap the same environment in a new wrapper.
        used = {id(layer) for other in (self._env, *self._made) for layer in layers(other)}
        if any(id(layer) in used for layer in layers(env)):
            raise ValueError(
                f"env: the factory returned the same {name_of(env)} again; it must make a new one each time"
            )
        spaces = convert(env.observation_space, "observation_space"), convert(env.action_space, "action_space")
        other_agents = getattr(env, "team", None) != self.team
        if other_agents or not same_layout(spaces[0], self.observation_space) or spaces[1] != self.action_space:
            env.close()
            ours = self.observation_space, self.action_space
            raise NotRemade(f"it has other spaces: {show(spaces)}, not {show(ours)}")
        return env

    def close(self) -> None:
        """Close all environments that were made here, even if one raises; the user's own object stays open."""
        with contextlib.ExitStack() as closing:
            # By identity: lane 0 may be the same object as `_env`, and is closed once.
            for env in {id(env): env for env in (*self._made, *[self._env] * self._owned)}.values():
                closing.callback(env.close)
            self._made.clear()

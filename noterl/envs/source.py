"""`EnvSource`: makes the environments of lanes and evaluations from the argument `env=` of an agent."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv, VectorEnv

from noterl.envs import description
from noterl.envs.atari import Atari
from noterl.envs.envpool import EnvPool
from noterl.envs.functional import FunctionalEnv, FunctionalVectorEnv, Functions
from noterl.envs.games.game import Game, GameEnv
from noterl.envs.making import (
    MAY_BE,
    Builder,
    Env,
    NotRemade,
    as_env,
    importable,
    make_registered,
    name_of,
    open_env,
    remake,
    single_spec,
    vector_builder,
)
from noterl.envs.multi_agent.parallel import TeamEnv
from noterl.envs.multi_agent.team import Team
from noterl.envs.spaces import convert, is_space, kind, same_layout, show
from noterl.envs.vectorized import RegisteredVector, VectorMaker
from noterl.envs.wrappers.classic import layers

# The makers by the prefix of a name.
MAKERS: dict[str, Callable[..., VectorMaker]] = {"atari": Atari, "envpool": EnvPool}


class EnvSource:
    """Holds the spaces of an environment and makes environments when they are needed; `resolve` returns one.

    Attributes:
        observation_space: of one environment. With several agents, the space of the observation vector of `Team`.
        action_space: of one environment. With several agents, the space of the action vector of `Team`.
        vector: the vector environment that steps its lanes together, or None. It is also None for a `SyncVectorEnv`,
            whose environments run as scalar lanes: `make(lane)` returns them.
        num_envs: the number of environments in the vector environment (also in a `SyncVectorEnv`), or None.
        spec: gymnasium's description of one environment, or None.
        team: the agents of an environment with several; None for one agent.
        game: the game that the environments play; None for other environments.
        maker: makes a vector environment of any number of lanes; None for other environments.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        env: Env | VectorEnv[Any, Any, Any] | None = None,
        build: Builder | None = None,
        owned: bool = False,
        absent: str = "there is no environment, only its spaces",
        team: Team | None = None,
        maker: VectorMaker | None = None,
    ) -> None:
        """Check the spaces; users call `resolve` instead.

        Args:
            observation_space: observation space of one environment, not encoded.
            action_space: action space of one environment, not encoded.
            env: the first environment, or the vector environment: the user's own, or one made to read its spaces.
            build: makes an environment like `env`, in a render mode.
            owned: whether `env` was made by noterl, so that `close` closes it.
            absent: the reason why there is no environment, for error messages.
            team: the agents if there are several. If None, two Tuple spaces without an `env` also mean several agents.
            maker: makes the vector environment of the lanes; `build` makes environments for evaluation.
        """
        if isinstance(env, TeamEnv):
            team = env.team
        elif env is None and team is None and kind(observation_space) == kind(action_space) == "Tuple":
            team = Team([str(k) for k in range(len(observation_space))], list(observation_space), list(action_space))
        self.team = team
        if team is not None:
            observation_space, action_space = team.joined_observation_space, team.joined_action_space
        self.observation_space = convert(observation_space, "observation_space")
        self.action_space = convert(action_space, "action_space")
        self._env: Any = env
        self._build, self._owned, self._absent = build, owned, absent
        self.num_envs: int | None = env.num_envs if isinstance(env, VectorEnv) else None
        # `_env`: whether it is open, and whether it was made here and is not a lane yet
        self._is_open, self._is_free = True, owned
        self._description: dict[str, Any] | None = None
        self._game: Game | None = env.game if isinstance(env, GameEnv) else None
        self._lanes: list[Env] = []  # those made here
        self.maker = maker
        self._made_vector: VectorEnv[Any, Any, Any] | None = None  # by `maker`
        self._vectorized: EnvSource | None = None

    @classmethod
    def from_description(cls, described: Any) -> EnvSource:
        """Return a source from a result of `describe`, perhaps of another process.

        The environment is made when it is first needed. If its id is not registered here, the source has only the
        spaces, which suffice to build an agent and restore it.

        Raises:
            ValueError: if it is not a description, if its id would import a module, or if the environment does not
                accept its arguments.
        """
        read = description.read(described)
        build: Builder | None = None
        if read.game is not None:
            build = functools.partial(GameEnv, read.game)
        elif read.maker is not None:
            build = read.maker.make_single
        elif read.env_id is not None:
            build = functools.partial(make_registered, read.env_id, **read.keywords)
        pair: tuple[Any, Any] = read.observation_space, read.action_space
        team = None if read.agents is None else Team(read.agents, *map(list, pair))
        source = cls(*pair, build=build, absent=read.absent, team=team, maker=read.maker)
        source._description, source._game = described, read.game
        return source

    def describe(self) -> dict[str, Any]:
        """Return the description that is stored in a saved file.

        It always holds the spaces. It holds "id", "kwargs" and "max_episode_steps" if these suffice to make the
        environment, and "agents", their names, if there are several.

        Example:
        >>> described = resolve("CartPole-v1").describe()
        >>> described["id"], described["kwargs"], described["max_episode_steps"], described["action_space"]
        ('CartPole-v1', {}, 500, Discrete(2))
        """
        if self._description:
            return self._description
        if self.team is None:
            described = description.describe(self.spec, self.observation_space, self.action_space)
            if self.maker is not None:
                return {**described, **description.describe_object("maker", self.maker)}
            return described if self._game is None else {**described, **description.describe_object("game", self._game)}
        spaces = self.team.observation_space, self.team.action_space
        return {**description.describe(self.spec, *spaces), "agents": list(self.team.names)}

    def __repr__(self) -> str:
        if self.maker is not None:
            return repr(self.maker)
        described = self.describe()
        return repr(described["id"]) if "id" in described else super().__repr__()

    @property
    def spec(self) -> EnvSpec | None:
        """The `EnvSpec` of one environment, or None."""
        if self.num_envs is not None:
            return single_spec(self._env)
        spec = getattr(self._env, "spec", None)
        return spec if isinstance(spec, EnvSpec) else None

    @property
    def game(self) -> Game | None:
        """The game that the environments play, or None.

        Raises:
            ValueError: if a wrapper is around the environment of a game, because a search would bypass it.
        """
        base = getattr(self._env, "unwrapped", None)
        if isinstance(base, GameEnv) and base is not self._env:
            raise ValueError(
                f"env: a search does not see wrappers around a game; pass the game itself, not {self._env}"
            )
        return self._game

    @property
    def functions(self) -> Functions | None:
        """The pure functions of the environment; None for other environments, and if a wrapper is around them."""
        return self._env.functions if isinstance(self._env, FunctionalEnv) else None

    @property
    def vector(self) -> VectorEnv[Any, Any, Any] | None:
        """The vector environment that steps its lanes together, or None."""
        return None if self.num_envs is None or type(self._env) is SyncVectorEnv else self._env

    @property
    def steps_together(self) -> bool:
        """Whether a vector environment steps the lanes together."""
        return self.maker is not None or self.vector is not None or self.functions is not None

    def vectorized(self) -> EnvSource:
        """Return a source of the same environments whose lanes are stepped by gymnasium's native vector environment.

        Raises:
            ValueError: if the environment has no gymnasium id, or no vector environment is registered for it.
        """
        if self.maker is not None or self.num_envs is not None:
            return self
        if self._vectorized is None:
            spec = self.spec
            if spec is None and self._env is None and self._build is not None:  # a source from a file
                with contextlib.closing(self.make_evaluation()) as env:
                    spec = env.spec
            if spec is None:
                raise ValueError(
                    "vectorize must be False unless env is an id of gymnasium with a vector environment, such as "
                    f"'CartPole-v1'; got {name_of(self._env)}"
                )
            maker = RegisteredVector(spec)
            self._vectorized = EnvSource(
                self.observation_space, self.action_space, build=self._build or maker.make_single, maker=maker
            )
        return self._vectorized

    def layer_with(self, name: str) -> Any:
        """Return the outermost wrapper (or the environment) that has an attribute of this name; None if none has it.

        The attribute belongs to the task, such as `compute_reward`; the returned object must not be stepped.

        Raises:
            ValueError: if there is no environment yet and none can be made.
        """
        env = self._env
        if self.num_envs is not None:
            env = next(iter(getattr(env.unwrapped, "envs", ())), None)
        env = self.make_evaluation() if env is None else env
        return next((layer for layer in layers(env) if hasattr(layer, name)), None)

    def make(self, index: int = 0) -> Env:
        """Return a scalar environment for lane `index`, with gymnasium's interface.

        If the user passed an environment object, lane 0 is that object. `close` closes all others.

        Raises:
            ValueError: if no environment, or no further one, can be made, or if a vector environment steps its lanes
                together.
        """
        if type(self._env) is SyncVectorEnv:
            return self.open_vector().envs[index]
        if self.num_envs is not None:
            raise ValueError("env: a vector environment steps its lanes together and has no single lane")
        if index == 0 and self._env is not None and not self._owned:
            return self._env
        env = self._env if self._is_free else self._make_another()
        self._is_free = False
        self._lanes.append(env)
        return env

    def open_vector(self, num_envs: int | None = None) -> Any:
        """Return the vector environment; if it was made here and has been closed, make it again.

        Args:
            num_envs: the number of lanes, for pure functions or a `maker`.

        Raises:
            ValueError: if the vector environment has other spaces than single ones.
        """
        if self.functions is not None:
            return FunctionalVectorEnv(self.functions, num_envs or 1)
        if self.maker is not None:
            self._close_vector()
            self._made_vector = self._checked_vector(self.maker.make_vector(1 if num_envs is None else num_envs))
            return self._made_vector
        if not self._is_open and self._build is not None:
            self._env, self._is_open = self._build(None), True
        return self._env

    def _checked_vector(self, vector: VectorEnv[Any, Any, Any]) -> VectorEnv[Any, Any, Any]:
        spaces = convert(vector.single_observation_space, "observation_space"), vector.single_action_space
        if not same_layout(spaces[0], self.observation_space) or spaces[1] != self.action_space:
            vector.close()
            ours = self.observation_space, self.action_space
            raise ValueError(
                f"env: the vector environment has other spaces than a single one: {show(spaces)}, not {show(ours)}; "
                "Atari games need noterl.envs.Atari"
            )
        return vector

    def _close_vector(self) -> None:
        if self._made_vector is not None:
            self._made_vector.close()
            self._made_vector = None

    def make_evaluation(self, *, render_mode: str | None = None) -> Env:
        """Return an environment like those of the lanes, but never one of them. The caller closes it.

        Args:
            render_mode: its render mode, such as "rgb_array"; None for its default.

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

    def _make_another(self, render_mode: str | None = None) -> Env:
        try:
            return self._checked(self._builder()(render_mode))
        except NotRemade as error:
            raise ValueError(
                f"env: evaluate, play and callbacks use a copy of the environment, and no copy of {name_of(self._env)} "
                f"can be made ({error}); pass an id or a factory, such as lambda: MyEnv(), as env="
            ) from error

    def _builder(self) -> Builder:
        if self.num_envs is not None:
            return vector_builder(self._env)
        if self._build is not None:
            return self._build
        if self._env is None:
            raise ValueError(f"env: {self._absent}; pass env=")
        return functools.partial(remake, self._env)

    def detached(self) -> EnvSource:
        """Return a source that holds no environment, so that it can be sent to another process, which makes its own.

        Raises:
            ValueError: if there is no environment, if `env` is a vector environment, or if it is an environment that
                `gymnasium.make` cannot make again.
        """
        if self.maker is not None:
            raise ValueError(f"workers must be 0 for {self.maker}, whose lanes are stepped by its own threads")
        if self.num_envs is not None:
            raise ValueError(
                f"workers: env must make single environments, but {name_of(self._env)} is a vector environment; pass "
                "an id or a factory, such as lambda: MyEnv(), as env="
            )
        build: Any = self._builder()
        if self._build is None and self.spec is not None:
            build = functools.partial(make_registered, importable(self.spec))
        elif getattr(build, "func", None) is make_registered:
            build = functools.partial(make_registered, importable(build.args[0]), **build.keywords)
        elif self._build is None:
            raise ValueError(
                f"workers: no copy of {name_of(self._env)} can be made (it has no spec); pass an id or a factory, such "
                "as lambda: MyEnv(), as env="
            )
        return EnvSource(self.observation_space, self.action_space, build=build, team=self.team)

    def _checked(self, product: Any) -> Env:
        """Return the product with gymnasium's interface; raise if it is not a new environment or has other spaces."""
        env = as_env(product)
        if not isinstance(env, gymnasium.Env):
            raise ValueError(f"env: the factory must return environments, but this time it returned {show(product)}")
        used = {id(layer) for other in (self._env, *self._lanes) for layer in layers(other)}
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
        """Close the lanes that were made here, all of them if one raises; the user's own object stays open."""
        with contextlib.ExitStack() as closing:
            for env in {id(env): env for env in (*self._lanes, *[self._env] * self._owned)}.values():
                closing.callback(env.close)
            closing.callback(self._close_vector)
            if self._vectorized is not None:
                closing.callback(self._vectorized.close)
            self._lanes.clear()
            self._is_open = self._is_free = False


def resolve(env: Any) -> EnvSource:
    """Return the source of environments for anything that `env=` accepts.

    Args:
        env: one of these:

            - a gymnasium id or `EnvSpec`;
            - a `noterl.envs.games.Game`;
            - a functional environment: one of `noterl.envs.functional`, a `FuncEnv` of gymnasium, an environment of
              gymnax, Brax, MuJoCo Playground or Jumanji, or an id such as "gymnax:CartPole-v1";
            - an environment of gymnasium or of classic gym (0.21 and 0.26);
            - an environment with several agents, with PettingZoo's parallel API or with lists of observations, actions
              and rewards;
            - a `gymnasium.vector.VectorEnv`;
            - a `VectorMaker`, such as `noterl.envs.Atari`; "atari:Pong" and "envpool:Pong-v5" are makers, too;
            - a callable without arguments that returns one of these;
            - a pair of spaces, for an agent that acts without an environment;
            - an `EnvSource`, which is returned unchanged.

    Returns:
        The source of environments for lanes and for evaluation.

    Raises:
        ValueError: if it is none of these, if the id is unknown, or if a space is of an unsupported kind.
        ImportError: if the environment needs a package that is not installed.

    Example:
    >>> source = resolve("CartPole-v1")
    >>> source.action_space
    Discrete(2)
    >>> source.make(0).spec.id
    'CartPole-v1'
    >>> resolve("CartPoll-v1")
    Traceback (most recent call last):
        ...
    ValueError: env: Environment `CartPoll` doesn't exist. Did you mean: `CartPole`?
    """
    if isinstance(env, EnvSource):
        return env
    if isinstance(env, tuple | list):
        if len(env) == 2 and all(is_space(space) for space in env):
            return EnvSource(*env)
        raise ValueError(f"env must be {MAY_BE}, got {show(env)}")
    maker = maker_of(env)
    opened, build, owned = open_env(env) if maker is None else (maker.make_single(), maker.make_single, True)
    try:
        return source_of(opened, build=build, owned=owned, maker=maker)
    except ValueError:
        if owned:
            opened.close()
        raise


def resolve_like(env: Any, own: EnvSource) -> EnvSource:
    """Return a source of environments with the spaces of the agent's own.

    Raises:
        ValueError: if `env` is not an environment, or its spaces differ.
    """
    source = resolve(env)
    for name in ("team", "observation_space", "action_space"):
        theirs, ours = getattr(source, name), getattr(own, name)
        if theirs != ours:
            source.close()
            raise ValueError(f"env has the {name} {theirs}, but the agent was built for {ours}")
    return source


def maker_of(env: Any) -> VectorMaker | None:
    """Return the maker that `env` is or names, such as "atari:Pong" or "envpool:Pong-v5"; None for anything else.

    Raises:
        ValueError: if the maker has no such environment.
        ImportError: if an extra is not installed.
    """
    if isinstance(env, VectorMaker):
        return env
    prefix, _, name = env.partition(":") if isinstance(env, str) else ("", "", "")
    return MAKERS[prefix](name) if prefix in MAKERS and name else None


def source_of(
    env: Env | VectorEnv[Any, Any, Any],
    *,
    build: Builder | None,
    owned: bool,
    maker: VectorMaker | None = None,
) -> EnvSource:
    """Return the source around an environment that `open_env` returned."""
    prefix = "single_" if isinstance(env, VectorEnv) else ""
    # An environment that does not define its spaces lacks these attributes; `EnvSource` then raises.
    spaces = (getattr(env, f"{prefix}{name}_space", None) for name in ("observation", "action"))
    return EnvSource(*spaces, env=env, build=build, owned=owned, maker=maker)

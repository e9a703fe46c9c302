"""Where environments come from: one object for everything that `env=` may be.

Owns: which environment is handed out, as a lane or for evaluation, and who closes it.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv, VectorEnv

from noterl.envs import description
from noterl.envs.making import (
    MAY_BE,
    Builder,
    Env,
    NotRemade,
    as_env,
    make_registered,
    name_of,
    open_env,
    remake,
    single_spec,
    vector_builder,
)
from noterl.envs.multi_agent.parallel import TeamEnv
from noterl.envs.multi_agent.team import Team, numbered
from noterl.envs.spaces import convert, is_space, kind, same_layout, show
from noterl.envs.wrappers.classic import layers


class EnvSource:
    """What `resolve` returns: the spaces, and environments as they are needed.

    Attributes:
        observation_space: of one environment, gymnasium's class.
        action_space: likewise.
        vector: the vector environment that steps its lanes together, or None. A `SyncVectorEnv` runs as lanes instead:
            `make(lane)` returns its environments.
        num_envs: the number of environments in the vector environment (also in a `SyncVectorEnv`), or None.
        spec: gymnasium's description of one environment, or None.
        team: the agents of an environment of several, None for one of one; the two spaces are then those of the vectors
            that hold all of them, as `Team` lays them out.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        env: Env | None = None,
        vector: VectorEnv[Any, Any, Any] | None = None,
        build: Builder | None = None,
        owned: bool = False,
        absent: str = "there is no environment, only its spaces",
        team: Team | None = None,
    ) -> None:
        """Use `resolve`; this checks the spaces and keeps what it found.

        Args:
            observation_space: of one environment, as the environment has it.
            action_space: likewise.
            env: the first environment: the user's own, or one that was made to learn the spaces.
            vector: the vector environment instead.
            build: makes an environment like `env`, in a render mode.
            owned: whether `env` or `vector` was made here, so that `close` closes it.
            absent: why there is no environment, where there is none.
            team: the agents, where there are several; two Tuple spaces are those of several agents, too.
        """
        if team is None and vector is None and isinstance(env, TeamEnv | None):
            team = _team_of(env, observation_space, action_space)
        self.team = team
        if team is not None:
            observation_space, action_space = team.joined_observation_space, team.joined_action_space
        self.observation_space = convert(observation_space, "observation_space")
        self.action_space = convert(action_space, "action_space")
        self._env, self._build, self._owned, self._absent = env, build, owned, absent
        self._vector, self._vector_closed = vector, False
        self.num_envs: int | None = None if vector is None else vector.num_envs
        self._first = owned
        self._said: dict[str, Any] | None = None
        self._made: list[weakref.ref[Env]] = []
        self._lanes: dict[int, Env] = {}

    @classmethod
    def from_description(cls, said: Any) -> EnvSource:
        """Return a source of the environment that `describe` described, perhaps in another process.

        The environment is made when it is first needed. Where its id is not registered here, the source has the spaces
        alone: enough to build an agent and restore it.

        Raises:
            ValueError: if it is no description, or its id would import a module.
        """
        read = description.read(said)
        build = None if read.env_id is None else functools.partial(make_registered, read.env_id, **read.keywords)
        team = None
        if read.agents is not None:
            both: Any = (read.observation_space, read.action_space)  # Tuples, as `read` has seen to
            team = Team(read.agents, *map(list, both))
        source = cls(read.observation_space, read.action_space, build=build, absent=read.absent, team=team)
        source._said = said
        return source

    def describe(self) -> dict[str, Any]:
        """Return what a saved file shall know of the environment, in a form that a file can hold.

        The spaces always; "id", "kwargs" and "max_episode_steps" where they are enough to make it again.

        Example:
        >>> said = resolve("CartPole-v1").describe()
        >>> said["id"], said["kwargs"], said["max_episode_steps"], said["action_space"]
        ('CartPole-v1', {}, 500, Discrete(2))
        """
        if self._said:
            return self._said
        if self.team is None:
            return description.describe(self.spec, self.observation_space, self.action_space)
        spaces = self.team.observation_space, self.team.action_space
        return {**description.describe(self.spec, *spaces), "agents": list(self.team.names)}

    @property
    def spec(self) -> EnvSpec | None:
        """Return gymnasium's description of one environment."""
        if self._vector is not None:
            return single_spec(self._vector)
        spec = None if self._env is None else self._env.spec
        return spec if isinstance(spec, EnvSpec) else None

    @property
    def vector(self) -> VectorEnv[Any, Any, Any] | None:
        """Return the vector environment that steps its lanes together, or None."""
        return None if type(self._vector) is SyncVectorEnv else self._vector

    def layer_with(self, name: str) -> Any:
        """Return what has an attribute of this name, or None: the environment, or the outermost wrapper around it.

        It is there to be asked about the task, such as what would be rewarded, and never to be stepped.
        """
        asked: list[Any] = [self._env]
        if self._vector is not None:
            *_, base = layers(self._vector)
            asked = [self._vector, *list(getattr(base, "envs", ()))[:1]]
            if len(asked) == 1 and not hasattr(base, name):
                asked.append(self.make_evaluation())
        elif self._env is None:
            asked = [self.make_evaluation()]
        return next((layer for env in asked for layer in layers(env) if hasattr(layer, name)), None)

    def make(self, index: int = 0) -> Env:
        """Return a scalar environment for lane `index`, with gymnasium's interface.

        For an environment object lane 0 is the object itself; what is made is closed by `close`, or by the caller.

        Raises:
            ValueError: if no (further) environment can be made.
        """
        if type(self._vector) is SyncVectorEnv:
            return self._opened().envs[index]
        if self._vector is not None:
            raise ValueError("env: a vector environment steps its lanes together; it has no single one to make")
        if self._env is None and self._build is None:
            raise ValueError(f"env: {self._absent}; pass env=")
        if self._env is None or not (self._first or (index == 0 and not self._owned)):
            return self._keep(self._make_another(), index)
        self._first = False
        return self._keep(self._env, index)

    def open_vector(self) -> VectorEnv[Any, Any, Any]:
        """Return the vector environment; one that was made here, and closed since, is made again.

        Raises:
            ValueError: if there is none.
        """
        if self.vector is None:
            raise ValueError(f"env: {name_of(self._env)} is not a vector environment that steps its lanes together")
        return self._opened()

    def _opened(self) -> Any:
        if self._vector_closed and self._build is not None:
            self._vector = self._build(None)
            self._vector_closed = False
        return self._vector

    def _make_another(self) -> Env:
        try:
            return self._checked(self._builder()(None))
        except NotRemade as error:
            raise ValueError(
                f"env: no second {name_of(self._env)} can be made ({error}); for num_envs > 1, pass an id or a factory "
                "such as lambda: MyEnv()"
            ) from error

    def make_evaluation(self, *, render_mode: str | None = None) -> Env:
        """Return an environment like those that train, never one of them. The caller closes it.

        Args:
            render_mode: how it shall draw itself, such as "rgb_array"; None leaves it as it is.

        Raises:
            ValueError: if none can be made, or none that draws itself so.
        """
        if self._env is None and self._vector is None and self._build is None:
            raise ValueError(f"env: {self._absent}; pass env=")
        try:
            env = self._checked(self._builder()(render_mode))
        except NotRemade as error:
            name = name_of(self._vector if self._env is None else self._env)
            raise ValueError(
                f"env: no second {name} can be made to evaluate on ({error}); pass an id or a factory, such as lambda: "
                "MyEnv(), as env="
            ) from error
        if render_mode is not None and env.render_mode != render_mode:
            env.close()
            raise ValueError(
                f"env: {name_of(env)} draws itself as {env.render_mode!r}, not as {render_mode!r}; pass env= with an "
                f"environment made with render_mode={render_mode!r}"
            )
        return self._keep(env, None)

    def _builder(self) -> Builder:
        if self._vector is not None:
            return vector_builder(self._vector)
        if self._build is not None:
            return self._build
        assert self._env is not None
        return functools.partial(remake, self._env)

    def _checked(self, product: Any) -> Env:
        """Return the product as an environment of this source, or say why it is none."""
        env = as_env(product)
        if not isinstance(env, gymnasium.Env):
            raise ValueError(f"env: the factory must return environments, this time it returned {show(product)}")
        used = {id(layer) for other in self._living() for layer in layers(other)}
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

    def _living(self) -> list[Env]:
        self._made = [reference for reference in self._made if reference() is not None]
        made = [env for env in (reference() for reference in self._made) if env is not None]
        return made if self._env is None else [self._env, *made]

    def _keep(self, env: Env, index: int | None) -> Env:
        """Remember what was made here, to close it; lanes are held, evaluation environments are the caller's."""
        if any(layer is self._env for layer in layers(env)):
            return env
        self._made.append(weakref.ref(env))
        if index is not None:
            self._lanes[index] = env
        return env

    def close(self) -> None:
        """Close every environment that was made here; the user's own object stays open."""
        for env in self._living():
            if env is not self._env or self._owned:
                env.close()
        if self._vector is not None and self._owned:
            self._vector.close()
            self._vector_closed = True
        self._made.clear()
        self._lanes.clear()
        self._first = False


def resolve(env: Any) -> EnvSource:
    """Find out what `env` is, and learn its spaces, before anything else is built.

    Args:
        env: a gymnasium id or `EnvSpec`; an environment of gymnasium or of classic gym (0.21 and 0.26); one of several
            agents: PettingZoo's parallel API, or lists of observations, actions and rewards; a callable
            without arguments that returns one of these; a `gymnasium.vector.VectorEnv`; or a pair of spaces, for an
            agent that acts without an environment. An `EnvSource` comes back as it is.

    Returns:
        The source of environments for lanes and for evaluation.

    Raises:
        ValueError: if it is none of these, the id is unknown, or a space is of a kind that is not supported.
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
    opened, build, owned = open_env(env)
    try:
        return source_of(opened, build=build, owned=owned)
    except ValueError:
        if owned:
            opened.close()
        raise


def source_of(env: Env | VectorEnv[Any, Any, Any], *, build: Builder | None, owned: bool) -> EnvSource:
    """Return the source around an environment that `open_env` returned."""
    if isinstance(env, VectorEnv):
        spaces = env.single_observation_space, env.single_action_space
        return EnvSource(*spaces, vector=env, build=build, owned=owned)
    # An environment that was written without its spaces has no such attributes at all.
    found = getattr(env, "observation_space", None), getattr(env, "action_space", None)
    return EnvSource(*found, env=env, build=build, owned=owned)


def _team_of(env: TeamEnv | None, observation_space: Any, action_space: Any) -> Team | None:
    if env is not None:
        return env.team
    tuples = kind(observation_space) == kind(action_space) == "Tuple"
    return numbered(observation_space, action_space) if tuples else None

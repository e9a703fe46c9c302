"""`resolve`: finds the source of environments for the argument `env=` of an agent."""

from __future__ import annotations

import functools
from typing import Any

from noterl.envs import description
from noterl.envs.games.game import GameEnv
from noterl.envs.making import MAY_BE, Builder, as_env, call_factory, make_registered
from noterl.envs.multi_agent.team import Team
from noterl.envs.sources.base import EnvSource, Opened
from noterl.envs.sources.functional import FunctionalSource
from noterl.envs.sources.maker import MakerSource
from noterl.envs.sources.scalar import ScalarSource
from noterl.envs.sources.spaces import SpacesSource
from noterl.envs.sources.vector import VectorSource
from noterl.envs.spaces import is_space, show

# The first kind that matches opens the argument, so the general kind comes last.
ADAPTERS: tuple[type[EnvSource], ...] = (SpacesSource, MakerSource, FunctionalSource, VectorSource, ScalarSource)


def resolve(env: Any) -> EnvSource:
    """Return the source of environments for anything that `env=` accepts.

    Args:
        env: one of these:

            - a gymnasium id or `EnvSpec`;
            - a `noterl.envs.games.Game`;
            - a functional environment, as `noterl.envs.functional` returns;
            - an environment of gymnasium or of classic gym (0.21 and 0.26);
            - an environment with several agents, with PettingZoo's parallel API or with lists of observations, actions
              and rewards;
            - a `gymnasium.vector.VectorEnv`;
            - a `VectorMaker`, such as `noterl.envs.Atari`; "atari:Pong" is a maker, too;
            - a callable without arguments that returns one of these;
            - a pair of spaces, for an agent that acts without an environment;
            - an `EnvSource`, which is returned unchanged.

    Returns:
        The source of environments for lanes and for evaluation.

    Raises:
        ValueError: if `env` is none of these, if the id is unknown, or if a space is of an unsupported kind.
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
    opened = open_env(env)
    try:
        return opened.source()
    # What noterl made here has no other owner yet.
    except ValueError:
        if opened.owned:
            opened.env.close()
        raise


def open_env(env: Any) -> Opened:
    """Open the first environment of anything that `env=` accepts, except an `EnvSource`.

    Raises:
        ValueError: if `env` neither is nor makes an environment.
        ImportError: if the environment needs a package that is not installed.
    """
    adapter = _adapter_of(env)
    if adapter is not None:
        return adapter.open(env)
    if is_space(env) or not callable(env):
        raise ValueError(f"env must be {MAY_BE}, got {show(repr(env))}")
    build: Builder = functools.partial(call_factory, env)
    product = build(None)
    environment = as_env(product)
    adapter = None if environment is None else _adapter_of(environment)
    if adapter is None:
        raise ValueError(f"env: the factory {show(env)} must return an environment, got {show(repr(product))}")
    return adapter.open(environment, build)


def _adapter_of(env: Any) -> type[EnvSource] | None:
    return next((adapter for adapter in ADAPTERS if adapter.matches(env)), None)


def resolve_like(env: Any, own: EnvSource) -> EnvSource:
    """Return a source of environments with the same spaces as the agent's source.

    Raises:
        ValueError: if `env` is not an environment, or the spaces differ.
    """
    source = resolve(env)
    for name in ("team", "observation_space", "action_space"):
        theirs = getattr(source, name)
        ours = getattr(own, name)
        if theirs != ours:
            source.close()
            raise ValueError(f"env has the {name} {theirs}, but the agent was built for {ours}")
    return source


def from_description(described: Any) -> EnvSource:
    """Return a source from a result of `EnvSource.describe`, perhaps of another process.

    The environment is made at the first use. If the id is not registered here, the source has only the spaces, which
    suffice to build and restore an agent.

    Raises:
        ValueError: if `described` is not a description, if the id would import a module, or if the environment does not
            accept the arguments.
    """
    contents = description.read(described)
    spaces: tuple[Any, Any] = contents.observation_space, contents.action_space
    if contents.maker is not None:
        return MakerSource(*spaces, maker=contents.maker, described=described)
    team = None if contents.agents is None else Team(contents.agents, *map(list, spaces))
    if contents.game is not None:
        build: Builder = functools.partial(GameEnv, contents.game)
        return ScalarSource(*spaces, build=build, game=contents.game, described=described)
    if contents.env_id is None:
        return SpacesSource(*spaces, absent=contents.absent, team=team, described=described)
    build = functools.partial(make_registered, contents.env_id, **contents.keywords)
    return ScalarSource(*spaces, build=build, team=team, described=described)

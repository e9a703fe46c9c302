"""How environments are made: from an id, from a factory, from what another environment says of itself.

Owns: every call of `gymnasium.make` and of a user's factory.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from noterl.envs.multi_agent.parallel import as_team
from noterl.envs.spaces import is_space, show
from noterl.envs.wrappers.classic import ClassicEnv, is_classic, layers

Env = gymnasium.Env[Any, Any]
Builder = Callable[[str | None], Any]

MAY_BE = (
    "a gymnasium id, an environment, a factory without arguments, a vector environment, or a pair "
    "(observation_space, action_space)"
)

# Wrappers that gymnasium.make may add or leave out; they change neither observations nor rewards.
_NEUTRAL = {"PassiveEnvChecker", "OrderEnforcing", "RecordEpisodeStatistics"}

# What gymnasium.make_vec notes among an environment's arguments.
_VECTOR_KWARGS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")

# gymnasium imports the module of an id "module:id"; what else has a colon makes it stumble.
_ID_WITH_MODULE = re.compile(r"\w+(\.\w+)*:[^:]+")


class NotRemade(Exception):
    """An environment cannot be made again from what it says of itself."""


def open_env(env: Any) -> tuple[Env | VectorEnv[Any, Any, Any], Builder | None, bool]:
    """Return the environment that `env` is or makes, how to make another, and whether it was made here.

    Raises:
        ValueError: if `env` is no environment and makes none.
        ImportError: if it needs a package that is not installed.
    """
    if isinstance(env, str | EnvSpec):
        build: Builder = functools.partial(make_registered, env)
        return build(None), build, True
    opened = as_env(env)
    if opened is not None:
        return opened, None, False
    if is_space(env) or not callable(env):
        raise ValueError(f"env must be {MAY_BE}, got {show(repr(env))}")
    build = functools.partial(_call_factory, env)
    product = build(None)
    opened = as_env(product)
    if opened is None:
        raise ValueError(f"env: the factory {show(env)} must return an environment, got {show(repr(product))}")
    return opened, build, True


def as_env(value: Any) -> Env | VectorEnv[Any, Any, Any] | None:
    """Return `value` with gymnasium's interface, or None if it is no environment.

    Raises:
        ValueError: if it is a vector environment of another library, or a space of it is of an unsupported kind.
    """
    if isinstance(value, VectorEnv):
        return value
    team = as_team(value)
    if team is not None or isinstance(value, gymnasium.Env):
        return team or value
    if not is_classic(value):
        return None
    if hasattr(value, "num_envs"):
        raise ValueError(
            f"env: {type(value).__name__} steps several environments but is no gymnasium.vector.VectorEnv; pass a "
            "factory of one of them and num_envs="
        )
    return ClassicEnv(value)


def make_registered(env_id: str | EnvSpec, render_mode: str | None, **keywords: Any) -> Env:
    """Make an environment by its id or spec, without gymnasium's checker, which costs time at every step.

    Raises:
        ValueError: if the id is not known; the message carries gymnasium's suggestion.
        ImportError: if the environment needs a package that is not installed.
    """
    if isinstance(env_id, str) and ":" in env_id and not _ID_WITH_MODULE.fullmatch(env_id):
        raise ValueError(f"env: an id is [module:][namespace/]name[-v0], got {env_id!r}")
    if render_mode is not None:
        keywords["render_mode"] = render_mode
    try:
        made = gymnasium.make(env_id, disable_env_checker=True, **keywords)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(f"env: {show(env_id)} cannot be made: {error}") from error
    except gymnasium.error.Error as error:
        raise ValueError(f"env: {error}") from error
    except ModuleNotFoundError as error:
        if isinstance(env_id, str) and error.name is None and ":" in env_id:
            raise ValueError(f"env: {error}") from error
        raise
    return as_team(made) or made


def _call_factory(factory: Callable[..., Any], render_mode: str | None) -> Any:
    keywords = {}
    try:
        signature = inspect.signature(factory)
    except ValueError:
        signature = None
    if signature is not None:
        open_ended = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
        if render_mode is not None and (open_ended or "render_mode" in signature.parameters):
            keywords["render_mode"] = render_mode
        try:
            signature.bind(**keywords)
        except TypeError as error:
            raise ValueError(f"env: the factory {show(factory)} must need no arguments: {error}") from error
    product = factory(**keywords)
    return make_registered(product, render_mode) if isinstance(product, str | EnvSpec) else product


def remake(env: Env, render_mode: str | None) -> Env:
    """Make another environment from what the user's own says of itself.

    Raises:
        NotRemade: if it says nothing, or what comes of it is put together otherwise.
    """
    classic = env.env if isinstance(env, ClassicEnv) else None
    spec: Any = env.spec if classic is None else getattr(classic, "spec", None)
    if spec is None or not callable(getattr(spec, "make", None)):
        raise NotRemade("it has no spec")
    try:
        made = make_registered(spec, render_mode) if classic is None else _remake_classic(env, spec, render_mode)
    except Exception as error:
        raise NotRemade(f"its spec does not make it: {error}") from error
    # A spec may know nothing of a wrapper, which then would be missing without a word.
    chains = [sorted(type(layer).__name__ for layer in layers(each)) for each in (env, made)]
    if len({tuple(name for name in chain if name not in _NEUTRAL) for chain in chains}) > 1:
        made.close()
        raise NotRemade(f"its spec makes {name_of(made)} instead")
    return made


def _remake_classic(env: Env, spec: Any, render_mode: str | None) -> Env:
    # gym 0.21 draws in the mode it is asked for; later ones are made with it.
    by_request = isinstance(env, ClassicEnv) and env.render_takes_mode()
    keywords = {} if render_mode is None or by_request else {"render_mode": render_mode}
    return ClassicEnv(spec.make(**keywords))


def single_spec(vector: VectorEnv[Any, Any, Any]) -> EnvSpec | None:
    """Return gymnasium's description of one of the environments that `vector` steps, if it says all of it."""
    around = [type(layer).__name__ for layer in layers(vector)][:-1]
    spec = vector.spec
    if not isinstance(spec, EnvSpec) or any(name not in _NEUTRAL for name in around):
        return None
    spec = copy.deepcopy(spec)
    # What gymnasium.make_vec adds to the arguments is about the vector environment; wrappers are code.
    extra = [spec.kwargs.pop(name, None) for name in _VECTOR_KWARGS]
    spec.max_episode_steps = spec.kwargs.pop("max_episode_steps", spec.max_episode_steps)
    return None if extra[-1] else spec


def vector_builder(vector: VectorEnv[Any, Any, Any]) -> Builder:
    """Return what makes one environment of the kind that `vector` steps.

    Raises:
        NotRemade: if a wrapper around the vector environment would be missing, or nothing is known of its parts.
    """
    *around, base = layers(vector)
    if lost := [type(layer).__name__ for layer in around if type(layer).__name__ not in _NEUTRAL]:
        raise NotRemade(f"the wrapper {lost[0]} is one for vector environments")
    factories = getattr(base, "env_fns", None)
    # Before gymnasium 1.2 these may be a generator that is used up.
    if isinstance(factories, list | tuple):
        return functools.partial(_call_factory, factories[0])
    spec = single_spec(vector)
    if spec is None:
        raise NotRemade("it has no spec")
    return functools.partial(make_registered, spec)


def name_of(env: Any) -> str:
    """Return what an error calls this environment."""
    return "the environment" if env is None else show(env)

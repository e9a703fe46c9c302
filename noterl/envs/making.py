"""Functions that make environments from an id, a factory or the spec of another environment."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv

from noterl.envs.multi_agent.parallel import as_team
from noterl.envs.packages import named_packages
from noterl.envs.spaces import show
from noterl.envs.wrappers.classic import ClassicEnv, copier, is_classic, layers
from noterl.envs.wrappers.masks import with_masks

Env = gymnasium.Env[Any, Any]
Builder = Callable[[str | None], Any]

MAY_BE = (
    "a gymnasium id, an environment, a functional environment, a game, a factory without arguments, a vector "
    "environment, a maker of one such as noterl.envs.Atari, or a pair (observation_space, action_space)"
)

# gymnasium.make_vec adds these to the arguments of the environment.
_VECTOR_KWARGS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")


_STATISTICS = {"NormalizeObservation": "normalize_observation", "NormalizeReward": "normalize_reward"}


class NotRemade(Exception):
    """Raised if a second environment cannot be made; the message is the reason."""


def as_env(value: Any) -> Env | VectorEnv[Any, Any, Any] | None:
    """Return `value` with gymnasium's interface, or None for anything else.

    Raises:
        ValueError: if `value` is a vector environment of another library, has a space of an unsupported kind, or has
            agents that act in turn.
    """
    if isinstance(value, VectorEnv):
        return value
    team = as_team(value)
    if team is not None or isinstance(value, gymnasium.Env):
        return team or with_masks(value)
    if not is_classic(value):
        return None
    if hasattr(value, "num_envs"):
        raise ValueError(
            f"env: {type(value).__name__} steps several environments but is not a gymnasium.vector.VectorEnv; pass a "
            "factory of one of them and num_envs="
        )
    return with_masks(ClassicEnv(value))


def make_registered(env_id: str | EnvSpec, render_mode: str | None, **keywords: Any) -> Env:
    """Make an environment by id or spec, without gymnasium's checker, which takes time in every step.

    Raises:
        ValueError: if the id is unknown; the message includes gymnasium's suggestion.
        ImportError: if the environment, or the module of the id, is not installed.
    """
    if render_mode is not None:
        keywords["render_mode"] = render_mode
    try:
        with named_packages(f"env: {show(env_id)} cannot be made"):
            env = gymnasium.make(env_id, disable_env_checker=True, **keywords)
    except (gymnasium.error.Error, ValueError) as error:
        raise ValueError(f"env: {error}") from error
    return as_team(env) or with_masks(env)


def call_factory(factory: Callable[..., Any], render_mode: str | None) -> Any:
    """Return what the user's factory makes; if that is an id or a spec, the environment.

    Raises:
        ValueError: if the factory requires arguments.
    """
    keywords = {}
    try:
        signature = inspect.signature(factory)
        open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
        if render_mode is not None and (open_ended or "render_mode" in signature.parameters):
            keywords["render_mode"] = render_mode
        # Bound before the call, so that a TypeError inside of the factory is not taken for a wrong signature.
        signature.bind(**keywords)
    except (TypeError, ValueError) as error:
        raise ValueError(f"env: the factory {show(factory)} must not require arguments: {error}") from error
    product = factory(**keywords)
    return make_registered(product, render_mode) if isinstance(product, str | EnvSpec) else product


def remake(env: Env, render_mode: str | None) -> Env:
    """Make another environment by `gymnasium.make(env.spec)`, or by the `make` of classic gym.

    Raises:
        NotRemade: if the environment has no spec, or if `make` raises, for example because a wrapper does not record
            arguments.
    """
    library = "gym"
    build = copier(env)
    if isinstance(env.spec, EnvSpec):
        library = "gymnasium"
        build = functools.partial(make_registered, env.spec)
    if build is None:
        raise NotRemade("it has no spec")
    try:
        return build(render_mode)
    except Exception as error:
        raise NotRemade(f"{library}.make(env.spec) raises {type(error).__name__}: {error}") from error


def spec_of(env: str | EnvSpec) -> EnvSpec:
    """Return the spec of an id, or the spec itself.

    Raises:
        ValueError: if the id is not registered.
    """
    try:
        return gymnasium.spec(env) if isinstance(env, str) else env
    except gymnasium.error.Error as error:
        raise ValueError(f"env: {error}") from error


def importable(env_id: str | EnvSpec) -> EnvSpec:
    """Return a spec with which a process makes the environment without the registration and the script.

    An entry point in the script, such as "__main__:MyEnv", is replaced by the class.

    Raises:
        ValueError: if the id is not registered, or a wrapper is defined in the script.
    """
    spec = spec_of(env_id)
    for wrapper in spec.additional_wrappers:
        if wrapper.entry_point.startswith("__main__:"):
            raise ValueError(
                f"workers: the wrapper {wrapper.name} is defined in the script; pass a factory as env=, such as "
                f"lambda: {wrapper.name}(gymnasium.make({spec.id!r})), or define it in a module that can be imported"
            )
    if not isinstance(spec.entry_point, str) or not spec.entry_point.startswith("__main__:"):
        return spec
    spec = copy.deepcopy(spec)
    # The class itself instead of its import path, because "__main__" is another module in the process.
    creator: Any = load_env_creator(str(spec.entry_point))
    spec.entry_point = creator
    return spec


def single_spec(vector: VectorEnv[Any, Any, Any]) -> EnvSpec | None:
    """Return the spec of one sub-environment of `vector`; None if the spec does not describe it completely."""
    spec = vector.spec
    # The spec of a vector environment does not describe wrappers around it.
    if not isinstance(spec, EnvSpec) or _wrappers(vector):
        return None
    spec = copy.deepcopy(spec)
    extra = [spec.kwargs.pop(name, None) for name in _VECTOR_KWARGS]
    spec.max_episode_steps = spec.kwargs.pop("max_episode_steps", spec.max_episode_steps)
    return None if extra[-1] else spec  # wrappers are functions, which a spec cannot describe


def vector_builder(vector: VectorEnv[Any, Any, Any]) -> Builder:
    """Return a function that makes one environment like those in `vector`.

    Raises:
        NotRemade: if `vector` is wrapped, or has neither factories nor a spec.
    """
    if wrappers := _wrappers(vector):
        raise NotRemade(f"the wrapper {wrappers[0]} is one for vector environments")
    factories = getattr(vector.unwrapped, "env_fns", None)
    # Before gymnasium 1.2, these may be a generator that is exhausted.
    if isinstance(factories, list | tuple):
        return functools.partial(call_factory, factories[0])
    spec = single_spec(vector)
    if spec is None:
        raise NotRemade("it has no spec")
    return functools.partial(make_registered, spec)


def _wrappers(vector: VectorEnv[Any, Any, Any]) -> list[str]:
    """Return the names of the wrappers around a vector environment that may change the results."""
    # The last layer is the environment itself.
    names = [type(layer).__name__ for layer in layers(vector)][:-1]
    return [name for name in names if name != "RecordEpisodeStatistics"]


def plain_attributes(env: Any) -> dict[str, Any]:
    """Return the public attributes of all layers that are numbers, strings, bools or tuples of these, by layer.name."""
    return {
        f"{type(layer).__name__}.{name}": value
        for layer in layers(env)
        if type(layer).__name__ != "PassiveEnvChecker"  # which notes what has been called
        for name, value in getattr(layer, "__dict__", {}).items()
        if name[0] != "_" and name != "render_mode" and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str | np.generic)


def find_statistics(env: Any) -> list[str]:
    """Return a sentence for each wrapper of gymnasium whose running statistics a copy of the environment lacks."""
    names = [type(layer).__name__ for layer in layers(env) if type(layer).__module__.startswith("gymnasium.")]
    return [
        f"each copy of an environment with gymnasium.wrappers.{name} has statistics of its own, so evaluations differ "
        f"from training, and files do not hold them: remove it and pass {argument}=True to the agent"
        for name, argument in _STATISTICS.items()
        if name in names
    ]


def name_of(env: Any) -> str:
    """Return the name of an environment for error messages."""
    return "the environment" if env is None else show(env)

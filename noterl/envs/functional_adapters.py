"""Functional environments of other packages: gymnasium's FuncEnv, gymnax, Brax, MuJoCo Playground and Jumanji.

The environments are recognized by methods, so noterl depends on none of these packages.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from noterl.envs.functional import FunctionalEnv, functional, import_jax
from noterl.envs.spaces import kind, parts_of


def find_functional(value: Any) -> FunctionalEnv | None:
    """Return the environment of an object or id of gymnasium's FuncEnv, gymnax, Brax, Playground or Jumanji.

    None for anything else. The objects are recognized by methods.

    Raises:
        ValueError: if the environment cannot be used: gymnax before 1.0, or Brax with automatic resets.
        ImportError: if the package of an id is not installed.
    """
    adapt = adapter_of(value)
    return None if adapt is None else adapt(value)


def adapter_of(value: Any) -> Callable[[Any], FunctionalEnv | None] | None:
    """Return the function that adapts the value, for what `find_functional` accepts; otherwise None."""
    if isinstance(value, str):
        package, colon, _ = value.partition(":")
        return _from_id if colon and package in _MAKERS else None
    # Environments of gymnasium have `reset` and `step`, too, and need no adapter.
    if isinstance(value, type | gymnasium.Env | VectorEnv):
        return None
    has_spaces = hasattr(value, "observation_space") and hasattr(value, "action_space")
    adapters = _WITH_SPACES if has_spaces else _WITHOUT_SPACES
    return next((adapt for names, adapt in adapters if all(hasattr(value, name) for name in names)), None)


def _from_id(value: str) -> FunctionalEnv | None:
    package, _, name = value.partition(":")
    return find_functional(_MAKERS[package](name))


def _from_func_env(env: Any) -> FunctionalEnv:
    """Adapt a `FuncEnv` of gymnasium, which has no time limit; `functional` adds one."""
    params = getattr(env, "default_params", None)

    def reset(key: Any) -> tuple[Any, Any]:
        first, second = _split(key)
        state = env.initial(first, params)
        return env.observation(state, second, params), state

    def step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        first, second = _split(key)
        new = env.transition(state, action, first, params)
        reward = env.reward(state, action, new, second, params)
        terminated = env.terminal(new, second, params)
        return env.observation(new, second, params), new, reward, terminated, np.False_

    return functional(reset, step, env.observation_space, env.action_space, name=type(env).__name__)


def _from_gymnax(env: Any) -> FunctionalEnv:
    """Adapt an environment of gymnax, with the default parameters."""
    params = env.default_params
    name = getattr(env, "name", type(env).__name__)
    if not hasattr(env, "is_truncated"):
        raise ValueError(f"env: {name} is of gymnax before 1.0, which does not tell truncation from termination")

    def step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        # `env.step` would reset the environment as well.
        observation, state, reward, terminated, _ = env.step_env(key, state, action, params)
        return observation, state, reward, terminated, env.is_truncated(state, params)

    env_spaces = _space(env.observation_space(params)), _space(env.action_space(params))
    return functional(lambda key: env.reset_env(key, params), step, *env_spaces, name=name)


def _from_brax(env: Any) -> FunctionalEnv:
    """Adapt an environment of Brax or of MuJoCo Playground; a time limit of Playground is kept."""
    name = type(getattr(env, "unwrapped", env)).__name__
    # `auto_reset` adds a wrapper, which may lie below others.
    layer = env
    while layer is not None:
        if "AutoReset" in type(layer).__name__:
            raise ValueError(f"env: {name} resets itself and hides last observations; create it with auto_reset=False")
        layer = vars(layer).get("env") if hasattr(layer, "__dict__") else None

    def step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        state = env.step(state, action)
        over = state.done > 0
        # `over & False` keeps the type, an array of JAX inside of a compiled function.
        cut = over & (state.info["truncation"] > 0) if "truncation" in state.info else over & False
        return state.obs, state, state.reward, over & ~cut, cut

    def reset(key: Any) -> tuple[Any, Any]:
        state = env.reset(key)
        return state.obs, state

    size = env.observation_size
    shapes = size if isinstance(size, dict) else {"": size}
    boxes: dict[str, Any] = {
        key: spaces.Box(-np.inf, np.inf, tuple(np.atleast_1d(shape).tolist())) for key, shape in shapes.items()
    }
    limit = getattr(getattr(env, "_config", None), "episode_length", None)
    actions = spaces.Box(-1.0, 1.0, (int(env.action_size),))
    observations: Any = spaces.Dict(boxes) if isinstance(size, dict) else boxes[""]
    return functional(reset, step, observations, actions, max_episode_steps=limit, name=name)


def _from_jumanji(env: Any) -> FunctionalEnv:
    """Adapt an environment of Jumanji; observations that are named tuples become dicts."""
    last = 2  # `dm_env.StepType.LAST`

    def reset(key: Any) -> tuple[Any, Any]:
        state, timestep = env.reset(key)
        return _as_dict(timestep.observation), state

    def step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        state, timestep = env.step(state, action)
        # Jumanji sets the discount to 0 only where the episode terminates, so another end is a truncation.
        over = timestep.step_type == last
        ends = timestep.discount == 0
        return _as_dict(timestep.observation), state, timestep.reward, over & ends, over & ~ends

    env_spaces = (_space_of_spec(_attribute(env, f"{name}_spec")) for name in ("observation", "action"))
    return functional(reset, step, *env_spaces, name=type(env).__name__)


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute that is a method in older versions."""
    value = getattr(owner, name)
    return value() if callable(value) else value


def _as_dict(observation: Any) -> Any:
    fields = getattr(observation, "_asdict", None)
    if fields is None:
        return observation
    return {name: _as_dict(value) for name, value in fields().items()}


def _space(space: Any) -> Any:
    """Return a space of gymnax as one of gymnasium; bounds of one number hold for all values."""
    if isinstance(space, spaces.Space):
        return space
    which = kind(space)
    if which == "Discrete":
        return spaces.Discrete(int(space.n))
    if which == "Box":
        low, high = (np.broadcast_to(np.asarray(bound), space.shape) for bound in (space.low, space.high))
        dtype: Any = np.dtype(space.dtype).type
        return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)
    return spaces.Dict({name: _space(part) for name, part in parts_of(space).items()}) if which == "Dict" else space


def _space_of_spec(spec: Any) -> Any:
    """Return the space of a specification of Jumanji."""
    fields = getattr(spec, "_specs", None)
    if fields:
        return spaces.Dict({name: _space_of_spec(part) for name, part in fields.items()})
    choices = getattr(spec, "num_values", None)
    if choices is not None:
        counts = np.asarray(choices)
        return spaces.MultiDiscrete(counts) if counts.ndim else spaces.Discrete(int(counts))
    dtype: Any = np.dtype(spec.dtype).type
    if dtype is np.bool_:
        return spaces.MultiBinary(list(spec.shape) or 1)
    bounds = (getattr(spec, name, default) for name, default in (("minimum", -np.inf), ("maximum", np.inf)))
    low, high = (np.broadcast_to(np.asarray(bound), spec.shape) for bound in bounds)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        low = np.clip(low, info.min, info.max)
        high = np.clip(high, info.min, info.max)
    return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)


def _split(key: Any) -> tuple[Any, Any]:
    first, second = import_jax().random.split(key)
    return first, second


# The methods by which an environment is recognized, and the function that adapts it. Those without spaces have methods
# that an environment of gym may have too.
_Adapters = tuple[tuple[tuple[str, ...], Callable[[Any], FunctionalEnv]], ...]
_WITH_SPACES: _Adapters = (
    (("initial", "transition", "observation", "reward", "terminal"), _from_func_env),
    (("reset_env", "step_env", "default_params"), _from_gymnax),
)
_WITHOUT_SPACES: _Adapters = (
    (("observation_size", "action_size", "reset", "step"), _from_brax),
    (("observation_spec", "action_spec", "reset", "step"), _from_jumanji),
)


def _package(module: str, package: str, name: str) -> Any:
    """Import the package of an environment, for which noterl has no extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"env: {package}:{name} needs the package {package}: pip install {package}") from error


_MAKERS: dict[str, Callable[[str], Any]] = {
    "brax": lambda name: _package("brax.envs", "brax", name).create(name, auto_reset=False),
    "gymnax": lambda name: _package("gymnax", "gymnax", name).make(name)[0],
    "jumanji": lambda name: _package("jumanji", "jumanji", name).make(name),
    "playground": lambda name: _package("mujoco_playground", "playground", name).registry.load(name),
}

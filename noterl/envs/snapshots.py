"""The state of an environment in the middle of an episode, so that a saved run goes on exactly.

Owns: what `get_state` of an environment may return, and which attributes of the wrappers around it belong to its state.
An environment that cannot say its state is replayed: the seed of its reset and the actions since.

An environment's `get_state()` speaks for itself and for all that it wraps; `set_state(state)` takes what it returned.
Allowed are numbers, text, bytes, None, NumPy arrays and scalars, NumPy generators, and lists, tuples, deques and dicts
of those. The random generator that gymnasium gives every environment is kept in any case.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import numpy as np

from noterl.envs.wrappers.classic import layers
from noterl.utils import codec

# What changes in a wrapper of gymnasium during an episode, by class; dots lead into objects. Clock times are left out.
_WRAPPER_FIELDS: dict[str, tuple[str, ...]] = {
    "Autoreset": ("autoreset",),
    "AtariPreprocessing": ("obs_buffer", "lives", "game_over"),
    "ClassicEnv": (),
    "DelayObservation": ("observation_queue",),
    "FrameStack": ("_stack",),
    "FrameStackObservation": ("obs_queue", "padding_value"),
    "HumanRendering": (),
    "ListEnv": ("_present", "_terminated", "_observations"),
    "MaxAndSkipObservation": (),
    "NormalizeObservation": ("obs_rms.mean", "obs_rms.var", "obs_rms.count"),
    "NormalizeReward": ("return_rms.mean", "return_rms.var", "return_rms.count", "discounted_reward"),
    "ParallelEnv": ("_present", "_terminated", "_observations"),
    "OrderEnforcing": ("_has_reset",),
    "PassiveEnvChecker": (),
    "RecordEpisodeStatistics": (
        "episode_count",
        "episode_returns",
        "episode_lengths",
        "time_queue",
        "return_queue",
        "length_queue",
    ),
    "RecordVideo": (),
    "RenderCollection": (),
    "RepeatAction": (),
    "StickyAction": ("last_action", "is_sticky_actions", "num_repeats", "repeats_taken"),
    "TimeAwareObservation": ("timesteps",),
    "TimeLimit": ("_elapsed_steps",),
}
_STATELESS_MODULES = ("transform_observation", "transform_action", "transform_reward", "array_conversion")

# Attributes that every wrapper has from its base class, and that are no state.
_BASE_FIELDS = {
    "env",
    "_action_space",
    "_observation_space",
    "_metadata",
    "_cached_spec",
    "_saved_kwargs",
    "_np_random",
    "_np_random_seed",
}


def get_state(env: gymnasium.Env[Any, Any]) -> dict[str, Any] | None:
    """Return the state of an environment and of the wrappers around it.

    Args:
        env: an environment whose own class, or one of its wrappers, has `get_state()` and `set_state(state)`.

    Returns:
        A dict of values that a file can hold, or None if no such methods exist, or if a file cannot hold what they
        return, or an attribute of a wrapper that is not gymnasium's own.
    """
    stack = list(layers(env))
    speaker = _speaker(stack)
    if speaker is None:
        return None
    random = vars(stack[-1]).get("_np_random") if hasattr(stack[-1], "__dict__") else None
    own = stack[speaker].get_state()
    try:
        return {
            "layers": [type(layer).__name__ for layer in stack],
            "wrappers": [_say_wrapper(layer) for layer in stack[:speaker]],
            "env": codec.copy(own),
            "random": codec.copy(random).bit_generator.state if isinstance(random, np.random.Generator) else None,
        }
    except (TypeError, ValueError):
        return None


def set_state(env: gymnasium.Env[Any, Any], state: dict[str, Any]) -> None:
    """Put an environment, and the wrappers around it, into a state that `get_state` returned.

    The environment is reset first, because many build what their state lives in no earlier.

    Raises:
        ValueError: if the state belongs to an environment that was put together otherwise.
    """
    stack = list(layers(env))
    speaker = _speaker(stack)
    if not isinstance(state, dict) or set(state) != {"layers", "wrappers", "env", "random"}:
        raise ValueError(f"state: it must be what get_state returned, got {type(state).__name__}")
    names = [type(layer).__name__ for layer in stack]
    if speaker is None or state["layers"] != names or len(state["wrappers"]) != speaker:
        raise ValueError(f"state: it was said by {_chain(state['layers'])}, and the environment is {_chain(names)}")
    own, wrappers, random = (codec.copy(state[name]) for name in ("env", "wrappers", "random"))
    for layer, fields in zip(stack[:speaker], wrappers, strict=True):
        _check_fields(layer, fields)
    env.reset(seed=0)
    stack[speaker].set_state(own)
    for layer, fields in zip(stack[:speaker], wrappers, strict=True):
        for path, value in fields.items():
            _assign(layer, path, value)
    _set_random(stack[-1], random)


def has_state_methods(env: gymnasium.Env[Any, Any]) -> bool:
    """Tell whether the environment, or a wrapper of it, has `get_state()` and `set_state(state)`."""
    return _speaker(list(layers(env))) is not None


def replay(env: gymnasium.Env[Any, Any], seed: int | None, actions: Iterable[Any]) -> Any:
    """Reset with `seed`, take `actions`, and return the last observation.

    The caller compares it with the one it knows. None if the episode ended on the way: then it is not the same episode,
    since only episodes in flight are replayed.

    Example:
    >>> env = gymnasium.make("CartPole-v1")
    >>> bool((replay(env, 3, [0, 1, 1]) == replay(env, 3, [0, 1, 1])).all())
    True
    """
    observation, _ = env.reset(seed=seed)
    for action in actions:
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            return None
    return observation


def equal(first: Any, second: Any) -> bool:
    """Tell whether two observations (or actions, or anything nested of arrays) are the same; NaN equals NaN.

    Example:
    >>> equal({"position": np.ones(2)}, {"position": np.ones(2)})
    True
    """
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, tuple | list) and isinstance(second, tuple | list):
        return len(first) == len(second) and all(equal(a, b) for a, b in zip(first, second, strict=True))
    ours, theirs = np.asarray(first), np.asarray(second)
    return np.array_equal(ours, theirs, equal_nan=ours.dtype.kind in "fc" and theirs.dtype.kind in "fc")


def _chain(names: Any) -> str:
    return "<".join(str(name) for name in names) if isinstance(names, list) else "no environment"


def _speaker(stack: list[Any]) -> int | None:
    """Return the index of the outermost layer that has both methods itself."""
    for index, layer in enumerate(stack):
        if _own(layer, "get_state", 0) and _own(layer, "set_state", 1):
            return index
    return None


def _own(layer: Any, name: str, arguments: int) -> bool:
    """Tell whether `layer` has a method of so many arguments itself (a wrapper of gym's answers for what it wraps)."""
    if name not in getattr(layer, "__dict__", {}) and not any(name in vars(base) for base in type(layer).__mro__):
        return False
    method: Callable[..., Any] = getattr(layer, name)
    try:
        inspect.signature(method).bind(*range(arguments))
    except TypeError:
        # MuJoCo's `set_state(qpos, qvel)` is another method of the same name.
        return False
    return True


def _known_fields(layer: Any) -> tuple[str, ...] | None:
    """Return which attributes of a wrapper are its state, None for one whose author is not known here."""
    package, *_, module = type(layer).__module__.split(".")
    if package == "gymnasium" and module in _STATELESS_MODULES:
        return ()
    return _WRAPPER_FIELDS.get(type(layer).__name__) if package in ("gymnasium", "noterl") else None


def _say_wrapper(layer: Any) -> dict[str, Any]:
    fields = _known_fields(layer)
    if fields is not None:
        return {path: codec.copy(_read(layer, path)) for path in fields if path.split(".")[0] in vars(layer)}
    # A wrapper of the user's: whatever it holds may be state, except what cannot change.
    held = {name: value for name, value in vars(layer).items() if name not in _BASE_FIELDS and not _is_fixed(value)}
    return {name: codec.copy(value) for name, value in held.items()}


def _is_fixed(value: Any) -> bool:
    return callable(value) or isinstance(value, gymnasium.Space) or inspect.ismodule(value)


def _check_fields(layer: Any, fields: dict[str, Any]) -> None:
    """Refuse names that are no state: a file must not reach methods or the wrapped environment."""
    known = _known_fields(layer)
    for path in fields:
        own = path.isidentifier() and path not in _BASE_FIELDS and not callable(getattr(type(layer), path, None))
        if path not in known if known is not None else not own:
            raise ValueError(f"state: {type(layer).__name__} has no state named {path!r}")


def _read(layer: Any, path: str) -> Any:
    for name in path.split("."):
        layer = getattr(layer, name)
    return layer


def _assign(layer: Any, path: str, value: Any) -> None:
    *owners, name = path.split(".")
    owner = _read(layer, ".".join(owners)) if owners else layer
    setattr(owner, name, value)


def _set_random(base: Any, state: dict[str, Any] | None) -> None:
    """Set the state of the generator in place if possible, since the environment may hold it under a second name."""
    if state is None:
        return
    random, held = codec.generator(state), vars(base).get("_np_random")
    if type(getattr(held, "bit_generator", None)) is type(random.bit_generator):
        held.bit_generator.state = state
    else:
        base._np_random = random

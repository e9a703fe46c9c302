"""The state of an environment in the middle of an episode, so that a saved run goes on exactly.

Owns: what `get_state` of an environment may return, and which attributes of the wrappers around it belong to its state.
An environment that cannot say its state is replayed: the seed of its reset and the actions since.

An environment's `get_state()` speaks for itself and for all that it wraps; `set_state(state)` takes what it returned.
Allowed are numbers, text, bytes, None, NumPy arrays and scalars, NumPy generators, and lists, tuples, deques and dicts
of those. The random generator that gymnasium gives every environment is kept in any case.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import numpy as np

from noterl.envs.wrappers.classic import layers

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

_GENERATORS = {name: getattr(np.random, name) for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")}


class _CannotSay(Exception):
    """A value is not of the kinds that a file can hold."""


def get_state(env: gymnasium.Env[Any, Any]) -> dict[str, Any] | None:
    """Return the state of an environment and of the wrappers around it.

    Args:
        env: an environment whose own class, or one of its wrappers, has `get_state()` and `set_state(state)`.

    Returns:
        A nested dict of arrays, numbers, text and None, or None if no such methods exist, or if what they return, or
        an attribute of a wrapper that is not gymnasium's own, cannot be said in that form.
    """
    stack = list(layers(env))
    speaker = _speaker(stack)
    if speaker is None:
        return None
    random = vars(stack[-1]).get("_np_random") if hasattr(stack[-1], "__dict__") else None
    try:
        return {
            "layers": [type(layer).__name__ for layer in stack],
            "wrappers": [_say_wrapper(layer) for layer in stack[:speaker]],
            "env": encode(stack[speaker].get_state()),
            "random": encode(random) if isinstance(random, np.random.Generator) else None,
        }
    except _CannotSay:
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
    own, wrappers, random = (decode(state[name]) for name in ("env", "wrappers", "random"))
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
        return {path: encode(_read(layer, path)) for path in fields if path.split(".")[0] in vars(layer)}
    # A wrapper of the user's: whatever it holds may be state, except what cannot change.
    held = {name: value for name, value in vars(layer).items() if name not in _BASE_FIELDS and not _is_fixed(value)}
    return {name: encode(value) for name, value in held.items()}


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


def _set_random(base: Any, random: np.random.Generator | None) -> None:
    """Set the generator in place where that goes, since the environment may hold it under a second name."""
    if random is None:
        return
    held = vars(base).get("_np_random")
    if type(getattr(held, "bit_generator", None)) is type(random.bit_generator):
        held.bit_generator.state = random.bit_generator.state
    else:
        base._np_random = random


def encode(value: Any) -> Any:
    """Return `value` as nested dicts and lists of arrays, numbers, text and None; arrays are copied.

    What those kinds lack is marked by a dict with one key, such as {"__tuple__": [...]}.

    Raises:
        _CannotSay: if there is something else in it.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return value.copy()
    if isinstance(value, dict):
        return _encode_dict(value)
    if type(value) is list:
        return [encode(item) for item in value]
    mark = _encode_marked(value)
    if mark is None:
        raise _CannotSay(type(value).__name__)
    return mark


def _encode_dict(value: dict[Any, Any]) -> Any:
    if all(type(key) is str and not key.startswith("__") for key in value):
        return {key: encode(item) for key, item in value.items()}
    return {"__items__": [[encode(key), encode(item)] for key, item in value.items()]}


def _encode_marked(value: Any) -> dict[str, Any] | None:
    if type(value) is tuple:
        return {"__tuple__": [encode(item) for item in value]}
    if isinstance(value, deque):
        return {"__deque__": [encode(item) for item in value], "maxlen": value.maxlen}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"__scalar__": np.array(value)}
    if isinstance(value, bytes):
        return {"__bytes__": np.frombuffer(value, np.uint8).copy()}
    if type(value) is np.random.Generator and type(value.bit_generator).__name__ in _GENERATORS:
        return {"__generator__": encode(value.bit_generator.state)}
    return None


def decode(value: Any) -> Any:
    """Return what `encode` was given; arrays are copied, generators are new.

    Raises:
        ValueError: if a mark is not one of `encode`'s.
    """
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    mark = next((key for key in value if key.startswith("__")), None)
    if mark is None:
        return {key: decode(item) for key, item in value.items()}
    if mark not in _DECODERS:
        raise ValueError(f"state: {mark!r} is none of {sorted(_DECODERS)}")
    return _DECODERS[mark](value)


def _decode_generator(value: dict[str, Any]) -> np.random.Generator:
    state = decode(value["__generator__"])
    bit_generator = _GENERATORS[state["bit_generator"]](0)
    bit_generator.state = state
    return np.random.Generator(bit_generator)


_DECODERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "__items__": lambda value: {decode(key): decode(item) for key, item in value["__items__"]},
    "__tuple__": lambda value: tuple(decode(value["__tuple__"])),
    "__deque__": lambda value: deque(decode(value["__deque__"]), maxlen=value["maxlen"]),
    "__scalar__": lambda value: value["__scalar__"][()],
    "__bytes__": lambda value: value["__bytes__"].tobytes(),
    "__generator__": _decode_generator,
}

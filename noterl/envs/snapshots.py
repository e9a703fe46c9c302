"""The state of an environment in the middle of an episode.

If an environment has `get_state()` and `set_state(state)`, these methods restore the environment, and must also cover
any environment inside. The state may hold numbers, text, bytes, None, NumPy arrays, scalars and generators, and lists,
tuples, deques and dicts of these. The generator `np_random` and the state of wrappers of gymnasium and noterl are
included automatically. A wrapper of another package needs the two methods itself. All other environments are replayed:
reset with the same seed, and stepped with the same actions.
"""

from __future__ import annotations

import inspect
import random as python_random
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np

from noterl.envs.wrappers.classic import layers
from noterl.utils import codec

# The attributes of gymnasium's and noterl's wrappers that change during an episode, by class; a path with dots names an
# attribute of an attribute. Clock times are omitted.
_WRAPPER_FIELDS: dict[str, tuple[str, ...]] = {
    "Autoreset": ("autoreset",),
    "AtariPreprocessing": ("obs_buffer", "lives", "game_over"),
    "DelayObservation": ("observation_queue",),
    "FrameStack": ("_stack",),
    "FrameStackObservation": ("obs_queue", "padding_value"),
    "ListEnv": ("_present", "_terminated", "_observations"),
    "NormalizeObservation": ("obs_rms.mean", "obs_rms.var", "obs_rms.count"),
    "NormalizeReward": ("return_rms.mean", "return_rms.var", "return_rms.count", "discounted_reward"),
    "ParallelEnv": ("_present", "_terminated", "_observations"),
    "OrderEnforcing": ("_has_reset",),
    "RecordEpisodeStatistics": ("episode_count", "episode_returns", "episode_lengths", "return_queue", "length_queue"),
    "StickyAction": ("last_action", "is_sticky_actions", "num_repeats", "repeats_taken"),
    "TimeAwareObservation": ("timesteps",),
    "TimeLimit": ("_elapsed_steps",),
}
# Wrappers without such attributes: noterl's, and gymnasium's for steps and for rendering.
_STATELESS = {"ClassicEnv", "ClipRewards", "FireOnReset", "Hide", "MaskInInfo", "PreviousStep"}
_STATELESS |= {"MaxAndSkipObservation", "PassiveEnvChecker", "RepeatAction"}
_STATELESS |= {"HumanRendering", "RecordVideo", "RenderCollection"}
_STATELESS_MODULES = ("transform_observation", "transform_action", "transform_reward", "array_conversion")


def get_state(env: gymnasium.Env[Any, Any]) -> dict[str, Any] | None:
    """Return the state of an environment and of all wrappers around the environment.

    Args:
        env: an environment. The class, or one of the wrappers, should have `get_state()` and `set_state(state)`.

    Returns:
        A dict of values that a file can hold. None if there are no such methods, if a file cannot hold the state, or if
        a wrapper around the object with the methods is not a known one of gymnasium or noterl.
    """
    stack = _stack(env)
    stateful = _stateful(stack)
    fields = [_fields(layer) for layer in stack[:stateful]]
    if stateful is None or None in fields:
        return None
    # Not the property `np_random`, which would make a generator where there is none.
    random = vars(stack[-1]).get("_np_random") if hasattr(stack[-1], "__dict__") else None
    env_state = stack[stateful].get_state()
    try:
        return {
            "layers": [type(layer).__name__ for layer in stack],
            "wrappers": [
                {path: codec.copy(attrgetter(path)(layer)) for path in paths or () if path.split(".")[0] in vars(layer)}
                for layer, paths in zip(stack, fields, strict=False)
            ],
            "env": codec.copy(env_state),
            "random": codec.copy(random).bit_generator.state if isinstance(random, np.random.Generator) else None,
        }
    # A state that a file cannot hold: the episode is then replayed instead.
    except (TypeError, ValueError):
        return None


def set_state(env: gymnasium.Env[Any, Any], state: dict[str, Any]) -> None:
    """Restore the state, returned by `get_state`, of an environment and of all wrappers around the environment.

    The environment is reset first, because many environments create the objects of the state in `reset`.

    Raises:
        ValueError: if the state is not a result of `get_state`, or is of an environment with other wrappers.
    """
    stack = _stack(env)
    stateful = _stateful(stack)  # the position of the layer with a state: that many wrappers surround the layer
    if not isinstance(state, dict) or set(state) != {"layers", "wrappers", "env", "random"}:
        raise ValueError(f"state must be a result of get_state, got {type(state).__name__}")
    names = [type(layer).__name__ for layer in stack]
    if stateful is None or state["layers"] != names or len(state["wrappers"]) != stateful:
        saved, current = ("<".join(map(str, stack_names)) for stack_names in (state["layers"], names))
        raise ValueError(f"state is of the environment {saved}, but this one is {current}")
    # Copies, because the environment keeps and changes what `set_state` receives.
    env_state, wrappers, random = (codec.copy(state[name]) for name in ("env", "wrappers", "random"))
    for layer, fields in zip(stack[:stateful], wrappers, strict=True):
        for path in fields:  # a file must not replace methods or the wrapped environment
            if path not in (_fields(layer) or ()):
                raise ValueError(f"state: {type(layer).__name__} has no state named {path!r}")
    # All checks come before the reset, so that a wrong state leaves the environment as it was.
    env.reset(seed=0)
    stack[stateful].set_state(env_state)
    for layer, fields in zip(stack[:stateful], wrappers, strict=True):
        for path, value in fields.items():
            owner, _, name = path.rpartition(".")
            setattr(attrgetter(owner)(layer) if owner else layer, name, value)
    if random is None:
        return
    generator = codec.generator(random)
    held = vars(stack[-1]).get("_np_random")
    # In place if possible, because the environment may have other references to the generator.
    if type(getattr(held, "bit_generator", None)) is type(generator.bit_generator):
        held.bit_generator.state = random
    else:
        stack[-1]._np_random = generator


def reseed(env: gymnasium.Env[Any, Any], generator: np.random.Generator) -> None:
    """Set new seeds, drawn from `generator`, for the generators of NumPy and Python that an environment holds.

    The generators are attributes of the environment or of a wrapper, such as `np_random`.
    """
    held = (value for layer in layers(env) for value in getattr(layer, "__dict__", {}).values())
    kinds = (np.random.Generator, np.random.RandomState, python_random.Random)
    for held_generator in {id(value): value for value in held if isinstance(value, kinds)}.values():
        seed = int(generator.integers(2**32))
        if isinstance(held_generator, np.random.Generator):
            bits: Any = held_generator.bit_generator
            bits.state = type(bits)(seed).state  # in place, because the environment may have other references to it
        else:
            held_generator.seed(seed)


def has_state_methods(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether the environment, or a wrapper, has `get_state()` and `set_state(state)`."""
    return _stateful(_stack(env)) is not None


def replay(env: gymnasium.Env[Any, Any], seed: int | None, actions: Iterable[Any], *, over: bool = False) -> Any:
    """Reset with `seed`, take `actions`, and return the last observation.

    If the episode ends before the last action, the episode differs from the one to repeat, and None is returned. The
    same holds for an episode that ends with the last action, unless `over`.

    Example:
    >>> env = gymnasium.make("CartPole-v1")
    >>> bool((replay(env, 3, [0, 1, 1]) == replay(env, 3, [0, 1, 1])).all())
    True
    """
    observation, _ = env.reset(seed=seed)
    ended = False
    for action in actions:
        if ended:
            return None
        observation, _, terminated, truncated, _ = env.step(action)
        ended = bool(terminated or truncated)
    return observation if over or not ended else None


def equal(first: Any, second: Any) -> bool:
    """Return whether two observations, actions or other nested arrays are equal; NaN equals NaN.

    Example:
    >>> equal({"position": np.ones(2)}, {"position": np.ones(2)})
    True
    """
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, tuple | list) and isinstance(second, tuple | list):
        return len(first) == len(second) and all(equal(a, b) for a, b in zip(first, second, strict=True))
    ours = np.asarray(first)
    theirs = np.asarray(second)
    return np.array_equal(ours, theirs, equal_nan=ours.dtype.kind in "fc" and theirs.dtype.kind in "fc")


def _stack(env: Any) -> list[Any]:
    """Return the layers of an environment without those that only check or report, which may differ between copies."""
    return [layer for layer in layers(env) if type(layer).__name__ not in ("PassiveEnvChecker", "MaskInInfo")]


def _stateful(stack: list[Any]) -> int | None:
    """Return the index of the outermost layer that defines both methods."""
    for index, layer in enumerate(stack):
        if _defines(layer, "get_state", 0) and _defines(layer, "set_state", 1):
            return index
    return None


def _defines(layer: Any, name: str, arguments: int) -> bool:
    """Return whether `layer` itself defines a method that takes this many arguments.

    `hasattr` does not suffice: wrappers of gym forward attributes of the environment inside.
    """
    if name not in getattr(layer, "__dict__", {}) and not any(name in vars(base) for base in type(layer).__mro__):
        return False
    method: Callable[..., Any] = getattr(layer, name)
    try:
        inspect.signature(method).bind(*range(arguments))
    except TypeError:
        # MuJoCo's `set_state(qpos, qvel)` is a different method.
        return False
    return True


def _fields(layer: Any) -> tuple[str, ...] | None:
    """Return the attributes that hold the state of a wrapper; None if the wrapper is not a known one."""
    names = type(layer).__module__.split(".")  # one name, "__main__", in a script
    if names[0] not in ("gymnasium", "noterl"):
        return None
    name = type(layer).__name__
    return () if name in _STATELESS or names[-1] in _STATELESS_MODULES else _WRAPPER_FIELDS.get(name)

"""Environments of classic gym with gymnasium's interface.

gym 0.21 has `seed()`, `reset()` -> observation and `step()` -> 4 values; gym 0.26 has `reset(seed=)` -> 2 values and
`step()` -> 5 values. gym is imported only to copy an environment that `gym.make` has made. The adapter checks the
signature of `reset` and the results of calls, so objects that mix both interfaces (gym 0.22 to 0.25, or a user's own)
work.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from noterl.envs.ends import check_end
from noterl.envs.spaces import convert

# Old environments pass the seed to RandomState, which accepts 32 bits, or to C code, which may accept 31.
_SEED_LIMIT = 2**31


def is_classic(value: Any) -> bool:
    """Return whether `value` is an environment that does not have gymnasium's base class.

    Such an object has the methods `reset` and `step` and both spaces. A class is a factory, not an environment.
    """
    if isinstance(value, gymnasium.Env | gymnasium.vector.VectorEnv | type):
        return False
    callables = all(callable(getattr(value, name, None)) for name in ("reset", "step"))
    return callables and all(hasattr(value, name) for name in ("observation_space", "action_space"))


def layers(env: Any) -> Iterator[Any]:
    """Yield an environment and all environments inside, the outermost first."""
    seen: set[int] = set()
    while callable(getattr(env, "step", None)) and id(env) not in seen:
        seen.add(id(env))
        yield env
        # Not getattr: gym's wrappers forward attributes that they lack.
        env = getattr(env, "__dict__", {}).get("env")


class ClassicEnv(gymnasium.Env[Any, Any]):
    """An environment of classic gym with gymnasium's interface: seeds in `reset`, five values from `step`.

    With four values, `truncated` is `info["TimeLimit.truncated"]`, and `terminated` is any other `done`.

    Args:
        env: an object with `reset`, `step`, `observation_space` and `action_space`.

    Raises:
        ValueError: if a space is of a kind that is not supported.
    """

    def __init__(self, env: Any) -> None:
        """Wrap `env`, of which no method is called; its checkers are switched off."""
        self.env = env
        self.observation_space: Any = convert(env.observation_space, "observation_space")
        self.action_space: Any = convert(env.action_space, "action_space")
        self.metadata: dict[Any, Any] = dict(getattr(env, "metadata", None) or {})
        # In gym 0.21, `render` has an argument `mode`.
        self._renders_by_mode = "mode" in inspect.signature(getattr(env, "render", lambda: None)).parameters
        modes: Any = self.metadata.get("render.modes", self.metadata.get("render_modes", ()))
        old_mode = "rgb_array" if self._renders_by_mode and "rgb_array" in modes else None
        self.render_mode: Any = getattr(env, "render_mode", None) or old_mode
        self._accepted = accepted_keywords(env)
        # gym's own checker is disabled by marking the checks as done: gym 0.26.2 uses names that NumPy 2 has removed.
        for layer in layers(env):
            if type(layer).__name__ == "PassiveEnvChecker" and type(layer).__module__.split(".")[0] == "gym":
                layer.checked_reset = layer.checked_step = layer.checked_render = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode and return the first observation and the info, {} if the environment returns none.

        Raises:
            ValueError: if `options` is set and the environment does not accept options.
        """
        if options is not None and "options" not in self._accepted:
            raise ValueError(f"options must be None for {type(self.env).__name__}.reset, got {options!r}")
        # gym 0.21 takes the seed in a method of its own, which must come before `reset`.
        if seed is not None and "seed" not in self._accepted and callable(getattr(self.env, "seed", None)):
            self.env.seed(int(seed) % _SEED_LIMIT)
        keywords = {"seed": seed, "options": options}
        result = self.env.reset(**{name: keywords[name] for name in self._accepted if keywords[name] is not None})
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            return result, {}
        # An observation may itself be a pair of a value and a dict; then it is in the space.
        is_observation = isinstance(self.observation_space, spaces.Tuple) and result in self.observation_space
        return (result, {}) if is_observation else result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and convert four values to five; see the class.

        Raises:
            ValueError: if the environment returns neither four nor five values.
        """
        result = self.env.step(action)
        if isinstance(result, tuple | list):
            if len(result) == 5:
                return tuple(result)
            if len(result) == 4:
                observation, reward, over, info = result
                check_end("done", over, 1)
                truncated = bool(over) and bool(info.get("TimeLimit.truncated", False))
                if isinstance(reward, np.ndarray) and reward.size == 1:  # some with continuous actions return arrays
                    reward = float(reward.item())
                return observation, reward, bool(over) and not truncated, truncated, info
        count = f"{len(result)} values" if isinstance(result, tuple | list) else type(result).__name__
        raise ValueError(f"env: {type(self.env).__name__}.step must return 4 or 5 values, got {count}")

    def render(self) -> Any:
        """Render the environment, as an array if possible."""
        result = self.env.render(mode="rgb_array") if self._renders_by_mode else self.env.render()
        # gym 0.25 returns the frames since the last call.
        return result[-1] if isinstance(result, list) and result else result

    def close(self) -> None:
        """Close the environment if there is a method `close`."""
        if callable(getattr(self.env, "close", None)):
            self.env.close()

    def __str__(self) -> str:
        """Return the name of the wrapped class, as gymnasium's wrappers do."""
        return f"<{type(self).__name__}<{type(self.env).__name__} instance>>"


def accepted_keywords(env: Any) -> set[str]:
    """Return which of `seed` and `options` the method `reset` accepts.

    Wrappers of gym accept any keyword and pass the keyword on, so the first layer with a fixed signature decides.
    """
    for layer in layers(env):
        parameters = inspect.signature(layer.reset).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return {"seed", "options"} & parameters.keys()
    return {"seed", "options"}


# Wrappers that `gym.make` adds for checks and render modes; they change no result.
_ADDED_BY_MAKE = ("HumanRendering", "OrderEnforcing", "PassiveEnvChecker", "RenderCollection")


def copier(env: Any) -> Callable[[str | None], Any] | None:
    """Return a function that makes a copy of an environment of gym by the spec, in a render mode.

    None if the environment is not one that `gym.make` of gym 0.25 or 0.26 has made. The function can be pickled.
    """
    classic = next((layer.env for layer in layers(env) if isinstance(layer, ClassicEnv)), None)
    spec = getattr(classic, "spec", None)
    if type(spec).__module__.partition(".")[0] != "gym":
        return None
    return functools.partial(_copy_by_spec, spec, _max_episode_steps(classic), _names(classic))


def _copy_by_spec(spec: Any, steps: int | None, names: list[str], render_mode: str | None) -> Any:
    """Return what `gym.make` makes, without the outer layers if the original is an inner one.

    Raises:
        ValueError: if no layer has the names of the original, because a spec does not hold the wrappers of the user.
    """
    keywords = {"max_episode_steps": steps, "render_mode": render_mode}
    gym = importlib.import_module("gym")
    # Arguments that are None are left out: older versions of `gym.make` do not know all of them.
    copy = gym.make(spec, **{name: value for name, value in keywords.items() if value is not None})
    layer_like_original = next((layer for layer in layers(copy) if _names(layer) == names), None)
    if layer_like_original is None:
        copy.close()
        raise ValueError(f"it has the layers {', '.join(_names(copy))}, not {', '.join(names)}")
    return layer_like_original


def _names(env: Any) -> list[str]:
    return [name for layer in layers(env) if (name := type(layer).__name__) not in _ADDED_BY_MAKE]


def _max_episode_steps(env: Any) -> int | None:
    """Return the limit of an episode; the argument `max_episode_steps` of `gym.make` is not part of the spec."""
    limits = (getattr(layer, "__dict__", {}).get("_max_episode_steps") for layer in layers(env))
    return next((limit for limit in limits if limit is not None), None)

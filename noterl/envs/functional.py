"""Environments that are pure functions of JAX, and the interfaces of gymnasium around them.

On the JAX backend, most agents run such an environment on the device, together with the updates. Everywhere else, the
classes of this module step the environment with NumPy's interface. JAX is imported when such an environment is used.
Without JAX, the environment can be made and described, but not stepped.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from noterl.envs.observation import at, fit_dtype
from noterl.envs.spaces import is_space, show
from noterl.utils.checks import check_positive
from noterl.utils.optional import require

# reset(key) -> (observation, state)
Reset = Callable[[Any], tuple[Any, Any]]
# step(key, state, action) -> (observation, state, reward, terminated, truncated); it does not reset the environment
Step = Callable[[Any, Any, Any], tuple[Any, Any, Any, Any, Any]]


class Functions:
    """The two functions of an environment, the spaces, and the compiled functions for the NumPy interface.

    `functional` makes one, which the environment and all its copies share.

    Args:
        reset: see `functional`.
        step: see `functional`.
        observation_space: see `functional`.
        action_space: see `functional`.
        name: the name of the environment in messages.

    Raises:
        ValueError: if a function does not return what `functional` documents.
    """

    def __init__(
        self, reset: Reset, step: Step, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], name: str
    ) -> None:
        self.reset: Reset = reset
        self.step: Step = step
        self.name: str = name
        self.observation_space: Any = observation_space
        self.action_space: Any = action_space
        # Without JAX, shapes are known only once the functions have run.
        if importlib.util.find_spec("jax") is not None:
            self._check()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without compiled functions, for worker processes."""
        compiled = ("reset_one", "step_one", "reset_all", "step_all")
        return {name: value for name, value in vars(self).items() if name not in compiled}

    def _check(self) -> None:
        """Trace both functions; raise a ValueError if their results do not fit the spaces or each other."""
        jax = import_jax()
        key = np.zeros(2, np.uint32)
        # `eval_shape` traces without computing, so a slow environment costs nothing here.
        observation, state = jax.eval_shape(self.reset, key)
        action = jax.tree.map(np.asarray, self.action_space.sample())
        # The observation, the state, and the numbers reward, terminated and truncated.
        results = jax.eval_shape(self.step, key, state, action)
        if not isinstance(results, tuple) or len(results) != 5:
            raise ValueError(
                f"step of {self.name} must return (observation, state, reward, terminated, truncated), got {results!r}"
            )
        for source, example in (("reset", observation), ("step", results[0])):
            if not _fits(example, self.observation_space):
                raise ValueError(
                    f"{source} of {self.name} must return observations of {show(self.observation_space)}, got {example}"
                )
        for name, value in zip(("reward", "terminated", "truncated"), results[2:], strict=True):
            if value.shape != ():
                raise ValueError(f"step of {self.name} must return a scalar {name}, got the shape {value.shape}")
            if name != "reward" and jax.numpy.issubdtype(value.dtype, jax.numpy.floating):
                raise ValueError(f"step of {self.name} must return a bool as {name}, got {value.dtype}")
        # A compiled loop needs a state of the same structure in each step.
        ours = jax.tree.structure(state)
        theirs = jax.tree.structure(results[1])
        if ours != theirs:
            raise ValueError(f"step of {self.name} must return a state like that of reset, {ours}, got {theirs}")
        for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(results[1]), strict=True):
            # The device keeps the dtypes of `reset`: fractions and large numbers would be lost.
            is_cut = old.dtype != new.dtype and jax.numpy.promote_types(old.dtype, new.dtype) != old.dtype
            if old.shape != new.shape or is_cut:
                raise ValueError(
                    f"step of {self.name} must return a state with the shapes and dtypes of that of reset, got {new} "
                    f"for {old}"
                )

    @functools.cached_property
    def reset_one(self) -> Reset:
        """`reset`, compiled."""
        return import_jax().jit(self.reset)

    @functools.cached_property
    def step_one(self) -> Step:
        """`step`, compiled."""
        return import_jax().jit(self.step)

    @functools.cached_property
    def reset_all(self) -> Reset:
        """`reset` of N environments, for keys `[N, 2]`."""
        return import_jax().jit(import_jax().vmap(self.reset))

    @functools.cached_property
    def step_all(self) -> Callable[..., tuple[Any, ...]]:
        """A step of N environments; environments whose episode ends are reset.

        The function maps keys `[2, N, 2]`, states and actions to (final observations, observations, states, reward,
        terminated, truncated).
        """
        jax = import_jax()

        def step(keys: Any, states: Any, actions: Any) -> tuple[Any, ...]:
            final, states, reward, terminated, truncated = jax.vmap(self.step)(keys[0], states, actions)
            # All lanes are reset and the results of most are dropped: compiled code has no branch per lane.
            observations, states = jax.tree.map(
                functools.partial(select, terminated | truncated), jax.vmap(self.reset)(keys[1]), (final, states)
            )
            return final, observations, states, reward, terminated, truncated

        return jax.jit(step)


class FunctionalEnv(gymnasium.Env[Any, Any]):
    """One environment of pure functions, with gymnasium's interface.

    The keys come from `np_random`, so a seed determines the episode, on every backend.

    Args:
        functions: the functions, which environments share.

    Attributes:
        functions: the functions.
    """

    def __init__(self, functions: Functions) -> None:
        self.functions = functions
        self.observation_space: Any = functions.observation_space
        self.action_space: Any = functions.action_space
        self._state: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        observation, self._state = self.functions.reset_one(new_keys(self.np_random))
        return to_numpy(observation, self.observation_space), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action."""
        observation, self._state, reward, *ends = self.functions.step_one(new_keys(self.np_random), self._state, action)
        terminated, truncated = map(bool, ends)
        return to_numpy(observation, self.observation_space), float(reward), terminated, truncated, {}

    def copy(self, render_mode: str | None = None) -> FunctionalEnv:
        """Return another environment with the same functions; there is nothing to render."""
        return FunctionalEnv(self.functions)

    def get_state(self) -> dict[str, Any]:
        """Return the arrays of the state, in the order of JAX's pytrees."""
        return {"leaves": flatten(self._state)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of `get_state`; call `reset` first.

        Raises:
            ValueError: if the state is of another environment.
        """
        self._state = unflatten(self._state, state["leaves"])

    def __str__(self) -> str:
        return self.functions.name


class FunctionalVectorEnv(VectorEnv):
    """N environments of pure functions, stepped by one compiled call; an episode that ends is reset in the same step.

    Args:
        functions: the functions.
        num_envs: N.
    """

    def __init__(self, functions: Functions, num_envs: int) -> None:
        self.functions: Functions = functions
        self.num_envs: int = num_envs
        self.metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space: Any = functions.observation_space
        self.single_action_space: Any = functions.action_space
        self.observation_space: Any = batch_space(self.single_observation_space, num_envs)
        self.action_space: Any = batch_space(self.single_action_space, num_envs)
        self._states: Any = None

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every environment."""
        super().reset(seed=seed)
        observations, self._states = self.functions.reset_all(new_keys(self.np_random, self.num_envs))
        return to_numpy(observations, self.single_observation_space), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take an action in every environment."""
        keys = new_keys(self.np_random, 2, self.num_envs)
        final, observations, self._states, *results = self.functions.step_all(keys, self._states, actions)
        reward, terminated, truncated = map(np.asarray, results)
        space = self.single_observation_space
        final = to_numpy(final, space)
        observations = to_numpy(observations, space)
        # gymnasium's layout of `final_obs`: an array of objects, None where the episode goes on.
        last = np.full(self.num_envs, None)
        for lane in np.flatnonzero(terminated | truncated).tolist():
            last[lane] = at(final, lane)
        return observations, reward.astype(np.float64), terminated, truncated, {"final_obs": last}


def functional(
    reset: Reset,
    step: Step,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    *,
    max_episode_steps: int | None = None,
    name: str = "the functional environment",
) -> FunctionalEnv:
    """Return an environment of two pure functions of JAX, for the argument `env` of agents.

    `step` need neither reset the environment nor count steps. A key is an array of two uint32 numbers, as of
    `jax.random.PRNGKey`, for all functions of `jax.random`.

    Args:
        reset: `reset(key) -> (observation, state)`. The state is any pytree of arrays.
            `step` returns a state with the same shapes and dtypes.
        step: `step(key, state, action) -> (observation, state, reward, terminated, truncated)`, all of one environment.
            The observation is that after the action, also at the end of an episode.
        observation_space: of one environment.
        action_space: of one environment.
        max_episode_steps: an episode is truncated after this number of steps; None for no limit beside the limit of
            `step`.
        name: the name in messages.

    Raises:
        ValueError: if an argument is not one of these, or a function returns something else.

    Example:
    >>> import numpy as np
    >>> from gymnasium.spaces import Box, Discrete
    >>> from noterl.envs import functional
    >>> def reset(key):
    ...     return np.zeros(1, "float32"), np.zeros(1, "float32")
    >>> def step(key, state, action):
    ...     state = state + (action - 0.5)
    ...     return state, state, -(state[0] ** 2), abs(state[0]) > 5, False
    >>> env = functional(reset, step, Box(-9, 9, (1,)), Discrete(2), max_episode_steps=100)
    >>> env.observation_space
    Box(-9.0, 9.0, (1,), float32)
    """
    for argument, value in (("reset", reset), ("step", step)):
        if not callable(value):
            raise ValueError(f"{argument} must be a function, got {value!r}")
    for argument, space in (("observation_space", observation_space), ("action_space", action_space)):
        if not is_space(space):
            raise ValueError(f"{argument} must be a space of gymnasium, got {show(space)}")
    functions = Functions(reset, step, observation_space, action_space, name)  # checks these two functions
    if check_positive("max_episode_steps", max_episode_steps, none=True) is not None:
        functions.reset, functions.step = _limited(reset, step, int(max_episode_steps or 0))
    return FunctionalEnv(functions)


def select(mask: Any, first: Any, second: Any) -> Any:
    """Return the rows `[N, ...]` of `first` where `mask` `[N]` is true, else of `second`; arrays of JAX."""
    # The mask gets axes of size 1, so that it broadcasts over each row.
    return import_jax().numpy.where(mask.reshape(mask.shape + (1,) * (first.ndim - mask.ndim)), first, second)


def new_keys(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Return random keys of JAX, uint32 `[*shape, 2]`."""
    return generator.integers(2**32, size=(*shape, 2), dtype=np.uint32)


@functools.cache
def import_jax() -> Any:
    """Import and return JAX.

    Raises:
        ImportError: if JAX is not installed.
    """
    return require("jax", "jax", "an environment of JAX")


def flatten(tree: Any) -> list[np.ndarray]:
    """Return copies of the arrays of a pytree as arrays of NumPy; of a typed key of JAX, the key data."""
    return [np.array(_data(leaf)) for leaf in import_jax().tree.leaves(tree)]


def unflatten(like: Any, arrays: list[Any]) -> Any:
    """Return the pytree of the structure of `like` with the arrays of `flatten`.

    Raises:
        ValueError: if the number of arrays, a shape or a dtype differs.
    """
    jax = import_jax()
    model = jax.tree.leaves(like)
    ours, theirs = ([(np.shape(leaf), np.dtype(leaf.dtype)) for leaf in map(_data, tree)] for tree in (model, arrays))
    if ours != theirs:
        raise ValueError(f"the state must have the shapes and dtypes {ours}, got {theirs}")
    leaves = [
        jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf)) if _is_key(leaf) else array
        for leaf, array in zip(model, arrays, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _data(leaf: Any) -> Any:
    """Return a leaf as an array; of a typed key, the key data."""
    if _is_key(leaf):
        return import_jax().random.key_data(leaf)
    return leaf if hasattr(leaf, "dtype") else np.asarray(leaf)


def _is_key(leaf: Any) -> bool:
    jax = import_jax()
    return hasattr(leaf, "dtype") and bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def to_numpy(observation: Any, space: spaces.Space[Any]) -> Any:
    """Return an observation, or a batch of observations, as arrays of NumPy: one, or a dict of arrays."""
    if isinstance(space, spaces.Dict):
        return {name: to_numpy(observation[name], part) for name, part in space.spaces.items()}
    return np.asarray(fit_dtype(space, np.asarray(observation)), space.dtype)


def _fits(found: Any, space: spaces.Space[Any]) -> bool:
    """Return whether an observation has the shapes of the space, and no floats where the space has integers."""
    if isinstance(space, spaces.Dict):
        return isinstance(found, dict) and all(
            name in found and _fits(found[name], part) for name, part in space.spaces.items()
        )
    loses_fractions = np.dtype(getattr(found, "dtype", None)).kind == "f" and np.dtype(space.dtype).kind != "f"
    return getattr(found, "shape", None) == (space.shape or ()) and not loses_fractions


def _limited(reset: Reset, step: Step, limit: int) -> tuple[Reset, Step]:
    """Return the functions with a time limit; the state then counts the steps of the episode."""

    def limited_reset(key: Any) -> tuple[Any, Any]:
        observation, state = reset(key)
        # NumPy's int32, so that the state has the same dtype in each step.
        return observation, (state, np.int32(0))

    def limited_step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        inner, steps = state
        observation, inner, reward, terminated, truncated = step(key, inner, action)
        return observation, (inner, steps + np.int32(1)), reward, terminated, truncated | (steps + 1 >= limit)

    return limited_reset, limited_step

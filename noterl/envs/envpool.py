"""`EnvPool`: environments of the package envpool, stepped by the C++ threads of the package."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from noterl.envs.rewards import UNCLIPPED_REWARD
from noterl.envs.spaces import show
from noterl.envs.vectorized import VectorMaker
from noterl.registry import register
from noterl.utils.optional import require
from noterl.utils.words import explain_name


@register
class EnvPool(VectorMaker):
    """An environment of EnvPool; `env="envpool:Pong-v5"` is `env=noterl.envs.EnvPool("Pong-v5")`.

    Args:
        task: EnvPool's id.
        options: arguments of the task for `envpool.make`, such as `reward_clip=True`. Logs and
            evaluations then show the rewards of the game. With `episodic_life=True`, evaluations play whole games.

    Raises:
        ValueError: if EnvPool has no such task.
        ImportError: if the extra `envpool` is not installed.
    """

    def __init__(self, task: str, **options: Any) -> None:
        envpool = require("envpool", "envpool", "noterl.envs.EnvPool")
        tasks = envpool.list_all_envs()
        if task not in tasks:
            nearest = explain_name(str(task), tasks) if isinstance(task, str) else ""
            # With a long list of similar names, the function is shorter than the names.
            advice = nearest if len(nearest) < 200 else "envpool.list_all_envs() returns its tasks"
            raise ValueError(f"task must be the id of an environment of EnvPool, got {show(repr(task))}: {advice}")
        self.task: str = task
        self._arguments = options

    def make_vector(self, num_envs: int) -> EnvPoolVector:
        """Return a vector environment in the autoreset mode NEXT_STEP."""
        return EnvPoolVector(self.task, num_envs, self._arguments)

    def make_single(self, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
        """Return one environment, without rendering."""
        # Evaluations show the rewards and episodes of the game, so training's options are switched off.
        training: dict[str, Any] = {name: False for name in ("reward_clip", "episodic_life") if name in self._arguments}
        return SingleLane(EnvPoolVector(self.task, 1, {**self._arguments, **training}))


class EnvPoolVector(VectorEnv[Any, Any, Any]):
    """A pool of EnvPool with gymnasium's interface. `reset(seed=)` makes a new pool, which is how EnvPool takes seeds.

    Args:
        task: EnvPool's id.
        num_envs: the number of lanes, N.
        options: further arguments of `envpool.make`.

    Raises:
        ValueError: if the task does not accept an option.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 as gymnasium declares it

    def __init__(self, task: str, num_envs: int, options: dict[str, Any]) -> None:
        self._task = task
        self.num_envs: int = num_envs
        self._options = options
        self._pool = self._make(0)
        self.single_observation_space: Any = self._pool.observation_space
        self.single_action_space: Any = self._pool.action_space
        self.observation_space: Any = batch_space(self.single_observation_space, num_envs)
        self.action_space: Any = batch_space(self.single_action_space, num_envs)
        # EnvPool requires int32 for discrete actions, and gymnasium's spaces give int64.
        self._action_dtype = np.int32 if isinstance(self.single_action_space, gymnasium.spaces.Discrete) else None

    def _make(self, seed: int) -> Any:
        import envpool

        options = {"env_type": "gymnasium", "num_envs": self.num_envs, "seed": seed, **self._options}
        try:
            with warnings.catch_warnings():  # the bounds of its spaces, which it makes once, are rounded to float32
                warnings.simplefilter("ignore", UserWarning)
                pool = envpool.make(self._task, **options)
                _ = pool.observation_space, pool.action_space
            return pool
        except TypeError as error:
            raise ValueError(
                f"env: the task {self._task} of EnvPool does not accept {self._options}: {error}"
            ) from error

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in each lane; with a seed, in a new pool."""
        if isinstance(seed, list):
            raise ValueError(f"seed must be an int or None for a pool of EnvPool, got {seed}")
        if seed is not None:
            self.close_extras()
            # EnvPool takes a seed as an int of 32 bits with a sign.
            self._pool = self._make(int(seed) % 2**31)
        observations, info = self._pool.reset()
        return observations, _info(info)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all lanes; the step after the end of an episode resets the lane."""
        typed = np.asarray(actions) if self._action_dtype is None else np.asarray(actions).astype(self._action_dtype)
        observations, rewards, terminated, truncated, info = self._pool.step(typed)
        lane_info = _info(info)
        if self._options.get("reward_clip"):
            lane_info[UNCLIPPED_REWARD] = np.asarray(info["reward"], np.float64)
        return observations, np.asarray(rewards, np.float64), terminated, truncated, lane_info

    def close_extras(self, **kwargs: Any) -> None:
        """End the threads of the pool."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class SingleLane(gymnasium.Env[Any, Any]):
    """The only lane of a vector environment, as an environment.

    Args:
        vector: a vector environment of one lane, in the autoreset mode NEXT_STEP.
    """

    def __init__(self, vector: VectorEnv[Any, Any, Any]) -> None:
        self._vector = vector
        self.observation_space: Any = vector.single_observation_space
        self.action_space: Any = vector.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        if seed is None:
            # Without a seed, `reset` of the pool would continue the pool's generators, not those of this environment.
            seed = int(self.np_random.integers(2**31))
        observations, info = self._vector.reset(seed=seed)
        return _first(observations), {name: value[0] for name, value in info.items()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the lane."""
        observations, rewards, terminated, truncated, info = self._vector.step(np.asarray(action)[None])
        named = {name: value[0] for name, value in info.items()}
        return _first(observations), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), named

    def close(self) -> None:
        """Close the vector environment."""
        self._vector.close()


def _first(observations: Any) -> Any:
    return {name: part[0] for name, part in observations.items()} if isinstance(observations, dict) else observations[0]


def _info(info: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of EnvPool's info that have one value per lane."""
    return {name: value for name, value in info.items() if isinstance(value, np.ndarray)}

"""Goal environments that are small enough for tests and examples.

An observation is a dict with "observation", "achieved_goal" and "desired_goal". Rewards depend only on the achieved and
the desired goal, given for one transition or a batch `[n, ...]`, so `noterl.replay.Hindsight` can relabel the rewards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.envs.tasks.task import Task
from noterl.utils.checks import check_positive

Array = np.ndarray[Any, Any]
Observation = dict[str, Array]


class GoalEnv(Task):
    """Base class: each step has the reward -1, except the one that reaches the goal, which has 0 and ends the episode.

    A subclass sets `self.state` and `self.goal` in `_begin`, changes the state in `_move`, and compares goals in
    `_reached`. The achieved goal is the state.

    Args:
        state_space: of states and goals.
        limit: the number of steps after which an episode is truncated.
        arguments: see `Task`.
    """

    saved = ("state", "goal", "step_number")
    state: Array
    goal: Array

    def __init__(self, state_space: spaces.Space[Any], limit: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.max_steps: int = check_positive("max_steps", limit)
        self.step_number: int = 0
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space: spaces.Space[Any] = spaces.Dict(dict.fromkeys(names, state_space))

    def _begin(self) -> None:
        self.step_number = 0

    def _info(self) -> dict[str, Any]:
        return {"is_success": self._reached(self.state, self.goal)}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Change the state; `info["is_success"]` is whether the goal is reached."""
        self._move(action)
        self.step_number += 1
        reached = self._reached(self.state, self.goal)
        is_late = self.step_number >= self.max_steps
        return self._observe(), float(reached) - 1.0, reached, is_late, {"is_success": reached}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Return 0 if the goal is reached, else -1: a float, or float64 `[n]` for goals `[n, ...]`."""
        return self.compute_terminated(achieved_goal, desired_goal, info) - 1.0

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Return whether the goal is reached: a bool, or `[n]` for goals `[n, ...]`."""
        return self._reached(np.asarray(achieved_goal), np.asarray(desired_goal))

    def _move(self, action: Any) -> None:
        raise NotImplementedError

    def _reached(self, achieved: Array, desired: Array) -> Any:
        """Return whether goals are reached: a bool, or `[n]` for goals `[n, ...]`."""
        raise NotImplementedError

    def _observe(self) -> Observation:
        # Copies, because the caller may keep and change them.
        state = self.state
        return {"observation": state.copy(), "achieved_goal": state.copy(), "desired_goal": self.goal.copy()}


class Reach2D(GoalEnv):
    """A point in a 5x5 plane that must move to a distant goal.

    The point starts at the origin, which is a corner; the goal is 4±0.5 on each axis. The action is a displacement
    within ±1 on each axis; the point stops at the edges of the plane. The goal is reached within a distance of 0.15.

    Args:
        max_steps: the number of steps after which an episode is truncated.

    Raises:
        ValueError: if `max_steps` is not a positive int.

    Example:
    >>> import numpy as np
    >>> from noterl.envs import Reach2D
    >>> env = Reach2D()
    >>> observation, _ = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step(np.array([1.0, 0.5], "float32"))
    >>> observation["achieved_goal"].tolist(), reward, terminated
    ([1.0, 0.5], -1.0, False)
    >>> env.compute_reward(observation["achieved_goal"], np.array([1.1, 0.5]), {})
    0.0
    """

    side: float = 5.0
    threshold: float = 0.15

    def __init__(self, max_steps: int = 50) -> None:
        super().__init__(spaces.Box(0.0, self.side, (2,), np.float32), max_steps, max_steps=max_steps)
        self.action_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def _begin(self) -> None:
        super()._begin()
        self.state: np.ndarray = np.zeros(2, np.float32)
        self.goal: np.ndarray = self.np_random.uniform(3.5, 4.5, 2).astype(np.float32)

    def _move(self, action: Any) -> None:
        # For two numbers, `minimum` and `maximum` take a fraction of the time of `clip`.
        way = np.minimum(np.maximum(np.asarray(action, np.float32), -1.0), 1.0)
        self.state = np.minimum(np.maximum(self.state + way, 0.0), self.side)

    def _reached(self, achieved: Array, desired: Array) -> Any:
        away = achieved - desired
        # The square root would cost time and change no comparison.
        near = (away * away).sum(-1) < self.threshold**2
        return bool(near) if near.ndim == 0 else near


class BitFlip(GoalEnv):
    """`n` bits that must equal a goal; each action flips one bit.

    From Andrychowicz et al., "Hindsight experience replay" (2017), section 3.1. Initial bits and goal are uniformly
    random. The reward is -1 while bits and goal differ, and an episode has at most `n` steps. Here an episode also ends
    when bits and goal are equal.

    Args:
        n: the number of bits and of actions.

    Raises:
        ValueError: if `n` is not a positive int.

    Example:
    >>> from noterl.envs import BitFlip
    >>> env = BitFlip(4)
    >>> before, _ = env.reset(seed=0)
    >>> after, reward, terminated, truncated, info = env.step(2)
    >>> (after["observation"] - before["observation"]).nonzero()[0].tolist()
    [2]
    """

    def __init__(self, n: int = 15) -> None:
        super().__init__(spaces.MultiBinary(check_positive("n", n)), n, n=n)
        self.action_space: Any = spaces.Discrete(n)

    def _begin(self) -> None:
        super()._begin()
        self.state: np.ndarray = self.np_random.integers(2, size=self.max_steps, dtype=np.int8)
        self.goal: np.ndarray = self.np_random.integers(2, size=self.max_steps, dtype=np.int8)

    def _move(self, action: Any) -> None:
        self.state[action] ^= 1

    def _reached(self, achieved: Array, desired: Array) -> Any:
        same = achieved == desired
        if same.ndim == 2:  # `all` over the first axis is several times faster than over a short last one
            return same.T.copy().all(0)
        return same.all(-1) if same.ndim > 2 else bool(same.all())

"""Test doubles: a clock, and small environments with known values.

They need only NumPy and gymnasium; environments of classic gym are plain objects, because gym is not installed.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class FakeClock:
    """Replaces `time.perf_counter`. Only `sleep` advances it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += seconds


class CountingEnv(gymnasium.Env):
    """Counts episodes and steps: the observation is [episode, step], both from 0; the reward is the step number.

    Episodes have `length` steps and end by termination, or by truncation with `truncate`.
    """

    def __init__(self, length: int = 5, truncate: bool = False) -> None:
        self.length, self.truncate = length, truncate
        self.observation_space = spaces.Box(0.0, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.episode, self.step_number, self.closed = -1, 0, 0

    def _observation(self) -> np.ndarray:
        return np.array([self.episode, self.step_number], np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.episode, self.step_number = self.episode + 1, 0
        return self._observation(), {}

    def step(self, action):
        assert action in (0, 1), action
        self.step_number += 1
        over = self.step_number >= self.length
        return self._observation(), float(self.step_number), over and not self.truncate, over and self.truncate, {}

    def close(self) -> None:
        self.closed += 1


class RandomWalkEnv(gymnasium.Env):
    """A point on a line, moved by the action and by seeded noise. The observation is [position, last noise].

    It terminates beyond `limit` and is truncated after `length` steps.
    """

    def __init__(self, limit: float = 3.0, length: int = 20) -> None:
        self.limit, self.length = limit, length
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.position, self.noise, self.steps = 0.0, 0.0, 0

    def _observation(self) -> np.ndarray:
        return np.array([self.position, self.noise], np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.position, self.noise, self.steps = float(self.np_random.normal()), 0.0, 0
        return self._observation(), {}

    def step(self, action):
        self.noise = float(self.np_random.normal(scale=0.5))
        self.position += float(action[0]) + self.noise
        self.steps += 1
        terminated, truncated = abs(self.position) > self.limit, self.steps >= self.length
        return self._observation(), -abs(self.position), terminated, truncated, {}


class BitsEnv(gymnasium.Env):
    """The reward is the share of the action's bits that equal those of the observation; an episode has 8 steps."""

    def __init__(self, bits: int = 3) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (bits,), np.float32)
        self.action_space = spaces.MultiBinary(bits)
        self.steps = 0

    def _observation(self) -> np.ndarray:
        self.bits = self.np_random.integers(2, size=self.action_space.shape).astype(np.float32)
        return self.bits

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = float(np.mean(action == self.bits))
        self.steps += 1
        return self._observation(), reward, self.steps == 8, False, {}


class StatefulEnv(RandomWalkEnv):
    """A random walk with `get_state` and `set_state`. Its noise comes from gymnasium's `np_random`."""

    def __init__(self, limit: float = 3.0, length: int = 20) -> None:
        super().__init__(limit, length)
        self.set_calls = 0

    def get_state(self) -> dict[str, Any]:
        return {"position": self.position, "noise": self.noise, "steps": self.steps}

    def set_state(self, state: dict[str, Any]) -> None:
        self.position, self.noise, self.steps = state["position"], state["noise"], state["steps"]
        self.set_calls += 1


class ImageEnv(gymnasium.Env):
    """A uint8 image [H, W, C] with one white pixel, which the action moves. Its start depends on the seed."""

    def __init__(self, shape: tuple[int, int, int] = (12, 10, 3), length: int = 8) -> None:
        self.length = length
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(4)
        self.place, self.steps = 0, 0

    def _observation(self) -> np.ndarray:
        image = np.zeros(self.observation_space.shape, np.uint8)
        image.reshape(-1, image.shape[-1])[self.place] = 255
        return image

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        height, width, _ = self.observation_space.shape
        self.place, self.steps = int(self.np_random.integers(height * width)), 0
        return self._observation(), {}

    def step(self, action):
        height, width, _ = self.observation_space.shape
        self.place = (self.place + (1, -1, width, -width)[action]) % (height * width)
        self.steps += 1
        return self._observation(), float(action == 0), False, self.steps >= self.length, {}


class BranchingEnv(gymnasium.Env):
    """A deterministic environment whose actions decide whether it terminates, is truncated, or both at once.

    The observation is [episode, step, sum of the actions]. It terminates when the sum reaches `goal` and is truncated
    after `length` steps. The reward is 100 times the step plus the action.
    """

    def __init__(self, goal: int = 6, length: int = 5) -> None:
        self.goal, self.length = goal, length
        self.observation_space = spaces.Box(0.0, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.episode, self.step_number, self.total = -1, 0, 0

    def _observation(self) -> np.ndarray:
        return np.array([self.episode, self.step_number, self.total], np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.episode, self.step_number, self.total = self.episode + 1, 0, 0
        return self._observation(), {}

    def step(self, action):
        self.step_number, self.total = self.step_number + 1, self.total + int(action)
        terminated, truncated = self.total >= self.goal, self.step_number >= self.length
        return self._observation(), 100.0 * self.step_number + int(action), terminated, truncated, {}


class TogetherVectorEnv(gymnasium.vector.SyncVectorEnv):
    """A vector environment that noterl steps as one; it splits only gymnasium's own `SyncVectorEnv` into lanes."""


class JoinedFinals(TogetherVectorEnv):
    """Returns the final observations of a Dict as one dict of arrays, instead of an array of dicts."""

    def step(self, actions: Any) -> Any:
        *results, info = super().step(actions)
        if "final_obs" in info:
            joined = _joined([last for last in info["final_obs"] if last is not None], info["_final_obs"])
            info = {**info, "final_obs": joined}
        return *results, info


def _joined(finals: list[Any], over: np.ndarray) -> Any:
    if isinstance(finals[0], dict):
        return {name: _joined([last[name] for last in finals], over) for name in finals[0]}
    joined = np.zeros((len(over), *np.shape(finals[0])), np.asarray(finals[0]).dtype)
    joined[over] = finals
    return joined


def branching_vector(num_envs: int, mode: str, goal: int = 6, length: int = 5) -> TogetherVectorEnv:
    """Return `num_envs` of `BranchingEnv` in one vector environment; mode is "NextStep", "SameStep" or "Disabled"."""
    return TogetherVectorEnv([lambda: BranchingEnv(goal, length)] * num_envs, autoreset_mode=mode)


class EnvironmentBroke(RuntimeError):
    """Raised by `RaisingEnv`."""


class RaisingEnv(CountingEnv):
    """Raises `EnvironmentBroke` in its step number `at` (from 1), or in its reset number `at` with `on="reset"`."""

    def __init__(self, at: int = 3, on: str = "step", length: int = 5) -> None:
        super().__init__(length)
        self.at, self.on, self.calls = at, on, {"step": 0, "reset": 0}

    def _count(self, call: str) -> None:
        self.calls[call] += 1
        if call == self.on and self.calls[call] == self.at:
            raise EnvironmentBroke(f"{call} {self.at} broke")

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        self._count("reset")
        return super().reset(seed=seed)

    def step(self, action):
        self._count("step")
        return super().step(action)


class NotANumberEnv(CountingEnv):
    """Returns NaN as `where` ("observation" or "reward") in its step number `at` (from 1)."""

    def __init__(self, at: int = 3, where: str = "observation", length: int = 5) -> None:
        super().__init__(length)
        self.at, self.where, self.lifetime = at, where, 0

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        self.lifetime += 1
        if self.lifetime == self.at:
            observation = observation * np.nan if self.where == "observation" else observation
            reward = float("nan") if self.where == "reward" else reward
        return observation, reward, terminated, truncated, info


class Box:
    """A space of classic gym, recognized by the name of its class and its attributes."""

    def __init__(self, low: float, high: float, shape: tuple[int, ...], dtype: type = np.float32) -> None:
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)
        self.shape, self.dtype = shape, np.dtype(dtype)


class Discrete:
    """A discrete space of classic gym."""

    def __init__(self, n: int) -> None:
        self.n = n


class Gym021Env:
    """Classic gym 0.21: `seed()`, `reset()` -> observation, `step()` -> 4 values.

    The observation is [seed, step]. It ends after `length` steps; with `truncate`, `info` reports a time limit.
    """

    metadata = {"render.modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, length: int = 4, truncate: bool = False) -> None:
        self.length, self.truncate = length, truncate
        self.observation_space, self.action_space = Box(-np.inf, np.inf, (2,)), Discrete(2)
        self.seeded, self.steps, self.closed = -1, 0, 0

    def seed(self, seed: int | None = None) -> list[int | None]:
        self.seeded = seed
        return [seed]

    def reset(self):
        self.steps = 0
        return np.array([self.seeded, 0], np.float32)

    def step(self, action):
        self.steps += 1
        done = self.steps >= self.length
        info = {"TimeLimit.truncated": True} if done and self.truncate else {}
        return np.array([self.seeded, self.steps], np.float32), float(action), done, info

    def render(self, mode: str = "human"):
        return np.full((4, 4, 3), self.steps, np.uint8) if mode == "rgb_array" else None

    def close(self) -> None:
        self.closed += 1


class Gym026Env:
    """Classic gym 0.26: `reset(seed=, options=)` -> 2 values, `step()` -> 5 values. The observation is [seed, step]."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, length: int = 4, truncate: bool = False) -> None:
        self.length, self.truncate, self.render_mode = length, truncate, None
        self.observation_space, self.action_space = Box(-np.inf, np.inf, (2,)), Discrete(2)
        self.seeded, self.steps = -1, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        self.seeded, self.steps = -1 if seed is None else seed, 0
        return np.array([self.seeded, 0], np.float32), {"options": options}

    def step(self, action):
        self.steps += 1
        over = self.steps >= self.length
        observation = np.array([self.seeded, self.steps], np.float32)
        return observation, float(action), over and not self.truncate, over and self.truncate, {"steps": self.steps}


class ListTeam:
    """Two agents whose observations, actions and rewards are lists, as in Note_rl; episodes have three steps.

    `form` is the number of values that `step` returns, 4 or 5. Rewards are the step number, and twice the step number.
    """

    def __init__(self, form: int = 4, truncate: bool = False) -> None:
        self.form, self.truncate = form, truncate
        self.observation_space = [spaces.Box(0.0, 9.0, (2,), np.float32)] * 2
        self.action_space = [spaces.Discrete(3)] * 2
        self.taken: list[list[int]] = []

    def reset(self, seed: int):
        self.number = 0
        return self._observations()

    def step(self, actions):
        assert isinstance(actions, list)
        self.taken.append(actions)
        self.number += 1
        rewards, over = [float(self.number), 2.0 * self.number], self.number >= 3
        if self.form == 4:
            return self._observations(), rewards, [over, over], {"TimeLimit.truncated": over and self.truncate}
        return self._observations(), rewards, over and not self.truncate, over and self.truncate, {}

    def _observations(self):
        return [np.array([agent, self.number], np.float32) for agent in range(2)]


class LeavingTeam:
    """Three agents with PettingZoo's API, whose observations are the step number and whose rewards are 1, 10 and 100.

    The first terminates at step 2. The second is truncated at step 3 and the third at step 4.
    """

    possible_agents = ("first", "second", "third")

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0.0, 9.0, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: dict | None = None):
        self.agents, self.number = list(self.possible_agents), 0
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert list(actions) == self.agents, actions
        self.number += 1
        present = self.agents
        terminated = {agent: agent == "first" and self.number == 2 for agent in present}
        truncated = {agent: self.number == (3 if agent == "second" else 4) for agent in present}
        self.agents = [agent for agent in present if not terminated[agent] and not truncated[agent]]
        rewards = {agent: {"first": 1.0, "second": 10.0, "third": 100.0}[agent] for agent in present}
        return self._observations(present), rewards, terminated, truncated, {agent: {} for agent in present}

    def _observations(self, agents):
        return {agent: np.array([self.number], np.float32) for agent in agents}

"""Environments for tests of worker processes, which import this module."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TransformReward

from noterl.envs import ClipRewards
from tests.support.doubles import RandomWalkEnv


class DiscreteWalkEnv(RandomWalkEnv):
    """A random walk with two actions."""

    def __init__(self, limit: float = 3.0, length: int = 20) -> None:
        super().__init__(limit, length)
        self.action_space = spaces.Discrete(2)

    def step(self, action):
        return super().step([2.0 * action - 1.0])


class IdEnv(gymnasium.Env):
    """Returns the number of its process, or 0, and the seed of its last reset; episodes have 3 steps."""

    def __init__(self, with_process: bool = True) -> None:
        self.process = os.getpid() if with_process else 0
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.seed, self.steps = -1, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        self.seed, self.steps = seed, 0
        return np.array([self.process, self.seed], np.float64), {}

    def step(self, action):
        self.steps += 1
        return np.array([self.process, self.seed], np.float64), 1.0, self.steps == 3, False, {}


class CountEnv(gymnasium.Env):
    """Observes the number of its steps in the episode.

    Args:
        length: of an episode; 0 for episodes without an end.
        reset_seconds: how long a reset takes.
    """

    def __init__(self, length: int = 0, reset_seconds: float = 0.0) -> None:
        self.observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self.reset_seconds, self.steps = length, reset_seconds, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        time.sleep(self.reset_seconds)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, self.steps == self.length, False, {}

    def take(self, data: bytes) -> int:
        """Return the number of bytes that this method has received."""
        return len(data)


class WithModules(gymnasium.Wrapper):
    """Can be asked for the modules of its process.

    Args:
        make: makes the environment.
    """

    def __init__(self, make: Callable[[], gymnasium.Env]) -> None:
        super().__init__(make())

    def modules(self) -> list[str]:
        return list(sys.modules)


class ParentEnv(CountEnv):
    """Starts a process of its own, whose number its observations are, and does not end it."""

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        return super().reset(seed=seed)

    def step(self, action):
        return np.full(1, self.child.pid, np.float32), 1.0, False, False, {}


class ForkingEnv(CountEnv):
    """Forks a process that goes on for a minute, whose number its observations are, and does not end it.

    Args:
        dies_at: the step that kills this process; 0 for none.
    """

    def __init__(self, dies_at: int = 0) -> None:
        super().__init__()
        self.dies_at = dies_at
        self.child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
        self.child.start()

    def step(self, action):
        _, *others = super().step(action)
        if self.steps == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full(1, self.child.pid, np.float32), *others


def make_clipped() -> gymnasium.Env:
    """Make an environment whose rewards of 5 agents see as 1."""
    return ClipRewards(TransformReward(CountEnv(4), lambda reward: 5.0 * reward))


class FaultyEnv(DiscreteWalkEnv):
    """Fails in a step, once for each flag file: it raises, kills its process, or sleeps.

    Args:
        kind: "raise", "disconnect", "kill", "exit", "sleep" or "freeze", which sleeps and stops all other threads.
        step: the step that fails, counted over all episodes.
        flag: path of a file that is created at the failure, with the number of the process; if it exists, nothing
            fails. Empty to fail each time.
    """

    def __init__(self, kind: str, step: int = 5, flag: str = "") -> None:
        super().__init__()
        self.kind, self.fails_at, self.flag, self.total = kind, step, flag, 0

    def step(self, action):
        self.total += 1
        if self.total == self.fails_at and self._is_first():
            self._fail()
        return super().step(action)

    def _is_first(self) -> bool:
        try:
            with open(self.flag, "x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return False
        except FileNotFoundError:  # there is no flag
            return True
        return True

    def _fail(self) -> None:
        if self.kind == "raise":
            raise ZeroDivisionError("the pole is gone")
        if self.kind == "disconnect":
            raise ConnectionResetError("the simulator is gone")
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "exit":
            os._exit(3)
        if self.kind == "freeze":
            ctypes.PyDLL(None).sleep(3600)  # keeps the interpreter's lock
        time.sleep(3600)


class ResettingEnv(DiscreteWalkEnv):
    """Observes the number of its process and of its resets; episodes have 2 steps, and each reset takes a while.

    Args:
        flag: path of a file that does not exist; the first environment to begin its third reset creates it, and kills
            its process.
    """

    def __init__(self, flag: str) -> None:
        super().__init__(np.inf, 2)
        self.flag, self.resets = flag, 0
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        self.resets += 1
        if self.resets == 3:
            try:
                open(self.flag, "x").close()
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                time.sleep(0.5)
        super().reset(seed=seed, options=options)
        return np.array([os.getpid(), self.resets], np.float64), {}

    def step(self, action):
        _, *others = super().step(action)
        return np.array([os.getpid(), self.resets], np.float64), *others


class SlowEnv(DiscreteWalkEnv):
    """Sleeps in each step."""

    def __init__(self, seconds: float = 0.005) -> None:
        super().__init__()
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


class BrokenEnv(DiscreteWalkEnv):
    """Cannot be made in a worker process."""

    def __init__(self, learner: int) -> None:
        super().__init__()
        if os.getpid() != learner:
            raise RuntimeError("no display")


class LevelEnv(DiscreteWalkEnv):
    """Has a level, which `set_level` changes; the reward is the level."""

    def __init__(self, length: int = 20) -> None:
        super().__init__(length=length)
        self.level, self.changes = 0, 0

    def set_level(self, level: int, *, more: int = 0) -> tuple[int, int]:
        self.level, self.changes = level + more, self.changes + 1
        return self.level, os.getpid()

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(self.level), terminated, truncated, info

    def get_lambda(self):
        return threading.Lock()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def hang(self) -> None:
        time.sleep(60)

    def divide(self, value: int) -> float:
        return 1 / value


class SavedLevelEnv(LevelEnv):
    """A `LevelEnv` that restores itself."""

    def get_state(self):
        return {"level": self.level, "position": self.position, "noise": self.noise, "steps": self.steps}

    def set_state(self, state) -> None:
        self.level, self.position = state["level"], state["position"]
        self.noise, self.steps = state["noise"], state["steps"]


class MaskedEnv(DiscreteWalkEnv):
    """Reports a mask, except in every third step, and numbers for the logs."""

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        observation, _ = super().reset(seed=seed)
        return observation, self._info()

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, self._info()

    def _info(self):
        info = {"position": self.position, "text": "x"}
        if self.steps % 3 != 2:
            info |= {"mask": np.array([self.position > 0, True, self.steps % 2 == 0]), "late": self.steps}
        return info


class TextEnv(DiscreteWalkEnv):
    """Reports a text under the key `position`."""

    def step(self, action):
        return *super().step(action)[:4], {"position": "left"}


class UnequalEnv(DiscreteWalkEnv):
    """A random walk without bounds, whose episodes have 4 or 30 steps, by the seed of the environment's first reset."""

    def __init__(self) -> None:
        super().__init__(np.inf, 0)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        if not self.length:
            self.length = 30 if seed is not None and seed % 2 else 4
        return super().reset(seed=seed, options=options)


ACTIONS = 3


class StepNumberEnv(gymnasium.Env):
    """Rewards the action `step number % 3`, counted from `first`; observations show the step number to tests only.

    Episodes have 3 to 8 steps, by the seed. They end by termination if the length is even, otherwise by truncation.
    """

    def __init__(self, first: int = 0) -> None:
        self.observation_space = spaces.Box(0.0, 100.0, (1,), np.float32)
        self.action_space = spaces.Discrete(ACTIONS)
        self.first = first
        self.number = self.length = 0

    def _observation(self) -> np.ndarray:
        return np.array([self.number], np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.number = 0
        self.length = int(self.np_random.integers(3, 9))
        return self._observation(), {}

    def step(self, action):
        reward = float(action == (self.first + self.number) % ACTIONS)
        self.number += 1
        over = self.number == self.length
        is_even = self.length % 2 == 0
        return self._observation(), reward, over and is_even, over and not is_even, {}

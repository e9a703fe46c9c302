"""How many functions and files of the library one step with an update calls: what a reader has to follow."""

from __future__ import annotations

import ast
import statistics
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.learning import learner

pytestmark = pytest.mark.backends("torch")

LIBRARY = str(Path(noterl.__file__).parent)
MOST_FUNCTIONS, MOST_FILES = 150, 38
MOST_METHODS = 30
# Python 3.12 calls no function for these.
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")


class Line(gymnasium.Env):
    """Episodes of 50 steps; the observation is the number of the step."""

    observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        self.number = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.number += 1
        return np.full(2, self.number / 50, np.float32), 1.0, self.number == 50, False, {}


class Hooks(noterl.Callback):
    """Has batch and episode hooks that do nothing."""

    def on_batch_begin(self, batch: int, logs: Any) -> None:
        pass

    def on_batch_end(self, batch: int, logs: Any) -> None:
        pass

    def on_episode_begin(self, episode: int, logs: Any) -> None:
        pass

    def on_episode_end(self, episode: int, logs: Any) -> None:
        pass


class Calls:
    """Records the functions of the library that are called from one step of the environment to the next."""

    def __init__(self) -> None:
        self.ticks: list[set[CodeType]] = []

    def __enter__(self) -> Calls:
        self._before = sys.getprofile()
        sys.setprofile(self._record)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._before)

    def _record(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call":
            return
        if code is Line.step.__code__:
            self.ticks.append(set())
        elif self.ticks and code.co_filename.startswith(LIBRARY) and code.co_name not in COMPREHENSIONS:
            self.ticks[-1].add(code)


def calls_of_updates(**compiled: Any) -> list[set[CodeType]]:
    """Return the functions of each of 100 steps in the middle of episodes, each with one traced update."""
    agent = noterl.DQN(lambda: Line(), hidden=(8,), seed=1)
    agent.compile(batch_size=8, learning_starts=20, update_every=1, updates=1, **compiled)
    agent.fit(steps=200, callbacks=[Hooks()], verbose=0)
    assert agent.trace_counts["update"] == 1
    with Calls() as calls:
        agent.fit(steps=120, callbacks=[Hooks()], verbose=0)
    assert agent.updates == 300 and agent.trace_counts["update"] == 1
    return calls.ticks[10:110]


def test_step_with_an_update_calls_few_functions_in_few_files() -> None:
    ticks = calls_of_updates()
    functions = statistics.median(map(len, ticks))
    files = statistics.median(len({code.co_filename for code in tick}) for tick in ticks)
    assert functions <= MOST_FUNCTIONS and files <= MOST_FILES, (functions, files)


def test_learner_has_few_public_methods() -> None:
    (tree,) = [node for node in ast.parse(Path(learner.__file__).read_text()).body if isinstance(node, ast.ClassDef)]
    methods = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
    assert tree.name == "Learner" and "update" in methods and len(methods) <= MOST_METHODS, methods

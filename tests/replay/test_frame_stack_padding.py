"""Stacks that an environment pads with zeros are refused in the first episodes of `fit`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

import noterl
from noterl.replay import Replay

pytestmark = pytest.mark.backends("torch")


class Short(gymnasium.Env):
    """Frames of ones, twos, ... in episodes of three steps; the first frame is zero in the first `blank` episodes."""

    observation_space, action_space = spaces.Box(0, 99, (2,), np.float32), spaces.Discrete(2)

    def __init__(self, blank: int = 0) -> None:
        self.blank = blank

    def frame(self) -> Any:
        return np.full(2, self.steps + (self.blank < 0), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.blank -= 1
        return self.frame(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.frame(), 1.0, False, self.steps == 3, {}


@pytest.mark.parametrize(("blank", "steps"), [(0, 1), (2, 7)])
def test_fit_refuses_stacks_that_are_padded_with_zeros(blank: int, steps: int) -> None:
    agent = noterl.DQN(lambda: FrameStackObservation(Short(blank), 4, padding_type="zero"), hidden=(4,), seed=1)
    agent.compile(replay=Replay(100, frame_stack=4), learning_starts=1000)
    with pytest.raises(ValueError, match=r"padded with zeros.*padding_type='reset'"):
        agent.fit(steps=30, verbose=0)
    assert agent.steps <= steps


def test_fit_refuses_stacks_that_are_padded_with_a_frame_of_the_user() -> None:
    padding = np.full(2, 7, np.float32)
    agent = noterl.DQN(lambda: FrameStackObservation(Short(), 4, padding_type=padding), hidden=(4,), seed=1)
    agent.compile(replay=Replay(100, frame_stack=4), learning_starts=1000)
    with pytest.raises(ValueError, match=r"padded .*padding_type='reset'"):
        agent.fit(steps=30, verbose=0)


def test_fit_accepts_stacks_that_repeat_the_first_frame() -> None:
    agent = noterl.DQN(lambda: FrameStackObservation(Short(), 4, padding_type="reset"), hidden=(4,), seed=1)
    agent.compile(replay=Replay(100, frame_stack=4), learning_starts=1000)
    agent.fit(steps=30, num_envs=2, verbose=0)
    assert agent.replay.num_sampleable() == 30

"""What a fit with workers keeps after an error, a signal or the end of a process, and how the next fit goes on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.collect import Workers
from noterl.policies import EpsGreedyQPolicy
from noterl.schedules import Linear
from tests.support.pools import pool
from tests.support.worker_envs import LevelEnv

pytestmark = [
    pytest.mark.backends("torch"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:workers. NumPy", "ignore:fit ended without a gradient update"),
]


class Breaking(gymnasium.Env[Any, Any]):
    """Raises an error in its eighth step; an episode has five steps."""

    def __init__(self, shape: tuple[int, ...] = (2,)) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(4)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.low, {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 8:
            raise OSError("the simulator crashed")
        return self.observation_space.low, 1.0, self.steps % 5 == 0, False, {}


class Images(Breaking):
    def __init__(self) -> None:
        super().__init__((8, 8, 1))


def convolutional() -> noterl.DQN:
    """Return an agent whose network NumPy does not run, so that the learner chooses the actions."""
    layers = [keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(4)]
    return noterl.DQN(Images, network=keras.Sequential([keras.Input((8, 8, 1)), *layers]), seed=1)


def test_round_with_a_lost_worker_is_saved_and_goes_on(tmp_path: Path) -> None:
    agent = convolutional()
    with pytest.raises(Exception, match="the simulator crashed"):
        agent.fit(steps=50, num_envs=2, workers=2, verbose=0)
    agent.save(tmp_path / "agent.noterl")
    convolutional().restore(tmp_path / "agent.noterl")
    steps = agent.steps
    agent.fit(steps=4, num_envs=2, workers=2, verbose=0)
    assert agent.steps == steps + 4


def test_lanes_of_a_lost_worker_do_not_repeat_their_seeds() -> None:
    agent = noterl.DQN(Breaking, hidden=(4,), seed=3)
    first = np.random.default_rng()
    first.bit_generator.state = agent.generators("environment/0").bit_generator.state
    with pytest.raises(Exception, match="the simulator crashed"):
        agent.fit(steps=40, workers=1, verbose=0)
    used = first.integers(2**31, size=2).tolist()
    assert int(agent.generators("environment/0").integers(2**31)) not in used


def test_policies_of_workers_need_workers_that_act() -> None:
    agent = convolutional()
    agent.compile(policy=[EpsGreedyQPolicy(0.0), EpsGreedyQPolicy(1.0)])
    with pytest.raises(ValueError, match=r"^workers: .*not lists"):
        agent.fit(steps=4, num_envs=2, workers=2, verbose=0)


def test_schedule_of_the_policy_follows_the_steps_of_workers() -> None:
    agent = noterl.DQN(lambda: LevelEnv(), hidden=(4,), seed=1)
    agent.compile(policy=EpsGreedyQPolicy(Linear(1.0, 0.0, 400)), learning_starts=10)
    agent.fit(steps=100, workers=1, verbose=0)
    assert agent.policy.eps == pytest.approx(1 - 99 / 400)


def test_worker_goes_on_after_a_signal_to_all_processes() -> None:
    with pool(LevelEnv, 2, 2) as made:
        made.rounds(2)
        for pid in made.processes():
            os.kill(pid, signal.SIGTERM)
        assert len(made.rounds(5)) == 10 and not made.lanes.interrupted


def test_interrupt_ends_the_wait_for_an_environment_that_hangs() -> None:
    with pool(LevelEnv, 2, Workers(2, collect=16)) as made:
        made.rounds(1)
        for pid in made.processes():
            os.kill(pid, signal.SIGSTOP)
        started = time.monotonic()

        def check() -> None:
            if time.monotonic() > started + 0.5:
                raise KeyboardInterrupt

        made.lanes.supervisor.check = check
        with pytest.raises(KeyboardInterrupt):
            made.lanes.end(hurry=False)
        assert made.lanes.get_state() is not None

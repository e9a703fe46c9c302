"""Copies of agents, and one sentence each for what agents cannot do."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from tests.support.states import differences

pytestmark = pytest.mark.backends("torch")


class OwnAgent(noterl.DQN):
    """Is not registered."""


def trained(kind: Any = noterl.DQN, env: Any = "CartPole-v1") -> noterl.Agent:
    agent = kind(env, hidden=(4,), seed=1)
    agent.compile(replay=noterl.Replay(200), learning_starts=20, batch_size=8, update_every=2)
    agent.fit(steps=60, verbose=0)
    return agent


@pytest.mark.parametrize(
    ("kind", "env"),
    [
        (noterl.DQN, "CartPole-v1"),
        (OwnAgent, lambda: gymnasium.make("CartPole-v1")),
        (noterl.AlphaZero, noterl.envs.games.TicTacToe()),
        (noterl.MADDPG, lambda: noterl.envs.Signals(symbols=3)),
    ],
)
def test_deepcopy_is_independent_and_continues_alike(kind: Any, env: Any) -> None:
    agent = trained(kind, env)
    other = copy.deepcopy(agent)
    assert type(other) is kind
    assert not differences(agent.get_state(), other.get_state())
    assert repr(other.get_document()["environment"]) == repr(agent.get_document()["environment"])  # of its files
    other.fit(steps=40, verbose=0)
    assert (agent.steps, other.steps) == (60, 100)
    agent.fit(steps=40, verbose=0)
    assert not differences(agent.get_weights(), other.get_weights())


def test_copy_of_an_agent_without_another_environment_acts() -> None:
    class Own(gymnasium.Env):
        observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.zeros(2, np.float32), 1.0, True, False, {}

    agent = trained(env=Own())
    observations = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    assert (copy.deepcopy(agent).act(observations) == agent.act(observations)).all()


@pytest.mark.parametrize("function", [pickle.dumps, copy.copy])
def test_pickling_names_save_and_load(function: Any) -> None:
    with pytest.raises(TypeError, match=r"agent\.save\(path\).*copy\.deepcopy"):
        function(noterl.DQN("CartPole-v1", hidden=(4,), seed=1))


def test_default_dtype_of_torch_is_named() -> None:
    import torch

    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ValueError, match=r"set_default_dtype\(torch\.float32\)"):
            noterl.DQN("CartPole-v1")
    finally:
        torch.set_default_dtype(torch.float32)
    trained()


def test_inference_mode_is_named() -> None:
    import torch

    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    with torch.inference_mode():
        for use in (lambda: agent.fit(steps=40, verbose=0), lambda: noterl.DQN("CartPole-v1")):
            with pytest.raises(ValueError, match=r"torch\.inference_mode"):
                use()
    agent.fit(steps=10, verbose=0)


def test_empty_actions_and_missing_spaces_are_one_sentence() -> None:
    box = spaces.Box(-1, 1, (2,))
    for kind in (noterl.SAC, noterl.PPO, noterl.TD3):
        with pytest.raises(ValueError, match=r"action_space must .*one value"):
            kind((box, spaces.Box(-1, 1, (0,))))

    class Missing(gymnasium.Env):
        action_space = spaces.Discrete(2)

    with pytest.raises(ValueError, match="no observation_space"):
        noterl.DQN(Missing)


def test_rewards_in_a_column_are_one_sentence() -> None:
    from noterl.replay import Hindsight

    class Column(noterl.envs.Reach2D):
        def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
            if np.ndim(achieved_goal) == 1:
                return super().compute_reward(achieved_goal, desired_goal, info)
            return np.zeros((len(achieved_goal), 1))

    agent = noterl.DDPG(Column, hidden=(4,), seed=1)
    agent.compile(replay=noterl.Replay(200, relabel=Hindsight()), learning_starts=60, batch_size=8)
    with pytest.raises(ValueError, match="compute_reward must"):
        agent.fit(steps=120, verbose=0)


def test_backend_that_is_not_installed_is_the_install_line() -> None:
    code = (
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\nimport noterl\nnoterl.DQN"
    )
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert 'pip install "noterl[torch]"' in result.stderr.splitlines()[-1]

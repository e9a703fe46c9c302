"""Fitted Q evaluation: the interval holds the known value of a policy, and the arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.evaluation import fqe
from tests.support.batches import copied, differences

STATES, GAMMA = 4, 0.9
SPACES = {"observation_space": spaces.Discrete(STATES), "action_space": spaces.Discrete(2)}


def step(state: int, action: int, generator: np.random.Generator) -> tuple[int, float, bool]:
    """Action 1 moves right with probability 0.8, action 0 earns a noisy 0.2; the right end earns 1 and terminates."""
    if action == 0:
        return state, 0.2 + 0.1 * generator.normal(), False
    if generator.random() < 0.2:
        return state, 0.0, False
    return (state + 1, 0.0, False) if state + 1 < STATES else (state, 1.0, True)


def chain(episodes: int, seed: int) -> noterl.Dataset:
    """Return episodes of random actions, truncated after 8 steps."""
    generator = np.random.default_rng(seed)
    played: list[tuple[Any, ...]] = []
    for _ in range(episodes):
        observations, actions, rewards, terminated = [0], [], [], False
        while not terminated and len(actions) < 8:
            action = int(generator.integers(2))
            state, reward, terminated = step(observations[-1], action, generator)
            observations.append(state)
            actions.append(action)
            rewards.append(reward)
        played.append((observations, actions, rewards, terminated))
    return noterl.Dataset(*map(list, zip(*played, strict=True)), **SPACES)


def known_value(policy: np.ndarray) -> float:
    """Return the value of state 0, by the linear equations of Bellman."""
    matrix, rewards = np.eye(STATES), np.zeros(STATES)
    for state, action in enumerate(policy):
        if action == 0:
            matrix[state, state] -= GAMMA
            rewards[state] = 0.2
        else:
            matrix[state, state] -= 0.2 * GAMMA
            if state + 1 < STATES:
                matrix[state, state + 1] -= 0.8 * GAMMA
            else:
                rewards[state] = 0.8
    return float(np.linalg.solve(matrix, rewards)[0])


def policy_of(actions: list[int]) -> noterl.Agent:
    """Return an agent that takes these actions in the states."""
    agent = noterl.DQN((SPACES["observation_space"], SPACES["action_space"]), hidden=(4,), gamma=GAMMA, seed=1)
    kernel = np.zeros((STATES, 4), np.float32)
    kernel[:, 0] = actions
    last = np.zeros((4, 2), np.float32)
    last[0] = (-2.0, 0.0)
    noterl.networks.set_weights(agent.q, [kernel, np.zeros(4, np.float32), last, np.array([1.0, 0.0], np.float32)])
    assert agent.act(np.arange(STATES)).tolist() == actions
    return agent


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_interval_holds_the_known_value() -> None:
    """The policy stays in the second state, so that each of its episodes is truncated; the data's policy does not."""
    actions = [1, 0, 1, 1]
    agent, value = policy_of(actions), known_value(np.array(actions))
    before = copied(agent.get_state())
    estimate = fqe(agent, chain(100, seed=3), updates=1_000, bootstrap=6, seed=0)
    assert estimate.low < value < estimate.high
    assert estimate.low < estimate.value < estimate.high
    assert estimate.high - estimate.low < 0.5
    assert differences(before, copied(agent.get_state())) == []


@pytest.mark.backends("torch")
def test_bad_argument_raises_with_its_name() -> None:
    agent, data = policy_of([1, 1, 1, 1]), chain(2, seed=0)
    for arguments in ({"updates": 0}, {"bootstrap": 0}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            fqe(agent, data, **arguments)
    with pytest.raises(ValueError, match="does not hold a data set"):
        fqe(agent, None)
    with pytest.raises(ValueError, match=r"dataset .*two episodes"):
        fqe(agent, chain(1, seed=0), updates=1, bootstrap=1)
    with pytest.raises(ValueError, match=r"dataset .*action_space"):
        fqe(noterl.DQN((spaces.Discrete(STATES), spaces.Discrete(3))), data)
    with pytest.raises(ValueError, match=r"agent .*state_spec"):
        fqe(noterl.DQN((spaces.Discrete(STATES), spaces.Discrete(2)), recurrent="gru"), data)

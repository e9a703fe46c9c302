"""`suggest_workers`: the count from measured costs, and that the agent does not change."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from functools import partial

import pytest

import noterl
from noterl.envs.games import TicTacToe
from noterl.finders import worker_count
from noterl.finders.worker_count import StepCosts
from noterl.policies import EpsGreedyQPolicy
from tests.support.pools import children
from tests.support.states import assert_same_state
from tests.support.worker_envs import SlowEnv

pytestmark = pytest.mark.backends("torch")


@pytest.mark.parametrize(
    ("costs", "cores", "memory", "expected"),
    [
        (StepCosts(10e-6, 100e-6, 50e-6, 1.0, 1), 8, math.inf, 0),  # the learner takes most of the time
        (StepCosts(1e-3, 100e-6, 50e-6, 1.0, 1), 1, math.inf, 0),  # the only core is in use
        (StepCosts(1e-3, 100e-6, 50e-6, 1.0, 1), 2, math.inf, 2),
        (StepCosts(1e-3, 100e-6, 50e-6, 1.0, 1), 4, math.inf, 4),
        (StepCosts(1e-3, 100e-6, 50e-6, 1.0, 10), 4, 35, 3),  # three fit into the memory
        (StepCosts(1e-3, 100e-6, 50e-6, 1.0, 10), 4, 5, 0),
        (StepCosts(5e-3, 0.0, 0.0, 0.25, 1), 2, math.inf, 8),  # it waits, so two cores serve eight workers
        (StepCosts(5e-3, 0.0, 0.0, 0.0, 1), 2, 6, 6),
    ],
)
def test_count_follows_from_the_costs(costs: StepCosts, cores: int, memory: float, expected: int) -> None:
    assert costs.best(cores, memory) == expected


def test_seconds_of_a_step() -> None:
    costs = StepCosts(8.0, 1.0, 0.5, 1.0, 1)
    assert [costs.seconds(count, 4) for count in (0, 1, 2, 4, 9)] == [9.0, 9.5, 5.5, 3.5, 3.5]


def test_slow_environment_is_measured_and_the_agent_does_not_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker_count, "_SECONDS", 0.3)
    ended = subprocess.Popen([sys.executable, "-c", ""])  # it ends, and stays in the list of processes
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    agents = [noterl.DQN(partial(SlowEnv, 0.02), hidden=(4,), seed=3) for _ in range(2)]
    for agent in agents:
        agent.compile(replay=100, batch_size=4, learning_starts=10, update_every=2)
        agent.fit(steps=6, verbose=0)
    assert noterl.suggest_workers(agents[0], memory=1e12) > 2
    output = capsys.readouterr().out
    measured = re.search(r"environment (\d+) µs", output)
    assert measured and int(measured[1]) >= 20_000 and "MiB" in output and "steps/s" in output
    assert ended.wait() == 0 and not children()
    for agent in agents:
        agent.fit(steps=8, verbose=0)
    assert_same_state(*agents)


def test_policies_for_each_worker_are_no_choice_of_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_count, "_SECONDS", 0.05)
    agent = noterl.DQN(partial(SlowEnv, 0.01), hidden=(4,), seed=3)
    agent.compile(policy=[EpsGreedyQPolicy(0.1), EpsGreedyQPolicy(0.5)], replay=100, batch_size=4)
    assert noterl.suggest_workers(agent, memory=1e12) >= 0
    assert len(agent.compile_arguments["policy"]) == 2


def test_agent_that_cannot_use_workers_gets_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker_count, "_SECONDS", 0.05)
    monkeypatch.setattr(worker_count, "_LIMIT", 0.2)
    agent = noterl.AlphaZero(TicTacToe(), simulations=2, hidden=(4,), seed=1)
    assert noterl.suggest_workers(agent) == 0 and "searches" in capsys.readouterr().out


@pytest.mark.parametrize("memory", [0, -1, "all"])
def test_bad_memory_raises(memory: object) -> None:
    with pytest.raises(ValueError, match="memory"):
        noterl.suggest_workers(noterl.DQN("CartPole-v1", hidden=(4,)), memory=memory)


@pytest.mark.backends("jax")
def test_agent_that_trains_on_the_device_needs_no_workers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker_count, "_SECONDS", 0.05)
    agent = noterl.PPO(noterl.envs.functional_cartpole(), hidden=(4,), rollout_steps=16, seed=1)
    agent.compile(batch_size=16)
    assert noterl.suggest_workers(agent) == 0 and "device" in capsys.readouterr().out

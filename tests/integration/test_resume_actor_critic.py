"""DDPG, TD3, SAC and IQN that resume in another process equal uninterrupted runs, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import noterl
from noterl import saving
from noterl.noise import OrnsteinUhlenbeckProcess
from noterl.replay import Prioritized
from tests.support.states import assert_same_state, run_python

LOAD = """
import sys, noterl
for name in ("DDPG", "TD3", "SAC", "IQN"):
    agent = noterl.load(f"{sys.argv[1]}/{name}.noterl")
    agent.fit(steps=26, num_envs=2, verbose=0)
    agent.save(f"{sys.argv[1]}/{name}-resumed.noterl")
"""
# Parts with state: noise, the phase of the delayed policy updates, priorities and the temperature.
CHANGES: dict[str, dict[str, Any]] = {
    "DDPG": {"noise": OrnsteinUhlenbeckProcess(theta=0.15, sigma=0.2, size=1)},
    "TD3": {"replay": noterl.Replay(30)},
    "SAC": {"replay": noterl.Replay(30, sampler=Prioritized())},
    "IQN": {"replay": noterl.Replay(30, n_step=2), "update_every": 1, "updates": 1},  # and random fractions
}


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """Return the final states of each agent: resumed in the middle of a round, and uninterrupted."""
    directory: Path = tmp_path_factory.mktemp("resume")
    uninterrupted = {}
    for name, changes in CHANGES.items():
        agent = getattr(noterl, name)("CartPole-v1" if name == "IQN" else "Pendulum-v1", hidden=(8,), seed=3)
        agent.compile(batch_size=8, learning_starts=10, **changes)
        agent.fit(steps=21, num_envs=2, verbose=0)
        agent.save(directory / f"{name}.noterl")
        assert agent.updates % 2 == 1, "TD3 should resume with an update of the actor"
        agent.fit(steps=26, num_envs=2, verbose=0)
        uninterrupted[name] = agent.get_state()
    run_python(LOAD, directory, PYTHONHASHSEED="1")
    return {name: (saving.read(directory / f"{name}-resumed.noterl")["state"], uninterrupted[name]) for name in CHANGES}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", CHANGES)
def test_resumed_run_equals_an_uninterrupted_one(name: str, states: dict[str, tuple[Any, Any]]) -> None:
    resumed, uninterrupted = states[name]
    assert uninterrupted["counters"]["updates"] > 30
    assert_same_state(resumed, uninterrupted)

"""An agent that is restored without its replay memory refills it before it updates."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import noterl
from noterl.callbacks import LambdaCallback

pytestmark = pytest.mark.backends("torch")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    agent.compile(replay=noterl.Replay(200), learning_starts=50, batch_size=8, update_every=2)
    agent.fit(steps=100, verbose=0)
    file = tmp_path_factory.mktemp("refill") / "agent.noterl"
    agent.save(file, replay=False)
    return file


@pytest.mark.parametrize("arguments", [{}, {"num_envs": 2, "workers": 2}])
def test_updates_wait_for_learning_starts_transitions(path: Path, arguments: Any) -> None:
    agent = noterl.load(path)
    before, stored, random = agent.updates, [], agent._parts.actor.explorer
    step = LambdaCallback(on_batch_begin=lambda batch, logs: stored.append(len(agent.replay)))
    with pytest.warns(RuntimeWarning, match=r"empty after 100 .*learning_starts=50"):
        agent.fit(steps=40, callbacks=[step], verbose=0, **arguments)
    assert (agent.updates, random) == (before, agent._parts.actor.explorer)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        agent.fit(steps=40, callbacks=[step], verbose=0, **arguments)  # the memory is refilled within this fit
    assert 10 <= agent.updates - before <= 16
    assert min(stored) >= 50


def test_updates_wait_beside_a_data_set(path: Path) -> None:
    agent = noterl.load(path)
    before, stored = agent.updates, []
    step = LambdaCallback(on_batch_begin=lambda batch, logs: stored.append(len(agent.replay)))
    data = noterl.Dataset.record(agent, steps=50)
    with pytest.warns(RuntimeWarning, match="until learning_starts=50"):
        agent.fit(steps=60, dataset=data, callbacks=[step], verbose=0)
    assert agent.updates > before and min(stored) >= 50


def test_memory_smaller_than_learning_starts_is_filled(path: Path) -> None:
    agent = noterl.load(path)
    before = agent.updates
    agent.compile(replay=noterl.Replay(30), learning_starts=50, batch_size=8, update_every=2)
    with pytest.warns(RuntimeWarning, match="until learning_starts=30"):
        agent.fit(steps=28, verbose=0)
    assert agent.updates == before
    agent.fit(steps=10, verbose=0)
    assert agent.updates > before


def test_agent_that_was_saved_before_learning_starts_does_not_warn(tmp_path: Path, recwarn: Any) -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    agent.compile(replay=noterl.Replay(200), learning_starts=50, batch_size=8, update_every=2)
    agent.fit(steps=30, verbose=0)
    agent.save(tmp_path / "agent.noterl", replay=False)
    agent = noterl.load(tmp_path / "agent.noterl")
    agent.fit(steps=40, verbose=0)
    assert agent.updates == 10
    assert not [each for each in recwarn if "replay memory is empty" in str(each.message)]

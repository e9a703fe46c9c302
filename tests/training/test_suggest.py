"""`suggest_workers`: a number from measured times, and an agent that is restored."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import noterl
from noterl.training.suggest import Split, best_number, speedup
from tests.support.states import assert_same_state
from tests.support.worker_envs import DiscreteWalkEnv, SlowEnv


@pytest.mark.parametrize(
    ("collecting", "learning", "most", "expected"),
    [
        (5e-6, 1e-4, 8, 0),  # the transfer costs more than the step
        (1e-3, 0.0, 2, 2),
        (1e-3, 0.0, 4, 4),
        (1e-3, 1e-3, 64, 15),  # learning takes half of the time without workers
        (1e-3, 1e-3, 0, 0),
    ],
)
def test_number_follows_from_the_times(collecting: float, learning: float, most: int, expected: int) -> None:
    split = Split(collecting, learning)
    assert best_number(split, most) == expected
    assert all(speedup(split, n) * 1.05 < speedup(split, expected) or n >= expected for n in range(most + 1))


def agent_of(env: Any) -> noterl.DQN:
    agent = noterl.DQN(env, hidden=(4,), seed=3)
    agent.compile(replay=200, batch_size=4, learning_starts=4, update_every=4)
    return agent


def test_measurement_restores_the_agent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(3), raising=False)
    agent, other = (agent_of(partial(SlowEnv, 0.02)) for _ in range(2))
    for each in (agent, other):
        each.fit(steps=10, verbose=0)
    assert noterl.suggest_workers(agent, seconds=0.3) == 3
    assert "3 cores" in capsys.readouterr().out
    assert_same_state(agent, other)
    assert noterl.suggest_workers(agent, DiscreteWalkEnv(), memory=1, seconds=0.1) == 0


@pytest.mark.parametrize("argument", ["memory", "seconds"])
def test_bad_argument_raises(argument: str) -> None:
    with pytest.raises(ValueError, match=argument):
        noterl.suggest_workers(agent_of(DiscreteWalkEnv), **{argument: -1})

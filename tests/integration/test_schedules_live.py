"""Hyperparameters and learning rates that follow schedules, in training and after a restore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

import noterl
from noterl.backends import current
from noterl.callbacks import LambdaCallback
from noterl.hyperparameters import Hyperparameter
from noterl.policies import EpsGreedyQPolicy
from noterl.schedules import Exponential, Linear
from tests.support.batches import Corridor, copied, differences
from tests.support.parts import learner_of


def scheduled(gamma: Any = None, rate: Any = None) -> noterl.DQN:
    agent = noterl.DQN(Corridor, hidden=(8,), gamma=gamma or Linear(0.5, 0.9, steps=40), seed=2)
    agent.compile(
        keras.optimizers.Adam(rate or Exponential(1e-2, decay_rate=0.1), beta_1=0.8),
        policy=EpsGreedyQPolicy(Linear(1.0, 0.0, steps=60)),
        replay=noterl.Replay(200), batch_size=4, learning_starts=10, update_every=4, updates=2, target_update=8,
    )  # fmt: skip
    return agent


def recording(records: list[tuple[int, float, float, float]]) -> LambdaCallback:
    """Return a callback that records the step and the scheduled values after every update."""

    def record(batch: int, logs: Any) -> None:
        agent = callback.agent
        gamma = float(current().fetch(agent.gamma))
        records.append((agent.steps, float(agent.gamma), gamma, agent.learning_rate))

    callback = LambdaCallback(on_batch_end=record)
    return callback


@pytest.mark.backends("torch")
def test_values_follow_the_steps_of_several_fits() -> None:
    agent, records = scheduled(), []
    agent.fit(steps=23, callbacks=[recording(records)], verbose=0)
    agent.fit(steps=37, callbacks=[recording(records)], verbose=0)
    assert [step for step, *_ in records[::2]] == list(range(12, 61, 4))
    for step, gamma, on_device, rate in records:
        assert gamma == Linear(0.5, 0.9, steps=40)(step)
        assert on_device == pytest.approx(gamma, rel=1e-6)
        assert rate == pytest.approx(Exponential(1e-2, decay_rate=0.1)(step), rel=1e-6)


@pytest.mark.backends("torch")
def test_restored_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    uninterrupted = scheduled()
    uninterrupted.fit(steps=60, verbose=0)
    half = scheduled()
    half.fit(steps=30, verbose=0)
    half.save(tmp_path / "half.noterl")
    loaded = scheduled()
    loaded.restore(tmp_path / "half.noterl")
    assert float(loaded.gamma) == float(half.gamma) and loaded.learning_rate == half.learning_rate
    loaded.fit(steps=30, verbose=0)
    assert differences(copied(uninterrupted.get_state()), copied(loaded.get_state())) == []


@pytest.mark.backends("torch")
def test_file_holds_the_schedules(tmp_path: Path) -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), gamma=Linear(0.5, 0.9, steps=40))
    agent.compile({"optimizer": keras.optimizers.Adam(Linear(1e-2, 0.0, steps=100), beta_1=0.8)})
    agent.save(tmp_path / "agent.noterl")
    loaded = noterl.load(tmp_path / "agent.noterl")
    learner_of(loaded).updater.update_schedules(20)
    assert float(loaded.gamma) == pytest.approx(0.7)
    assert loaded.learning_rate == pytest.approx(0.8e-2)
    assert float(loaded.optimizer.beta_1) == pytest.approx(0.8)


@pytest.mark.backends("torch")
def test_compile_does_not_change_the_optimizer_argument() -> None:
    optimizer = keras.optimizers.Adam(Linear(1e-2, 0.0, steps=100))
    agent = noterl.DQN(Corridor, hidden=(4,))
    for _ in range(2):
        agent.compile(optimizer)
        assert agent.optimizer is not optimizer
        assert agent.learning_rate == pytest.approx(1e-2)


@pytest.mark.backends("torch")
def test_setting_a_scheduled_value_raises() -> None:
    agent = scheduled()
    agent.build()
    with pytest.raises(ValueError, match="gamma"):
        agent.gamma = 0.3
    with pytest.raises(ValueError, match="learning_rate"):
        agent.set_rule("learning_rate", 0.1)
    assert float(agent.gamma) == 0.5 and agent.learning_rate == pytest.approx(1e-2)
    agent.set_rule("beta_1", 0.5)


@pytest.mark.backends("torch")
def test_schedule_out_of_bounds_raises() -> None:
    with pytest.raises(ValueError, match=r"gamma must be .*, got 1\.5"):
        Hyperparameter(Linear(1.5, 0.0, steps=10), "gamma", minimum=0.0, maximum=1.0)
    rate = Hyperparameter(Linear(0.5, 1.5, steps=10), "gamma", minimum=0.0, maximum=1.0)
    with pytest.raises(ValueError, match="gamma must be"):
        rate.update_schedules(10)
    assert float(rate) == 0.5


def test_scheduled_values_do_not_retrace() -> None:
    agent = scheduled()
    agent.fit(steps=20, verbose=0)
    count = agent.trace_counts["update"]
    agent.fit(steps=20, verbose=0)
    assert agent.trace_counts["update"] == count


@pytest.mark.backends("torch")
def test_negative_learning_rate_raises() -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    rate = Linear(1e-3, -1e-3, 40)
    agent.compile(keras.optimizers.SGD(rate), batch_size=4, learning_starts=4, update_every=1, updates=1)
    with pytest.raises(ValueError, match=r"learning_rate .*Linear.* -"):
        agent.fit(steps=60, verbose=0)
    assert 0 < agent.updates < 30

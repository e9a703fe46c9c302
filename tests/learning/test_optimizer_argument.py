"""The argument `optimizer` of `compile`: a number, a schedule, and functions that are not what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

import noterl
from noterl.schedules import Linear

pytestmark = pytest.mark.backends("torch")


def compiled(optimizer: Any, kind: Any = noterl.DQN, env: str = "CartPole-v1", **settings: Any) -> Any:
    agent = kind(env, hidden=(4,), seed=7, **settings)
    replay = {"learning_starts": 10} if agent.memory == "replay" else {}
    agent.compile(optimizer, **replay)
    return agent


@pytest.mark.parametrize("kind", [noterl.DQN, noterl.PPO])
def test_schedule_is_the_learning_rate_of_the_default_optimizer(kind: Any) -> None:
    default, agent = compiled(None, kind), compiled(Linear(1e-3, 0.0, 100), kind)
    assert type(agent.optimizer) is type(default.optimizer)
    assert agent.optimizer.epsilon == default.optimizer.epsilon
    assert agent.optimizer.global_clipnorm == default.optimizer.global_clipnorm
    assert agent.learning_rate == pytest.approx(1e-3)


def test_rate_follows_the_schedule_and_is_saved(tmp_path: Path) -> None:
    agent = compiled(Linear(1e-3, 0.0, 100))
    agent.fit(steps=64, verbose=0)
    reference = compiled(keras.optimizers.Adam(Linear(1e-3, 0.0, 100), epsilon=1e-4))
    reference.fit(steps=64, verbose=0)
    assert 0 < agent.learning_rate < 1e-3
    assert agent.learning_rate == reference.learning_rate
    agent.save(tmp_path / "a.noterl")
    loaded = noterl.load(tmp_path / "a.noterl")
    loaded.fit(steps=36, verbose=0)
    assert loaded.learning_rate == pytest.approx(0.0, abs=1e-4)


def test_variables_without_weight_decay_keep_their_values() -> None:
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    layers = [keras.Input((4,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(2)]
    agent = noterl.DQN("CartPole-v1", network=keras.Sequential(layers))
    agent.compile(optimizer)
    agent.build()
    decays = {variable.path: agent.optimizer._use_weight_decay(variable) for variable in agent.q.trainable_variables}
    assert {path.rpartition("/")[2] for path, decayed in decays.items() if decayed} == {"kernel"}
    assert len(decays) == 4


def test_each_optimizer_takes_a_schedule() -> None:
    agent = compiled({"actor": Linear(1e-3, 0.0, 100), "critic": 2e-3}, noterl.TD3, "Pendulum-v1")
    rates = [float(agent.get_rule("learning_rate", optimizer=name)) for name in ("actor", "critic")]
    assert rates == pytest.approx([1e-3, 2e-3])


def test_schedule_of_keras_is_a_learning_rate_too() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-3, 10, 0.5)
    assert compiled(schedule).learning_rate == pytest.approx(1e-3)


@pytest.mark.parametrize("function", [lambda progress: progress * 1e-3, lambda progress: 1e-3])
def test_function_of_progress_is_answered_with_a_schedule(function: Any) -> None:
    with pytest.raises(ValueError, match=r"compile\(optimizer=.*Linear\(") as error:
        compiled(function).fit(steps=20, verbose=0)
    assert len(str(error.value)) < 500


def test_messages_cut_long_values() -> None:
    with pytest.raises(ValueError, match="step must be a finite number") as error:
        Linear(1e-3, 0.0, 100)(list(range(10_000)))  # type: ignore[arg-type]
    assert len(str(error.value)) < 500


@pytest.mark.backends("jax")
def test_function_on_another_backend_is_answered_with_a_schedule() -> None:
    with pytest.raises(ValueError, match=r"KERAS_BACKEND=torch.*Linear\("):
        compiled(lambda progress: progress * 1e-3)


def test_rule_of_an_unknown_optimizer_raises_and_others_are_unchanged() -> None:
    agent = noterl.SAC("Pendulum-v1", hidden=(4,), seed=1)
    agent.compile(optimizer=[keras.optimizers.Adam(1e-3), keras.optimizers.SGD(1e-3), keras.optimizers.Adam(1e-3)])
    agent.build()
    for call in (lambda: agent.get_rule("learning_rate", "nope"), lambda: agent.set_rule("beta_1", 0.5, "nope")):
        with pytest.raises(ValueError, match=r"^optimizer must be one of actor, .*'nope'"):
            call()
    with pytest.raises(ValueError, match="SGD has no rule 'beta_1'"):
        agent.set_rule("beta_1", 0.5)
    assert agent.get_rule("beta_1", "actor") == pytest.approx(0.9)
    agent.compile(optimizer=[1e-3, noterl.schedules.Linear(1e-3, 0.0, steps=9), 1e-3])
    agent.build()
    with pytest.raises(ValueError, match="schedule"):
        agent.set_rule("learning_rate", 0.5)
    assert agent.get_rule("learning_rate", "actor") == pytest.approx(1e-3)


@pytest.mark.backends("jax", "tensorflow", "torch")
def test_gradients_are_accumulated() -> None:
    agent = noterl.A2C("CartPole-v1", hidden=(4,), rollout_steps=8, seed=1)
    agent.compile(keras.optimizers.Adam(0.01, gradient_accumulation_steps=2))
    before = agent.get_weights()
    agent.fit(steps=8, verbose=0)
    assert all((value == before[name]).all() for name, value in agent.get_weights().items())
    agent.set_rule("beta_1", 0.5)
    agent.fit(steps=8, verbose=0)
    assert agent.updates == 2 and agent.get_rule("beta_1") == 0.5
    assert any((value != before[name]).any() for name, value in agent.get_weights().items())


@pytest.mark.parametrize(
    "optimizer",
    [keras.optimizers.SGD(0.1, loss_scale_factor=8.0), keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))],
)
def test_scaled_losses_are_refused(optimizer: Any) -> None:
    agent = noterl.PPO("CartPole-v1", hidden=(4,), seed=1)
    with pytest.raises(ValueError, match=r"^optimizer for .* must not scale losses"):
        agent.compile(optimizer)

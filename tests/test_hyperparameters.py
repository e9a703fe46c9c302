"""Hyperparameters have the same value on the host and on the device, however they are changed."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import noterl
from noterl.backends import current
from noterl.hyperparameters import Hyperparameter, discount_factor
from tests.support.batches import VECTOR, Corridor, random_batch, small_dqn
from tests.support.parts import run_updates


def device(parameter: Hyperparameter) -> float:
    return float(current().fetch(parameter))


@pytest.mark.parametrize("value", [0.9, 0, 1, np.float32(0.1), np.float64(1e-3), 1e-7, -2.5])
def test_host_and_device_have_the_assigned_value(value: float) -> None:
    parameter = Hyperparameter(0.5, "rate")
    parameter.assign(value)
    fresh = Hyperparameter(value, "rate")
    for one in (parameter, fresh):
        assert float(one) == float(value)
        assert type(float(one)) is float
        assert device(one) == float(np.float32(value))


def test_hyperparameter_is_a_number_and_a_tensor() -> None:
    rate = Hyperparameter(0.25, "rate")
    assert math.sqrt(rate) == 0.5
    assert float(np.asarray(rate)) == 0.25
    assert float(current().fetch(rate * ops.ones(()) + 1.0)) == 1.25
    assert isinstance(rate, keras.Variable) and not rate.trainable and rate.dtype == "float32"


class ByNumber(noterl.DQN):
    """Its loss converts gamma to a number, which would be constant in a compiled function."""

    def loss(self, batch):
        loss, feedback = super().loss(batch)
        return loss * 0.0 + float(self.gamma), feedback


@pytest.mark.parametrize("jit_compile", ["auto", False])
def test_loss_cannot_convert_a_hyperparameter_when_compiled(jit_compile, backend: str) -> None:
    agent = ByNumber(VECTOR, hidden=(8,), seed=3)
    agent.compile(replay=noterl.Replay(64), jit_compile=jit_compile)
    if backend != "torch" and jit_compile == "auto":
        with pytest.raises(RuntimeError, match=r"float\(gamma\)"):  # JAX traces the update when it is built
            run_updates(agent, random_batch(2, 8), 2)
        return
    agent.build()
    traced = backend == "torch" and jit_compile == "auto"
    with pytest.warns(RuntimeWarning, match=r"gamma.*eagerly") if traced else contextlib.nullcontext():
        run_updates(agent, random_batch(2, 8), 2)
    agent.gamma = 0.25
    result = run_updates(agent, random_batch(2, 8), 2)
    assert current().fetch(result.logs["loss"]).tolist() == [0.25, 0.25]


BAD_VALUES = [float("nan"), float("inf"), -float("inf"), "much", "0.5", b"1", True, np.True_, None, [1.0, 2.0]]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("value", BAD_VALUES)
def test_bad_value_raises_and_changes_nothing(value) -> None:
    rate = Hyperparameter(0.25, "rate")
    with pytest.raises(ValueError, match=r"\brate\b"):
        rate.assign(value)
    assert float(rate) == device(rate) == 0.25
    with pytest.raises(ValueError, match=r"\brate\b"):
        Hyperparameter(value, "rate")


def test_value_out_of_bounds_raises() -> None:
    gamma = Hyperparameter(0.5, "gamma", minimum=0.0, maximum=1.0)
    for value in (0.0, 1.0):
        gamma.assign(value)
        assert float(gamma) == value
    for value in (-1e-9, 1.1):
        with pytest.raises(ValueError, match=r"gamma .*0.* 1.*got"):
            gamma.assign(value)
        with pytest.raises(ValueError, match=r"gamma .*0.* 1.*got"):
            Hyperparameter(value, "gamma", minimum=0.0, maximum=1.0)
    assert float(gamma) == 1.0
    with pytest.raises(ValueError, match=r"rate .*0.*got"):
        Hyperparameter(-1.0, "rate", minimum=0.0)


def test_setting_attribute_changes_value_not_object() -> None:
    agent = small_dqn()
    gamma = agent.gamma
    agent.gamma = 0.5
    assert agent.gamma is gamma is agent.hyperparameters["gamma"]
    assert float(gamma) == device(gamma) == 0.5
    with pytest.raises(ValueError, match="gamma"):
        agent.gamma = 1.5
    assert float(agent.gamma) == 0.5
    agent.gamma = np.float32(0.25)
    assert float(agent.gamma) == device(agent.gamma) == 0.25
    other = small_dqn()
    other.gamma = 0.75
    agent.gamma = other.gamma
    other.gamma = 0.5
    assert agent.gamma is gamma and float(gamma) == 0.75


def test_values_are_part_of_state() -> None:
    agent = small_dqn()
    agent.gamma = 0.1
    state = agent.get_state()
    assert state["hyperparameters"]["gamma"] == 0.1
    agent.gamma = 0.7
    agent.set_state(state)
    assert float(agent.gamma) == 0.1 and device(agent.gamma) == float(np.float32(0.1))


def test_plain_number_gamma_is_the_discount() -> None:
    agent = small_dqn()
    assert discount_factor(agent) == 0.9
    del agent.hyperparameters["gamma"]
    for number in (0.5, np.float32(0.5), 1):
        agent.__dict__["gamma"] = number
        assert discount_factor(agent) == number
    for other in ("0.5", True, 1.5, noterl.schedules.Linear(1.0, 0.0, steps=10), np.array([0.5])):
        agent.__dict__["gamma"] = other
        with pytest.raises(ValueError, match="gamma"):
            discount_factor(agent)
    del agent.__dict__["gamma"]
    assert discount_factor(agent) == 1.0


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", [None, "", 3])
def test_name_must_be_a_nonempty_str(name: Any) -> None:
    with pytest.raises(ValueError, match="name"):
        small_dqn().hyperparameter(name, 1.0)


@pytest.mark.parametrize(("low", "high", "value"), [(0, 1, 0.5), (0, 1, 1.0), (0, None, 0.0), (None, 1, 1.0)])
def test_another_value_is_within_the_bounds(low: float | None, high: float | None, value: float) -> None:
    other = Hyperparameter(value, "rate", minimum=low, maximum=high).another()
    assert other != value and (low is None or other >= low) and (high is None or other <= high)


@pytest.mark.backends("torch")
def test_duplicate_name_raises() -> None:
    class Doubled(noterl.DQN):
        def __init__(self, env, *, seed=None):
            super().__init__(env, hidden=(4,), seed=seed)
            self.again = self.hyperparameter("gamma", 0.5)

    with pytest.raises(ValueError, match="'gamma'"):
        Doubled(VECTOR)


def test_agents_do_not_share_values() -> None:
    first, second = small_dqn(), small_dqn()
    first.gamma = 0.3
    assert float(second.gamma) == 0.9 and device(second.gamma) == float(np.float32(0.9))


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam(1e-3), keras.optimizers.AdamW(1e-3, weight_decay=0.1)])
def test_rules_are_read_back_and_bounded(optimizer) -> None:
    agent = small_dqn(optimizer=optimizer)
    rules = ["learning_rate", "beta_1", "beta_2"]
    if isinstance(optimizer, keras.optimizers.AdamW):
        rules.append("weight_decay")
    for rule in rules:
        agent.set_rule(rule, 0.125)
        assert noterl.learning.optimizers.get_rule(agent.optimizer, rule) == 0.125
        for value in (-1.0, float("nan")):
            with pytest.raises(ValueError, match=rule):
                agent.set_rule(rule, value)
        assert noterl.learning.optimizers.get_rule(agent.optimizer, rule) == 0.125
    with pytest.raises(ValueError, match="beta_2"):
        agent.set_rule("beta_2", 1.5)


def test_rule_set_as_attribute_of_the_optimizer_takes_effect() -> None:
    """In Keras, such rules are plain numbers that are read when an update is traced."""

    def trained(change: bool, get_state: Any = None) -> list[np.ndarray]:
        agent = small_dqn(lambda: Corridor(), optimizer=keras.optimizers.Adam(1e-2))
        agent.fit(steps=64, verbose=0)
        if change:
            agent.optimizer.beta_1 = 0.0
            assert noterl.learning.optimizers.get_rule(agent.optimizer, "beta_1") == 0.0
            assert get_state is None or get_state(agent)["optimizers"]["optimizer"]["rules"]["beta_1"] == 0.0
        elif get_state is not None:
            agent.set_rule("beta_1", 0.0)
        agent.fit(steps=64, verbose=0)
        assert agent.trace_counts["update"] <= 1 or ".torch" in current().__name__
        return noterl.networks.get_weights(agent.q)

    plain, by_rule = trained(True), trained(False, get_state=noterl.DQN.get_state)
    for left, right, other in zip(plain, by_rule, trained(False), strict=True):
        np.testing.assert_array_equal(left, right)
        assert not np.array_equal(left, other)
    for left, right in zip(plain, trained(True, get_state=noterl.DQN.get_state), strict=True):
        np.testing.assert_array_equal(left, right)


def test_bad_rule_set_as_attribute_of_the_optimizer_raises() -> None:
    agent = small_dqn(lambda: Corridor(), optimizer=keras.optimizers.Adam(1e-2))
    agent.optimizer.beta_1 = 2.0
    if ".torch" in current().__name__:
        pytest.skip("eager torch reads the numbers of the optimizer")
    with pytest.raises(ValueError, match="beta_1"):
        agent.fit(steps=64, verbose=0)
    assert noterl.learning.optimizers.get_rule(agent.optimizer, "beta_1") == pytest.approx(0.9)


def test_the_users_optimizer_does_not_change() -> None:
    """`compile` clones the optimizer, so that two agents can be compiled with one."""
    original = keras.optimizers.Adam(1e-3)
    first, second = small_dqn(optimizer=original), small_dqn(optimizer=original)
    first.set_rule("learning_rate", 0.5)
    assert first.optimizer is not original and second.optimizer is not first.optimizer
    assert float(original.learning_rate) == pytest.approx(1e-3) == second.learning_rate
    assert not original.built


@pytest.mark.backends("torch")
def test_unknown_optimizer_or_rule_raises() -> None:
    agent = small_dqn()
    with pytest.raises(ValueError, match=r"optimizer .*got 'critic'"):
        agent.set_rule("learning_rate", 0.1, optimizer="critic")
    with pytest.raises(ValueError, match="rule 'momentum'"):
        agent.set_rule("momentum", 0.1)

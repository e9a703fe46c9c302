"""Keras optimizers and schedules in files: they come back with their settings, and forged ones raise."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np
import pytest
from keras import optimizers
from keras.optimizers import schedules

import noterl
from noterl.registry import register
from noterl.saving import Arguments
from tests.support.encoding import decoded, encoded, through_json

pytestmark = pytest.mark.backends("torch")


@register
class SavingTestOptimizer(optimizers.SGD):
    def __init__(self, *, twist: float = 2.0, **options: Any) -> None:
        super().__init__(**options)
        self.twist = twist

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "twist": self.twist}


@register
class SavingTestPlainClass:
    built = 0

    def __init__(self) -> None:
        type(self).built += 1


OPTIMIZERS = [
    lambda: optimizers.Adam(3e-4, beta_1=0.8, epsilon=1e-5, clipnorm=0.5, name="mine"),
    lambda: optimizers.RMSprop(0.1, rho=0.95, centered=True),
    lambda: optimizers.AdamW(1e-3, weight_decay=0.01, use_ema=True, ema_overwrite_frequency=7),
    lambda: SavingTestOptimizer(learning_rate=0.5, twist=3.0),
    lambda: optimizers.SGD(schedules.ExponentialDecay(0.1, 100, 0.9, staircase=True), momentum=0.9),
    lambda: optimizers.SGD(schedules.PiecewiseConstantDecay([10, 20], [1.0, 0.5, 0.1])),
    lambda: optimizers.Adam(schedules.CosineDecay(0.0, 100, warmup_target=0.1, warmup_steps=10)),
]


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("build", OPTIMIZERS, ids=range(len(OPTIMIZERS)))
def test_optimizers_come_back_with_their_settings(build: Any) -> None:
    optimizer = build()
    again = through_json({"optimizer": optimizer})["optimizer"]
    assert type(again) is type(optimizer) and again.get_config() == optimizer.get_config()
    ends = []
    for each in (optimizer, again):
        weight = keras.Variable(np.array([1.0, -2.0], np.float32))
        each.build([weight])
        for _ in range(3):
            each.apply([keras.ops.convert_to_tensor(np.array([0.5, 0.1], np.float32))])
        ends.append(keras.ops.convert_to_numpy(weight))
    assert np.array_equal(*ends)


def test_optimizer_inside_an_optimizer_comes_back() -> None:
    inner = optimizers.Adam(schedules.CosineDecayRestarts(0.1, 5))
    optimizer = optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    again = through_json(optimizer)
    assert isinstance(again.inner_optimizer, optimizers.Adam) and again.get_config() == optimizer.get_config()


@pytest.mark.parametrize("name", [name for name in vars(schedules) if name[0].isupper() and "Schedule" not in name])
def test_every_schedule_of_keras_comes_back(name: str) -> None:
    arguments = ([5, 10], [0.3, 0.2, 0.1]) if name == "PiecewiseConstantDecay" else (0.1, 10)
    arguments = (0.1, 10, 0.5) if name in ("ExponentialDecay", "InverseTimeDecay") else arguments
    schedule = vars(schedules)[name](*arguments)
    again = through_json([schedule])[0]
    assert type(again) is type(schedule) and again.get_config() == schedule.get_config()
    for step in (0, 3, 12):
        assert float(again(step)) == float(schedule(step))


def test_unregistered_optimizer_needs_custom_objects() -> None:
    class SavingTestLocal(optimizers.SGD):
        pass

    structure, _ = encoded(SavingTestLocal(0.25))
    with pytest.raises(ValueError, match=r"'SavingTestLocal'.*custom_objects"):
        decoded(structure)
    assert isinstance(decoded(structure, custom_objects={"SavingTestLocal": SavingTestLocal}), SavingTestLocal)


def test_optimizer_with_the_name_of_a_known_one_raises() -> None:
    impostor = type("Adam", (optimizers.SGD,), {})
    with pytest.raises(TypeError, match=r"optimizer.*'Adam' is another class"):
        encoded({"optimizer": impostor()})


def test_optimizer_that_holds_a_function_raises() -> None:
    value = {"optimizer": optimizers.SGD(lambda: 0.1)}  # get_config would warn, and warnings are errors here
    with pytest.raises(TypeError, match=r"optimizer.*learning_rate.*function"):
        encoded(value)
    with pytest.raises(ValueError, match=r"optimizer\['learning_rate'\]=function"):
        through_json(Arguments(value))
    with pytest.raises(TypeError, match=r"model.*Sequential"):
        encoded({"model": keras.Sequential()})


FORGED = [
    ["SavingTestPlainClass", {}],
    ["Optimizer", {"nothing": 1}],
    ["deserialize", {"config": 1}],
    ["legacy", {}],
    ["__class__", {}],
    ["Adam", {"nothing": 1}],
    ["Adam", {"learning_rate": {"module": "os", "class_name": "getcwd", "config": {}, "registered_name": None}}],
    ["SGD", {"learning_rate": [{"module": "os", "class_name": "getcwd", "config": {}}]}],
    ["LossScaleOptimizer", {"inner_optimizer": {"module": "os", "class_name": "getcwd", "config": {}}}],
    ["ExponentialDecay", {"initial_learning_rate": 0.1}],
]


@pytest.mark.parametrize("content", FORGED, ids=json.dumps)
def test_forged_optimizer_raises(content: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = []
    monkeypatch.setattr(keras.src.saving.serialization_lib, "deserialize_keras_object", imported.append)
    with pytest.raises(ValueError, match=r"optimizer|class"):
        decoded({"optimizer": {"$keras": content}})
    assert not imported, "Keras must not be asked to import what a file names"
    assert not SavingTestPlainClass.built


def test_agent_among_the_arguments_imports_no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saving_test_module.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    forged = {"hidden": {"$object": ["DQN", {"env": "saving_test_module:CartPole-v1"}]}}
    with pytest.raises(ValueError, match="hidden: an agent must"):
        decoded(forged)
    assert "saving_test_module" not in sys.modules
    spaces = (gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2))
    with pytest.raises(TypeError, match=r"teacher.*DQN"):
        encoded({"teacher": noterl.DQN(spaces)})

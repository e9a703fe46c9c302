"""Settings that would do nothing, or something else than the user holds, are refused or reported when `fit` begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import keras
import pytest

import noterl
from noterl.callbacks import ReduceLROnPlateau
from noterl.schedules import Linear

pytestmark = pytest.mark.backends("torch")


def scheduled(optimizer: Any) -> noterl.Agent:
    agent = noterl.PPO("CartPole-v1", hidden=(4,), rollout_steps=16, epochs=1, seed=1)
    agent.compile(optimizer=optimizer)
    return agent


@pytest.mark.parametrize(
    "rate", [Linear(1e-3, 0.0, 3000), keras.optimizers.schedules.ExponentialDecay(1e-3, 10, 0.9)], ids=["own", "keras"]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda: ReduceLROnPlateau(patience=50),
        lambda: keras.callbacks.ReduceLROnPlateau(monitor="reward", mode="max", patience=50),
        lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
    ],
)
def test_callback_that_sets_a_scheduled_rate_is_refused_before_training(rate: Any, make: Any) -> None:
    agent = scheduled(keras.optimizers.Adam(rate))
    with pytest.raises(ValueError, match="learning_rate has the schedule"):
        agent.fit(steps=40, callbacks=[make()], verbose=0)
    assert agent.steps == 0
    scheduled(1e-3).fit(steps=40, callbacks=[make()], verbose=0)


def test_keras_model_checkpoint_without_the_normalization_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.keras"
    agent = noterl.DQN("CartPole-v1", hidden=(4,), normalize_observation=True, seed=1)
    with pytest.raises(ValueError, match=r"normalize_observation=True.*callbacks\.Export"):
        agent.fit(steps=20, callbacks=[keras.callbacks.ModelCheckpoint(str(path), monitor="reward")], verbose=0)
    assert agent.steps == 0


@pytest.mark.parametrize(
    ("wrapper", "argument"),
    [
        (gymnasium.wrappers.NormalizeObservation, "normalize_observation=True"),
        (gymnasium.wrappers.NormalizeReward, "normalize_reward=True"),
    ],
)
def test_wrapper_with_statistics_is_reported(wrapper: Any, argument: str) -> None:
    def make() -> Any:
        return wrapper(gymnasium.make("CartPole-v1"))

    for env in (make, make(), gymnasium.vector.SyncVectorEnv([make] * 2)):
        with pytest.warns(UserWarning, match=argument):
            noterl.DQN(env, hidden=(4,), seed=1)
    assert any(argument in text for text in noterl.envs.check(make).warnings)

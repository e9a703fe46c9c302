"""The metrics of updates in the logs of episodes, in `History` and in loggers."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import noterl
from noterl.callbacks import Callback, CSVLogger, EarlyStopping
from noterl.learning.metrics import MetricMeans
from noterl.schedules import Linear
from tests.support.doubles import CountingEnv
from tests.support.representatives import representatives
from tests.support.states import assert_same_state


class MeansByHand(Callback):
    """Computes the mean of each metric over the updates since the end of the previous episode."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}
        self.rows: list[dict[str, float]] = []

    def on_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        for name, value in logs.items():
            self.values.setdefault(name, []).append(value)

    def on_episode_end(self, episode: int, logs: dict[str, Any]) -> None:
        if logs["complete"]:
            last = self.rows[-1] if self.rows else {}
            self.rows.append({**last, **{name: float(np.mean(values)) for name, values in self.values.items()}})
            self.values = {}


def ppo(**arguments: Any) -> noterl.PPO:
    return noterl.PPO("CartPole-v1", hidden=(4,), rollout_steps=16, epochs=2, seed=1, **arguments)


def td3() -> noterl.TD3:
    agent = noterl.TD3("Pendulum-v1", hidden=(4,), seed=1)
    agent.compile(learning_starts=20, batch_size=4, update_every=3)
    return agent


PPO_METRICS = {"loss", "policy_loss", "value_loss", "entropy", "approximate_kl", "clip_fraction"}
CASES = [(ppo, PPO_METRICS, 80), (td3, {"loss", "actor_loss"}, 401)]


@pytest.mark.parametrize(("build", "names", "steps"), representatives(CASES, CASES[0]), ids=["PPO", "TD3"])
def test_history_holds_the_means_of_metrics(build: Any, names: set[str], steps: int, tmp_path: Path) -> None:
    by_hand, agent = MeansByHand(), build()
    history = agent.fit(steps=steps, callbacks=[by_hand, CSVLogger(tmp_path / "log.csv")], verbose=0)
    assert len(by_hand.rows) == len(history) > 1 and names <= by_hand.rows[-1].keys()
    with (tmp_path / "log.csv").open() as file:
        table = list(csv.DictReader(file))
    for name in names:
        expected = [row.get(name, math.nan) for row in by_hand.rows]
        np.testing.assert_allclose(history.history[name], expected, rtol=1e-6, err_msg=name)
        logged = [float(row[name] or math.nan) for row in table]
        np.testing.assert_allclose(logged, expected, rtol=1e-6, err_msg=name)


@pytest.mark.backends("torch")
def test_resumed_fit_continues_the_means() -> None:
    uninterrupted, first, second = ppo(), ppo(), ppo()
    whole = uninterrupted.fit(steps=100, verbose=0)
    first.fit(steps=37, verbose=0)
    second.set_state(first.get_state())
    part = second.fit(steps=63, verbose=0)
    assert_same_state(uninterrupted, second)
    for name in PPO_METRICS:
        np.testing.assert_array_equal(part.history[name], whole.history[name][-len(part) :])


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ["reward", "episode"])
def test_metric_cannot_replace_an_entry_of_the_episode_logs(name: str) -> None:
    class Confusing(noterl.DQN):
        def update(self, batch: Any) -> Any:
            loss, feedback = self.minimize(self.loss, self.q, "optimizer", batch)
            return {"loss": loss, name: loss - 1e6, "own": loss - 1e6}, feedback

    agent = Confusing(CountingEnv, hidden=(4,), seed=1)
    agent.compile(learning_starts=5, batch_size=2, update_every=1, updates=1)
    with pytest.raises(ValueError, match=f"already have '{name}'"):
        agent.fit(steps=30, verbose=0)


@pytest.mark.backends("torch")
def test_variable_of_the_agent_in_the_logs_is_its_number() -> None:
    class Gamma(noterl.Callback):
        def on_episode_end(self, episode: int, logs: Any) -> None:
            logs["gamma"] = self.agent.gamma

    agent = noterl.DQN(CountingEnv, hidden=(4,), gamma=Linear(0.9, 0.5, steps=100), seed=1)
    agent.compile(learning_starts=5, batch_size=2, update_every=1, updates=1)
    gammas = agent.fit(steps=60, verbose=0, callbacks=[Gamma()]).history["gamma"]
    assert all(type(gamma) is float for gamma in gammas) and len(set(gammas)) == len(gammas) > 1


@pytest.mark.backends("torch")
def test_metric_can_be_monitored_from_the_first_episode(tmp_path: Path) -> None:
    agent = noterl.PPO("CartPole-v1", hidden=(4,), rollout_steps=64, epochs=1, seed=1)
    keras_logger = keras.callbacks.CSVLogger(tmp_path / "keras.csv")
    history = agent.fit(steps=100, callbacks=[EarlyStopping(5, 1e9, monitor="entropy"), keras_logger], verbose=0)
    assert history.history["updates"][0] == 0 and history.history["updates"][-1] > 0
    with (tmp_path / "keras.csv").open() as file:
        assert set(csv.DictReader(file).fieldnames or ()) >= PPO_METRICS
    with pytest.raises(ValueError, match=r"monitor: .*'entropi'"):
        ppo().fit(steps=80, callbacks=[EarlyStopping(5, 1e9, monitor="entropi")], verbose=0)


@pytest.mark.backends("torch")
def test_nan_and_arrays_do_not_enter_the_means() -> None:
    means = MetricMeans()
    assert means.take() == {}
    means.add({"loss": np.array([1.0, 2.0, 9.0]), "actor_loss": np.array([np.nan, 4.0, 9.0])}, 2)
    means.add({"loss": np.array([6.0]), "image": np.zeros((1, 3))}, 1)
    assert means.peek() == {"loss": 3.0, "actor_loss": 4.0}
    assert means.take() == {"loss": 3.0, "actor_loss": 4.0}
    means.add({"loss": np.array([5.0])}, 1)
    restored = MetricMeans()
    restored.set_state(means.get_state())
    assert means.take() == restored.take() == {"loss": 5.0, "actor_loss": 4.0}

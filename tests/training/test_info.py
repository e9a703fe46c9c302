"""`fit(info=)`: chosen keys of the step's `info` in the logs, the loggers and `evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import noterl
from noterl.callback import Callback
from noterl.callbacks import CSVLogger, Evaluate
from noterl.utils.tables import read_columns
from tests.support.doubles import CountingEnv, TogetherVectorEnv

pytestmark = pytest.mark.backends("torch")

INFO = {"speed": "mean", "peak": "max", "total": "sum", "success": "last"}


class InfoEnv(CountingEnv):
    """Reports numbers that depend on the step; `success` only at the end of an episode."""

    def _observation(self) -> np.ndarray:
        return np.array([0, self.step_number], np.float32)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        info = {"speed": self.step_number**2, "peak": -self.step_number, "total": np.float32(0.5), "text": "x"}
        if terminated or truncated:
            info["success"] = True
        return observation, reward, terminated, truncated, info


def expected(length: int) -> dict[str, float]:
    steps = np.arange(1, length + 1)
    return {"speed": np.mean(steps**2), "peak": -1.0, "total": 0.5 * length, "success": 1.0}


def agent_for(env: Any = None, **options: Any) -> noterl.DQN:
    return noterl.DQN(env or (lambda: InfoEnv(4)), hidden=(4,), seed=1, **options)


class ThreadVector(SyncVectorEnv):
    """A subclass, so that it is stepped as a vector environment."""


@pytest.mark.parametrize("num_envs", [1, 3])
def test_logs_hold_the_reduced_values(num_envs: int, tmp_path: Path) -> None:
    history = agent_for().fit(
        episodes=4, num_envs=num_envs, info=INFO, callbacks=[CSVLogger(tmp_path / "a.csv")], verbose=0
    )
    for name, value in expected(4).items():
        assert history.history[name] == [pytest.approx(value)] * 4
        assert read_columns(tmp_path / "a.csv")[name] == [pytest.approx(value)] * 4


@pytest.mark.filterwarnings("ignore:the budget ended within a step of the vector environment:RuntimeWarning")
@pytest.mark.parametrize("mode", AutoresetMode)
def test_vector_environments_give_the_values_of_scalar_ones(mode: AutoresetMode) -> None:
    vector = ThreadVector([lambda: InfoEnv(3), lambda: InfoEnv(5)], autoreset_mode=mode)
    history = agent_for(vector).fit(steps=30, info=INFO, verbose=0).history
    assert set(history["length"]) == {3, 5}
    for position, length in enumerate(history["length"]):
        for name, value in expected(length).items():
            assert history[name][position] == pytest.approx(value)


def test_tuple_means_last_values() -> None:
    history = agent_for().fit(episodes=2, info=("speed", "success"), verbose=0).history
    assert (history["speed"], history["success"]) == ([16.0, 16.0], [1.0, 1.0])


def test_key_that_no_step_has_is_absent() -> None:
    assert "missing" not in agent_for().fit(episodes=1, info=("missing",), verbose=0).history


def test_evaluate_reports_the_keys_of_the_last_fit() -> None:
    agent = agent_for()
    assert not {"speed", "success"} & set(agent.evaluate(episodes=2))
    assert agent.evaluate(episodes=2, info={"speed": "sum"})["speed"] == 30.0
    history = agent.fit(episodes=2, info=INFO, callbacks=[Evaluate(every=1, episodes=2)], verbose=0).history
    for name, value in expected(4).items():
        assert agent.evaluate(episodes=2, num_envs=2)[name] == pytest.approx(value)
        assert history[f"evaluation_{name}"] == [pytest.approx(value)] * 2
    agent.fit(episodes=1, verbose=0)
    assert "speed" not in agent.evaluate(episodes=1)


@pytest.mark.parametrize(
    "info",
    [
        ("reward",),
        ("worker",),
        ("rank",),
        {"loss": "sum"},
        ("returns",),
        ("evaluation_reward_mean",),
        ("added",),
        {"speed": "median"},
        3,
    ],
)
def test_name_in_use_raises_before_training(info: Any) -> None:
    class Adding(Callback):
        adds = ("added",)

    agent = agent_for()
    with pytest.raises(ValueError, match=r"^info"):
        agent.fit(episodes=1, info=info, callbacks=[Evaluate(), Adding()], verbose=0)
    assert agent.steps == 0


def test_name_of_a_metric_raises() -> None:
    agent = noterl.PPO(lambda: InfoEnv(4), hidden=(4,), rollout_steps=8, seed=1)
    with pytest.raises(ValueError, match="entropy"):
        agent.fit(steps=8, info=("entropy",), verbose=0)


def test_value_that_is_not_a_number_raises_and_names_the_key() -> None:
    with pytest.raises(ValueError, match="'text'"):
        agent_for().fit(episodes=1, info=("text",), verbose=0)


def test_restored_run_continues_the_values_of_an_episode(tmp_path: Path) -> None:
    whole = agent_for().fit(steps=8, info=INFO, verbose=0).history
    first = agent_for()
    first.fit(steps=6, info=INFO, verbose=0)
    first.save(tmp_path / "a.noterl")
    second = agent_for()
    second.restore(tmp_path / "a.noterl")
    history = second.fit(steps=2, info=INFO, verbose=0).history
    for name in INFO:
        assert history[name] == whole[name][1:]


def test_partial_episode_keeps_only_unchanged_reductions() -> None:
    agent = agent_for()
    agent.fit(steps=2, info={"speed": "sum", "total": "sum"}, verbose=0)
    history = agent.fit(steps=2, info={"speed": "sum", "total": "last"}, verbose=0).history
    assert (history["speed"], history["total"]) == ([1.0 + 4 + 9 + 16], [0.5])


def test_refused_fit_changes_nothing() -> None:
    agent = agent_for()
    agent.fit(episodes=1, info=INFO, verbose=0)
    before = agent.fits, agent.recorded_info
    vector = TogetherVectorEnv([lambda: InfoEnv(4)] * 2)
    with pytest.raises(ValueError, match="num_envs is 3"):
        agent.fit(vector, episodes=1, num_envs=3, info=("other",), verbose=0)
    assert (agent.fits, agent.recorded_info) == before

"""Tests of presets: settings as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.callbacks import EarlyStopping
from noterl.cli.main import main
from noterl.collect import PoolLanes, ScalarLanes, VectorLanes
from noterl.presets import Preset, catalogue, find
from tests.support.states import same_weights

pytestmark = pytest.mark.backends("torch")

ALGORITHMS = ("A2C", "DQN", "PPO", "QRDQN", "SAC", "TD3")
SMALL: dict[str, Any] = {"hidden": (8,), "epochs": 1, "seed": 1}


def make(**arguments: Any) -> Any:
    return noterl.PPO.from_preset("CartPole-v1", "zoo", **{**SMALL, **arguments})


@pytest.mark.backend_free
def test_at_least_thirty_pairs_of_algorithm_and_task_have_zoo_settings() -> None:
    presets = catalogue()
    zoo = {(preset.algorithm, preset.env) for preset in presets if preset.name == "zoo"}
    assert len(zoo) >= 30
    assert {preset.algorithm for preset in presets} == {*ALGORITHMS}
    assert all(preset.source and preset.evidence and preset.arguments["steps"] > 0 for preset in presets)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_preset_makes_a_compiled_agent(algorithm: str) -> None:
    for preset in [preset for preset in catalogue() if preset.algorithm == algorithm]:
        try:
            env: Any = gymnasium.make(preset.env) if "*" not in preset.env else "atari:Pong"
        except gymnasium.error.DependencyNotInstalled:  # MuJoCo
            env = spaces.Box(-1, 1, (8,)), spaces.Box(-1, 1, (2,))
        agent = preset.make(getattr(noterl, algorithm), env, {"seed": 1})
        for name in set(preset.arguments) & {"gamma", "gae_lambda", "entropy_coefficient"}:
            value = preset.arguments[name]
            first = value["start"] if isinstance(value, dict) else value
            assert float(getattr(agent, name).value) == pytest.approx(first)


def test_fit_takes_budget_and_lanes_from_the_preset() -> None:
    agent = make(steps=512)
    agent.fit(verbose=0)
    assert agent.steps == 512
    assert agent.updates == 2  # 32 steps of 8 environments, one pass in one batch


def test_arguments_of_fit_replace_those_of_the_preset() -> None:
    agent = make(batch_size=64)
    agent.fit(steps=128, num_envs=2, verbose=0)
    assert (agent.steps, agent.updates) == (128, 2)
    agent.fit(episodes=1, num_envs=2, verbose=0)
    assert agent.episodes >= 1 and agent.steps < 100_000


def test_lanes_are_a_vector_environment_unless_fit_receives_workers_or_an_environment() -> None:
    agent = make()
    agent.fit(steps=16, verbose=0)
    assert isinstance(agent._parts.session.lanes, VectorLanes)
    agent.fit(lambda: gymnasium.make("CartPole-v1"), steps=16, verbose=0)
    assert isinstance(agent._parts.session.lanes, ScalarLanes)
    agent.fit(steps=16, workers=1, verbose=0)
    assert isinstance(agent._parts.session.lanes, PoolLanes)
    agent.close()
    agent = make(workers=1)
    agent.fit(steps=16, verbose=0)
    assert isinstance(agent._parts.session.lanes, PoolLanes)
    agent.close()


def test_tasks_with_a_vector_environment_use_it() -> None:
    for preset in catalogue():
        spec = gymnasium.registry.get(preset.env)
        several = preset.arguments.get("num_envs", 1) > 1
        is_native = spec is not None and spec.vector_entry_point is not None
        assert preset.arguments.get("vectorize", False) == (several and is_native)


def test_schedules_span_the_budget_of_the_fit_that_runs_them() -> None:
    agent = make(rollout_steps=16, batch_size=128)
    clips: list[float] = []

    class Record(noterl.Callback):
        def on_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
            clips.append(float(agent.clip.value))

    record = Record()
    # A native vector environment takes steps for resets, which do not count.
    agent.fit(steps=512, num_envs=8, vectorize=False, callbacks=[record], verbose=0)
    assert clips == pytest.approx([0.2 * (1 - step / 512) for step in (128, 256, 384, 512)], abs=1e-6)
    clips.clear()
    agent.fit(steps=512, vectorize=False, callbacks=[record], verbose=0)
    assert clips == pytest.approx([0.2 * (1 - step / 1024) for step in (640, 768, 896, 1024)], abs=1e-6)
    assert agent.get_config()["clip"].steps == 1024


def test_schedules_end_where_a_callback_limits_the_steps() -> None:
    agent = make(rollout_steps=16, batch_size=128)
    agent.fit(callbacks=[noterl.callbacks.StopOnSteps(512)], verbose=0)
    assert agent.steps == 512 and {schedule.steps for schedule, _ in agent._parts.preset.spans} == {512}


def test_budget_in_episodes_replaces_the_steps_but_not_the_span_of_schedules() -> None:
    agent = make(rollout_steps=16, batch_size=128, episodes=3)
    history = agent.fit(verbose=0)
    assert agent.episodes >= 3 and history.stop_reason == "episodes"
    assert {schedule.steps for schedule, _ in agent._parts.preset.spans} == {100_000}


def test_vector_environment_has_its_own_number_of_lanes() -> None:
    agent = make(rollout_steps=16, batch_size=48)
    agent.fit(gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync"), steps=48, verbose=0)
    assert agent._parts.session.lanes.num_envs == 3


def test_callbacks_of_a_preset_end_training_unless_fit_has_a_budget_or_such_a_callback() -> None:
    rule = {"class": "EarlyStopping", "trial_count": 1, "criterion": 1.0}
    arguments = {"steps": 512, "rollout_steps": 32, "batch_size": 32, "callbacks": [rule]}
    preset = Preset("PPO", "CartPole-v1", "fast", "source", "evidence", arguments)

    def steps(**of_fit: Any) -> int:
        agent = preset.make(noterl.PPO, "CartPole-v1", SMALL)
        agent.fit(verbose=0, **of_fit)
        return agent.steps

    assert steps() < 100  # the first episode reaches the criterion
    assert steps(callbacks=[noterl.callbacks.TerminateOnNaN()]) < 100
    assert steps(steps=128) == 128
    assert steps(callbacks=[EarlyStopping(1, 1e6)]) == 512


def test_data_set_needs_a_budget_of_its_own() -> None:
    agent = noterl.SAC.from_preset("Pendulum-v1", hidden=(8,), seed=1)
    data = noterl.Dataset.record(agent, steps=300)
    with pytest.raises(ValueError, match="updates must be given"):
        agent.fit(dataset=data, verbose=0)
    assert agent.steps == agent.updates == 0


def test_restored_agent_warns_of_a_learning_rate_that_has_ended(tmp_path: Path) -> None:
    agent = make(rollout_steps=16, batch_size=128)
    agent.fit(steps=256, num_envs=8, vectorize=False, verbose=0)
    agent.save(tmp_path / "agent.noterl")
    agent.fit(steps=256, num_envs=8, vectorize=False, verbose=0)  # the preset's schedules span this budget, too
    loaded = noterl.load(tmp_path / "agent.noterl")
    with pytest.warns(UserWarning, match="learning_rate .* is 0 after 256 steps, so its updates change nothing"):
        loaded.fit(steps=256, num_envs=8, verbose=0)


@pytest.mark.parametrize("env", ["ALE/Pong-v5", "PongNoFrameskip-v4"])
def test_nearest_preset_of_an_atari_id_is_that_of_the_game(env: str) -> None:
    with pytest.raises(ValueError, match="the nearest are atari:Pong"):
        noterl.PPO.from_preset(env, name="zoo")
    with pytest.raises(ValueError, match="SAC has no preset for") as error:
        noterl.SAC.from_preset(env, name="zoo")
    assert "atari" not in str(error.value)


def test_schedules_span_the_updates_on_a_data_set() -> None:
    agent = noterl.SAC.from_preset("Pendulum-v1", hidden=(8,), seed=1)
    data = noterl.Dataset.record(agent, steps=300)
    for updates in (20, 50):
        agent.fit(dataset=data, updates=updates, verbose=0)
        (schedule,) = [schedule for schedule, _ in agent._parts.preset.spans]
        assert schedule.steps == agent.updates
    agent.fit(episodes=1, verbose=0)
    assert schedule.steps == 6_000  # the preset's own budget


def test_resumed_second_fit_has_the_schedules_of_an_uninterrupted_one(tmp_path: Path) -> None:
    def script(path: Path, stop_at: float = np.inf) -> Any:
        agent = make(rollout_steps=16, batch_size=128)

        class Stop(noterl.Callback):
            def on_episode_end(self, episode: int, logs: dict[str, Any]) -> None:
                if agent.steps > stop_at:
                    raise RuntimeError("killed")

        for _ in range(2):
            backup = noterl.callbacks.BackupAndRestore(path, save_freq=1, unit="steps")
            agent.fit(steps=512, num_envs=8, vectorize=False, callbacks=[backup, Stop()], verbose=0)
        return agent

    whole = script(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="killed"):
        script(tmp_path / "parts", stop_at=700)
    resumed = script(tmp_path / "parts")
    assert resumed.get_config()["clip"].steps == whole.get_config()["clip"].steps == 1024
    assert same_weights(whole, resumed)


def test_exploration_spans_a_fraction_of_the_budget() -> None:
    agent = noterl.DQN.from_preset("CartPole-v1", "zoo", seed=1)
    assert agent.policy.steps == 8_000
    agent.fit(steps=100, verbose=0)
    assert agent.policy.steps == 16
    assert agent.policy.epsilon(16) == pytest.approx(0.04)


def test_saved_agent_needs_a_budget(tmp_path: Path) -> None:
    agent = make(steps=256)
    agent.fit(verbose=0)
    agent.save(tmp_path / "agent.noterl")
    loaded: Any = noterl.load(tmp_path / "agent.noterl")
    assert repr(loaded.get_config()["clip"]) == "Linear(start=0.2, end=0.0, steps=256)"
    with pytest.raises(ValueError, match="episodes or steps"):
        loaded.fit(verbose=0)


def test_subclass_has_the_presets_of_its_base() -> None:
    class Mine(noterl.PPO):
        pass

    assert find(Mine, "CartPole-v1", "zoo").algorithm == "PPO"
    assert find(noterl.PPO, "atari:Breakout", "zoo").env == "atari:*"


@pytest.mark.parametrize(
    ("algorithm", "env", "name", "text"),
    [
        ("PPO", "CartPol-v1", "zoo", r"env: .*'CartPol-v1'.*CartPole-v1"),
        ("SAC", "CartPole-v1", "zoo", "presets of A2C and DQN and PPO"),
        ("PPO", "CartPole-v1", "quick", r"name must .*'zoo'.*got 'quick'"),
        ("MADDPG", "CartPole-v1", "zoo", r"MADDPG .*: A2C, DQN"),
        ("Rainbow", "CartPole-v1", "zoo", "Rainbow has no presets"),
    ],
)
def test_missing_preset_names_the_nearest(algorithm: str, env: str, name: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        getattr(noterl, algorithm).from_preset(env, name)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"hiden": (8,)}, r"hiden .*'hidden'"),
        ({"callbacks": [noterl.Callback()]}, "callbacks must be an argument of fit"),
        ({"dataset": "data.npz"}, "dataset must be an argument of fit"),
        ({"steps": "many"}, "steps must be"),
        ({"env": gymnasium.make("CartPole-v1")}, "env must be the id of a task"),
    ],
)
def test_wrong_argument_is_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        noterl.PPO.from_preset(**{"env": "CartPole-v1", **arguments})


def test_command_line_runs_the_same_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--env", "CartPole-v1", "--preset", "zoo", "--hidden", "8", "--epochs", "1", "--seed", "1"]
    assert main(["train", "ppo", *words, "--steps", "512", "--quiet", "--out", str(tmp_path / "first")]) == 0
    config = str(tmp_path / "first" / "run.toml")
    assert main(["train", "--config", config, "--quiet", "--out", str(tmp_path / "second")]) == 0
    agent = make()
    agent.fit(steps=512, verbose=0)
    for folder in ("first", "second"):
        loaded: Any = noterl.load(tmp_path / folder / "agent.noterl")
        assert same_weights(agent, loaded)
    assert main(["train", "ppo", *words[:3], "quick", "--out", str(tmp_path / "third")]) == 2
    assert "name must be" in capsys.readouterr().err


@pytest.mark.backend_free
def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "td3"]) == 0
    printed = capsys.readouterr().out
    assert "td3 Pendulum-v1 zoo" in printed and "20,000 steps" in printed and "ppo" not in printed
    assert main(["presets", "acer"]) == 2
    assert main(["presets", "tdd"]) == 2
    assert main(["presets", "td3", "sac"]) == 0
    assert "sac Pendulum-v1 zoo" in capsys.readouterr().out

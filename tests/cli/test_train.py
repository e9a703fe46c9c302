"""`noterl train`: options from signatures, run.toml, errors and exit codes."""

from __future__ import annotations

import inspect
import os
import tomllib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import noterl
from noterl import saving
from noterl.cli import callback_options, main
from noterl.cli.train import train_options
from noterl.utils.tables import read_columns

pytestmark = [pytest.mark.backends("torch"), pytest.mark.filterwarnings("ignore:fit ended without a gradient update")]

SMALL = ["--env", "CartPole-v1", "--hidden", "8", "--steps", "80", "--verbose", "0"]


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_argument_is_an_option() -> None:
    for name, agent in (("dqn", noterl.DQN), ("ppo", noterl.PPO)):
        keys = {option.key for option in train_options(name)}
        for function in (agent, agent.compile, agent.fit):
            assert set(inspect.signature(function).parameters) - {"self", "callbacks"} <= keys
    for key, kind in callback_options.offered().items():
        names = {each.name for each in inspect.signature(kind).parameters.values() if each.kind is not each.VAR_KEYWORD}
        assert {f"{key}.{name}" for name in names} <= keys and key in keys


def test_every_option_has_a_help() -> None:
    assert [option.key for option in train_options("ppo") if len(option.help) < 10] == []


def test_run_writes_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["train", "dqn", *SMALL, "--seed", "3", "--num-envs", "2", "--no-double", "--optimizer", "Adam(1e-4)"])
        == 0
    )
    folder = Path("runs", "dqn-CartPole-v1-1")
    assert sorted(path.name for path in folder.iterdir()) == ["agent.noterl", "log.csv", "run.toml"]
    assert str(folder / "agent.noterl") in capsys.readouterr().out
    agent = noterl.load(folder / "agent.noterl")
    assert agent.steps == 80 and agent.generators.seed == 3 and agent.get_config()["double"] is False
    assert agent.learning_rate == pytest.approx(1e-4)
    assert tomllib.loads((folder / "run.toml").read_text()) == {
        "agent": "dqn", "env": "CartPole-v1", "seed": 3, "backend": os.environ["KERAS_BACKEND"], "hidden": [8],
        "steps": 80, "verbose": 0, "num_envs": 2, "double": False, "optimizer": "Adam(1e-4)",
    }  # fmt: skip


def test_config_repeats_the_run() -> None:
    options = ["--policy", "EpsGreedyQPolicy(0.3)", "--learning-starts", "20", "--evaluate.every", "1"]
    options += ["--evaluate.episodes", "1", "--checkpoint", "kept", "--checkpoint.save-weights-only"]
    assert main(["train", "dqn", *SMALL, *options, "--quiet"]) == 0  # with a random seed
    assert main(["train", "--config", "runs/dqn-CartPole-v1-1/run.toml", "--quiet"]) == 0
    first, second = (Path("runs", f"dqn-CartPole-v1-{number}") for number in (1, 2))
    assert (first / "run.toml").read_text() == (second / "run.toml").read_text()
    states = [saving.read(folder / "agent.noterl")["state"] for folder in (first, second)]
    for one, other in zip(*(state["variables"]["q"] for state in states), strict=True):
        np.testing.assert_array_equal(one, other)
    logs = [read_columns(folder / "log.csv") for folder in (first, second)]
    assert logs[0]["reward"] == logs[1]["reward"] and "evaluation_reward_mean" in logs[0]


def test_command_line_takes_precedence_over_the_file() -> None:
    Path("a.toml").write_text(
        'agent = "dqn"\nenv = "CartPole-v1"\nsteps = 500\nhidden = 8\nverbose = 0\nseed = 1\n'
        'policy = "GreedyQPolicy()"\n[csv]\npath = "a.csv"\n[terminate-on-nan]\n'
    )
    assert main(["train", "dqn", "--config=a.toml", "--steps", "30", "--csv", "b.csv", "--out", "here"]) == 0
    table = tomllib.loads(Path("here/run.toml").read_text())
    assert (table["steps"], table["csv"], table["terminate_on_nan"]) == (30, {"path": "b.csv"}, {})
    assert Path("b.csv").exists() and not Path("a.csv").exists() and not Path("here/log.csv").exists()
    assert isinstance(noterl.load("here/agent.noterl").policy, noterl.policies.GreedyQPolicy)


def test_callbacks_receive_their_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--early-stopping.criterion", "1", "--early-stopping.trial-count", "2", "--steps", "2000"]
    assert main(["train", "dqn", *SMALL, *options]) == 0
    assert "ended by reward reached 1" in (text := capsys.readouterr().out) and text.startswith("2 episodes")
    assert main(["train", "dqn", *SMALL, "--hyperparameter-scheduler", "gamma"]) == 2
    assert "schedule" in capsys.readouterr().err


def test_first_argument_of_a_callback_may_be_left_out() -> None:
    given: Any = {"evaluate": callback_options.Given(True, True)}
    [evaluate] = callback_options.make_callbacks(given)
    assert evaluate.every.count == 10
    [adapt] = callback_options.make_callbacks(
        {"ess_adapt.lr": callback_options.Given(noterl.callbacks.Rate(0.1, 0.0, 1.0), "Rate(0.1, 0, 1)")}
    )
    assert type(adapt).__name__ == "ESSAdapt"


def test_callbacks_that_add_metrics_come_before_those_that_monitor(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--evaluate.every", "2", "--evaluate.episodes", "1", "--early-stopping.criterion", "1"]
    options += ["--early-stopping.monitor", "evaluation_reward_mean", "--steps", "2000"]
    assert main(["train", "dqn", *SMALL, *options]) == 0
    assert "ended by evaluation_reward_mean reached 1" in capsys.readouterr().out


def test_callbacks_take_environments_as_the_agent_does() -> None:
    given: Any = {"evaluate": callback_options.Given("FrozenLake-v1(is_slippery=False)", "")}
    [evaluate] = callback_options.make_callbacks(given)
    env = evaluate._arguments["env"]()
    assert env.spec.kwargs["is_slippery"] is False
    env.close()


@pytest.mark.parametrize(
    ("options", "suggestion"),
    [
        (["--gama", "0.9"], "--gamma"), (["--early-stoping.criterion", "3"], "--early-stopping.criterion"),
        (["--gamma", "2"], "gamma"), (["--policy", "EpsGreedyQPolcy(0.1)"], "EpsGreedyQPolicy"),
        (["--steps", "-3"], "steps"), (["--env", "CartPoll-v1"], "CartPole"), (["--backend", "theano"], "theano"),
        (["--checkpoint.save-freq", "3"], "path"), (["--early-stopping.trial-count", "0"], "trial_count"),
        (["--info", "reward"], "info"), (["--overwrite", "no"], "--overwrite must be true or false"),
    ],
)  # fmt: skip
def test_wrong_option_gives_code_2_and_leaves_nothing(
    options: list[str], suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "dqn", *SMALL, *options]) == 2
    assert suggestion in capsys.readouterr().err
    assert not list(Path().rglob("agent.noterl"))


def test_missing_environment_gives_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "dqn", "--steps", "3"]) == 2
    assert "--env" in capsys.readouterr().err


def test_callback_without_arguments_is_switched_off() -> None:
    assert main(["train", "dqn", *SMALL, "--doctor", "--terminate-on-nan", "--out", "first", "--quiet"]) == 0
    assert {"doctor", "terminate_on_nan"} <= {*tomllib.loads(Path("first/run.toml").read_text())}
    options = ["--no-doctor", "--terminate-on-nan", "false", "--out", "second", "--quiet"]
    assert main(["train", "--config", "first/run.toml", *options]) == 0
    assert not {"doctor", "terminate_on_nan"} & {*tomllib.loads(Path("second/run.toml").read_text())}


def test_several_optimizers_are_read_back() -> None:
    options = ["--env", "Pendulum-v1", "--hidden", "4", "--steps", "20", "--quiet"]
    assert main(["train", "sac", *options, "--optimizer", "(3e-4, 1e-3, 3e-4)", "--out", "first"]) == 0
    assert main(["train", "--config", "first/run.toml", "--out", "second", "--quiet"]) == 0
    agent = noterl.load("second/agent.noterl")
    assert agent.get_rule("learning_rate", "critic") == pytest.approx(1e-3)


def test_unknown_key_of_a_file_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.toml").write_text('agent = "dqn"\nenv = "CartPole-v1"\ngama = 0.9\n')
    assert main(["train", "--config", "a.toml"]) == 2
    assert "'gamma'" in capsys.readouterr().err
    assert main(["train", "ppo", "--config", "a.toml"]) == 2


def test_existing_run_is_kept_unless_overwrite_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "dqn", *SMALL, "--out", "here", "--quiet"]) == 0
    before = Path("here/run.toml").read_text()
    assert capsys.readouterr().out == ""
    assert main(["train", "dqn", *SMALL, "--out", "here"]) == 2
    assert "--overwrite" in capsys.readouterr().err and Path("here/run.toml").read_text() == before
    assert main(["train", "dqn", *SMALL, "--out", "here", "--overwrite"]) == 0


def test_command_whose_training_does_not_begin_leaves_the_folder_as_it_was() -> None:
    no_budget = ["train", "dqn", *SMALL[: SMALL.index("--steps")], *SMALL[SMALL.index("--steps") + 2 :], "--out"]
    assert main([*no_budget, "new"]) == 2 and not Path("new").exists()
    assert main(["train", "dqn", *SMALL, "--out", "old", "--quiet"]) == 0
    before = Path("old/run.toml").read_bytes()
    assert main([*no_budget, "old", "--overwrite"]) == 2 and Path("old/run.toml").read_bytes() == before


def test_training_continues_from_a_file() -> None:
    assert main(["train", "dqn", *SMALL, "--out", "a", "--quiet"]) == 0
    agent = noterl.load("a/agent.noterl")
    agent.save_weights("a/weights.safetensors")
    assert main(["train", "dqn", *SMALL, "--out", "b", "--restore", "a/agent.noterl", "--quiet"]) == 0
    assert noterl.load("b/agent.noterl").steps == 160
    assert main(["train", "dqn", *SMALL, "--out", "d", "--restore", "b", "--quiet"]) == 0
    assert noterl.load("d/agent.noterl").steps == 240
    options = ["--weights", "a/weights.safetensors", "--out", "c", "--quiet"]
    assert main(["train", "dqn", *SMALL, *options]) == 0
    weights = noterl.load("c/agent.noterl").get_weights()  # 80 steps are fewer than learning_starts
    for name, array in agent.get_weights().items():
        np.testing.assert_array_equal(weights[name], array)


def test_failure_gives_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "dqn", *SMALL, "--restore", "nowhere.noterl"]) == 1
    assert "nowhere.noterl" in capsys.readouterr().err


def test_interrupted_run_saves_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Any, episode: int, logs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(callback_options.offered()["csv"], "on_episode_end", interrupt)
    assert main(["train", "dqn", *SMALL, "--out", "a", "--quiet"]) == 130
    assert 0 < noterl.load("a/agent.noterl").steps < 80


def test_failed_run_saves_the_agent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(self: Any, episode: int, logs: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(callback_options.offered()["csv"], "on_episode_end", fail)
    assert main(["train", "dqn", *SMALL, "--out", "a", "--quiet"]) == 1
    assert "the disk is full" in capsys.readouterr().err
    assert 0 < noterl.load("a/agent.noterl").steps < 80


def test_help_shows_the_options_of_the_agent(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--gae-lambda" in text and "--batch-size" in text and "--num-envs" in text and "(default: 0.99)" in text
    assert "--double" not in text and "--early-stopping" not in text
    assert main(["callbacks", "early-stopping"]) == 0
    assert "--early-stopping.criterion" in capsys.readouterr().out
    assert main(["callbacks"]) == 0
    assert "reduce-lr-on-plateau" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("agent", "flag", "options"),
    [
        ("dqn", "--n-envs", ["--num-envs"]),
        ("dqn", "--lr", ["--optimizer"]),
        ("dqn", "--checkpoints", ["--checkpoint.save-best-only", "--checkpoint.save-weights-only"]),
        ("dqn", "--target-reward", ["--early-stopping.trial-count", "--early-stopping.criterion"]),
        ("dqn", "--buffer-max-size", ["--replay"]),
        ("ppo", "--lam", ["--gae-lambda"]),
        ("ppo", "--total_timesteps", ["--steps"]),
        ("dqn", "--step", ["--steps"]),
    ],
)
def test_option_of_another_library_is_answered_with_ours(
    agent: str, flag: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", agent, *SMALL, flag, "1"]) == 2
    error = capsys.readouterr().err
    assert f"unknown option {flag}: " in error and all(option in error for option in options), error
    assert not Path("runs").exists()


def test_range_written_as_two_numbers_is_answered_with_a_range(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "dqn", "--env", "CartPole-v1", "--gamma", "0.9", "0.999"]) == 2
    error = capsys.readouterr().err
    assert "--gamma takes one value, got 0.9, 0.999; a range" in error and '"Float(0.9, 0.999)"' in error


def test_data_set_takes_the_place_of_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    spaces = gymnasium.spaces.Box(-1.0, 1.0, (3,)), gymnasium.spaces.Discrete(2)
    episode = [np.zeros((41, 3))], [np.arange(40) % 2], [np.ones(40)], [True]
    noterl.Dataset(*episode, observation_space=spaces[0], action_space=spaces[1]).save("data.npz")
    options = [
        "--dataset",
        "data.npz",
        "--updates",
        "6",
        "--updates-per-epoch",
        "3",
        "--hidden",
        "8",
        "--batch-size",
        "8",
    ]
    assert main(["train", "dqn", *options]) == 0
    folder = Path("runs", "dqn-dataset-1")
    agent = noterl.load(folder / "agent.noterl")
    assert (agent.steps, agent.updates, agent.observation_space) == (0, 6, spaces[0])
    assert read_columns(folder / "log.csv")["updates"] == [3, 6]
    assert main(["train", "--config", str(folder / "run.toml")]) == 0
    other = noterl.load(Path("runs", "dqn-dataset-2", "agent.noterl"))
    assert all(np.array_equal(value, other.get_weights()[name]) for name, value in agent.get_weights().items())

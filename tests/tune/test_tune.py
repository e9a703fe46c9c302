"""`tune`: trials in processes, pruning, limits, resuming, results."""

from __future__ import annotations

import datetime
import gc
import math
import os
import platform
import resource
import subprocess
import sys
import time
import tomllib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.cli import main
from noterl.cli.values import parse_value
from noterl.tune import Choice, Float, tune
from noterl.tune.search import Limits, Result, Search, TrialError, describe, open_study, search_space, write_best
from noterl.tune.trial import Task, make_population
from noterl.tune.trial import run as run_trial

pytestmark = pytest.mark.backends("torch")

optuna = pytest.importorskip("optuna")

STATES = optuna.trial.TrialState


class Fixed(noterl.Agent):
    """Learns nothing; its return is `level`, from which the environment reads its reward.

    `behavior` "raise" raises, "exit" ends the process, and "fill" uses memory.
    """

    memory, head = "replay", noterl.heads.Q()

    def __init__(self, env: Any, *, level: float = 0.5, behavior: str = "", seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.level, self.behavior = level, behavior
        self.q = noterl.networks.mlp(self.observation_size, [2], self.action_size)
        if behavior == "raise":
            raise RuntimeError("this trial raises")
        if behavior == "exit":
            os._exit(7)
        if behavior == "fill":
            self.ballast = np.ones(2**31, np.uint8)
            time.sleep(60)

    def forward(self, observation: Any) -> Any:
        return self.q(observation)

    def loss(self, batch: Any) -> Any:
        return 0.0 * self.q(batch.observation)[0, 0]

    def evaluate(self, *args: Any, **options: Any) -> dict[str, Any]:
        return {"reward_mean": self.level + 0.01 * (self.generators.seed % 7)}


class OneStepEnv(gymnasium.Env):
    """Episodes of one step."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, True, False, {}


def run(path: Path, space: Any, **options: Any) -> Any:
    arguments = {"steps": 4, "evaluations": 2, "verbose": 0, "out": path, **options}
    return tune(Fixed, OneStepEnv, space, **arguments)


def states(result: Any) -> list[str]:
    return [trial.state.name for trial in result.study.trials]


class InProcess(Search):
    """Replaces the process of a trial by a function of its values: values of each seed and evaluation."""

    def _measure(self, task: Any, goes_on: Any) -> Any:
        results = []
        for position, _ in enumerate(task.seeds):
            for number in range(1, task.evaluations + 1):
                value = float(task.values.get("level", 0.5)) * number
                results += [value] if number == task.evaluations else []
                if not goes_on([position], number, [value]):
                    return results, True
        return results, False


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noterl.tune.search.Search", InProcess)


class TestSearch:
    pytestmark = pytest.mark.usefixtures("in_process")

    def test_best_trial_has_the_highest_value(self, tmp_path: Path) -> None:
        result = run(tmp_path, {"level": Float(0.0, 1.0)}, trials=8, pruner="none", evaluations=3, jobs=2)
        levels = [trial.params["level"] for trial in result.study.trials]
        assert len(levels) == len(set(levels)) == 8
        assert result.best == {"level": max(levels)} and result.value == pytest.approx(3 * max(levels))
        assert result.default == 1.5 and result.is_better == (max(levels) > 0.5)
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "best.toml", "history.png", "importances.png", "study.log",
        ]  # fmt: skip

    def test_median_prunes_bad_trials_after_the_warmup(self, tmp_path: Path) -> None:
        result = run(tmp_path, {"level": Float(0.0, 1.0)}, trials=12, warmup_trials=4, seed=3)
        found = states(result)
        assert found[:4] == ["COMPLETE"] * 4 and "PRUNED" in found[4:] and len(found) == 12
        for trial in result.study.trials:
            if trial.state is STATES.PRUNED:
                assert list(trial.intermediate_values) == [1]

    def test_wilcoxon_compares_seeds(self, tmp_path: Path) -> None:
        pytest.importorskip("scipy")
        result = run(tmp_path, {"level": Float(0.0, 1.0)}, trials=10, pruner="wilcoxon", seeds_per_trial=8)
        assert "PRUNED" in states(result)
        longest = max(result.study.trials, key=lambda trial: len(trial.intermediate_values))
        assert list(longest.intermediate_values) == list(range(8))

    def test_search_continues_until_the_study_is_full(self, tmp_path: Path) -> None:
        space = {"level": Float(0.0, 1.0)}
        first = [trial.params for trial in run(tmp_path, space, trials=3, sampler="random").study.trials]
        second = [trial.params for trial in run(tmp_path, space, trials=5, sampler="random").study.trials]
        assert second[:3] == first and len({params["level"] for params in second}) == 5
        assert len(run(tmp_path, space, trials=5).study.trials) == 5

    def test_value_of_another_process_is_not_tried_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        space = {"level": Float(0.0, 1.0)}
        alone = run(tmp_path / "alone", space, trials=1).study.trials[0]

        def open_before_another_asks(*arguments: Any) -> Any:
            opened = open_study(*arguments)
            open_study(*arguments).ask()
            return opened

        monkeypatch.setattr("noterl.tune.search.open_study", open_before_another_asks)
        shared = run(tmp_path / "shared", space, trials=2).study.trials
        assert shared[1].params["level"] != alone.params["level"]

    def test_study_in_a_database_continues(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("sqlalchemy")
        monkeypatch.chdir(tmp_path)
        arguments = {"storage": "sqlite:///study.db", "jobs": 2}
        first = [trial.params for trial in run(Path("out"), {"level": Float(0, 1)}, trials=2, **arguments).study.trials]
        result = run(Path("out"), {"level": Float(0, 1)}, trials=4, **arguments)
        assert [trial.params for trial in result.study.trials][:2] == first and states(result) == ["COMPLETE"] * 4
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "study.db"]
        with pytest.raises(ValueError, match=r"study\.db .*another search.*seed=0"):
            run(Path("out"), {"level": Float(0, 1)}, seed=1, **arguments)
        with pytest.raises(ValueError, match="storage: mongo://x "):
            run(Path("out"), {"level": Float(0, 1)}, storage="mongo://x")

    def test_trial_of_a_dead_process_becomes_a_failed_one(self, tmp_path: Path) -> None:
        path = tmp_path / "study.log"
        study = open_study(optuna, path, "noterl", "tpe", "none", 5)
        node = platform.node()
        created = __import__("psutil").Process().create_time()
        for process in ([node, 2**22 + 1, 0.0], [node, os.getpid(), created], ["elsewhere", 2**22 + 1, 0.0]):
            study.ask().set_user_attr("process", process)
        again = open_study(optuna, path, "noterl", "tpe", "none", 5)
        assert [trial.state for trial in again.trials] == [STATES.FAIL, STATES.RUNNING, STATES.RUNNING]

    def test_trial_without_a_process_is_running_for_a_minute(self, tmp_path: Path) -> None:
        """Another process has begun the trial and has not yet stored its id, or has died before that."""
        path = tmp_path / "study.log"
        study = open_study(optuna, path, "noterl", "tpe", "none", 5)
        study.ask()
        old = optuna.trial.create_trial(state=STATES.RUNNING)
        old.datetime_start -= datetime.timedelta(minutes=2)
        study.add_trial(old)
        again = open_study(optuna, path, "noterl", "tpe", "none", 5)
        assert [trial.state for trial in again.trials] == [STATES.RUNNING, STATES.FAIL]

    @pytest.mark.filterwarnings("ignore:Some regimes for parameter")  # of Optuna, about plots of few trials
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"space": {"level": Float(0.0, 1.0), "batch_size": Choice(4, 8)}}, r"space=\['level'\]"),
            ({"space": {"level": Float(0.0, 1.0), "batch_size": 8}}, r"batch_size=None \(now '8'\)"),
            ({"steps": 5}, r"steps=4 \(now 5\)"),
            ({"seed": 1}, r"seed=0 \(now 1\)"),
            ({"evaluations": 1}, "evaluations=2"),
        ],
    )
    def test_study_of_another_search_is_refused(self, tmp_path: Path, changes: Any, message: str) -> None:
        arguments = {"space": {"level": Float(0.0, 1.0)}, "trials": 2}
        run(tmp_path, **arguments)
        best = (tmp_path / "best.toml").read_bytes()
        with pytest.raises(ValueError, match=rf"out or study must .*{message}"):
            run(tmp_path, **{**arguments, **changes})
        assert (tmp_path / "best.toml").read_bytes() == best
        assert len(run(tmp_path, **{**arguments, **changes}, study="another").study.trials) == 2
        wider = {"space": {"level": Float(0.0, 2.0)}, "trials": 3}
        assert len(run(tmp_path, **wider).study.trials) == 3

    def test_function_as_space_receives_trial_and_steps(self, tmp_path: Path) -> None:
        asked = []

        def space(trial: Any, steps: int) -> dict[str, Any]:
            asked.append(steps)
            return {"level": trial.suggest_float("x", 0, 1) / 2}

        result = run(tmp_path, space, trials=2, pruner="none")
        assert result.best == {"level": result.study.best_params["x"] / 2} and set(asked) == {4}

    def test_constants_are_part_of_every_trial(self, tmp_path: Path) -> None:
        result = run(tmp_path, {"level": Choice(0.1, 0.2), "batch_size": 8}, trials=2, pruner="none")
        assert result.best["batch_size"] == 8
        assert tomllib.loads((tmp_path / "best.toml").read_text())["batch_size"] == 8

    def test_default_space_takes_constants(self) -> None:
        space, constants = search_space(noterl.PPO, {"num_envs": 8})
        assert constants == {"num_envs": 8}
        values = space(optuna.create_study().ask(), 100)
        assert values["num_envs"] == 8 and "clip" in values

    def test_best_toml_names_what_it_cannot_hold(self, tmp_path: Path) -> None:
        space = {"level": Choice(0.1, 0.2), "hook": Choice(len, abs), "nested": ((1, None), [2.5])}
        best = {name: getattr(each, "values", (each,))[0] for name, each in space.items()}
        result = Result(None, best, 1.0, 0.5, tmp_path)
        write_best(result, noterl.DQN, "CartPole-v1", 10, 1)
        text = (tmp_path / "best.toml").read_text()
        assert "# hook is missing here: a file cannot hold a value of the type builtin_function_or_method" in text
        table = tomllib.loads(text)
        assert table["level"] == 0.1 and table["nested"] == [[1, "none"], [2.5]] and "hook" not in table

    def test_best_toml_holds_the_budget_of_a_data_set(self, tmp_path: Path) -> None:
        best = {"updates": 8, "batch_size": 32}  # `updates` of `compile`, which has no effect on a data set
        write_best(Result(None, best, 1.0, 0.5, tmp_path), noterl.SAC, "Pendulum-v1", 50_000, 1, dataset="data.npz")
        table = tomllib.loads((tmp_path / "best.toml").read_text())
        assert (table["updates"], table["batch_size"]) == (50_000, 32)

    def test_best_toml_holds_nested_objects_whole(self, tmp_path: Path) -> None:
        schedule = noterl.schedules.Linear(0.123456789012345, 0.0234567890123456, 1_234_567)
        best = {"policy": noterl.policies.EpsGreedyQPolicy(schedule), "gamma": np.float64(0.93), "steps": np.int64(7)}
        write_best(Result(None, best, 1.0, 0.5, tmp_path), noterl.DQN, "CartPole-v1", 10, 1)
        table = tomllib.loads((tmp_path / "best.toml").read_text())
        assert table["gamma"] == 0.93 and table["steps"] == 7
        assert parse_value(table["policy"], "Policy").get_config()["eps"].get_config() == schedule.get_config()

    def test_best_toml_holds_objects_as_calls(self, tmp_path: Path) -> None:
        pytest.importorskip("tyro")

        def space(trial: Any, steps: int) -> dict[str, Any]:
            policy = noterl.policies.LinearEpsGreedyPolicy(1.0, trial.suggest_float("eps", 0.1, 0.2), 100)
            return {"policy": policy, "hidden": (8,), "gamma": 0.9, "optimizer": 1e-3}

        options = {"trials": 2, "steps": 40, "verbose": 0, "out": tmp_path, "pruner": "none"}
        result = tune(noterl.DQN, "CartPole-v1", space, **options)
        table = tomllib.loads((tmp_path / "best.toml").read_text())
        assert table["policy"].startswith("LinearEpsGreedyPolicy(") and table["env"] == "CartPole-v1"
        arguments = ["--config", str(tmp_path / "best.toml"), "--out", str(tmp_path / "run"), "--quiet"]
        with pytest.warns(UserWarning, match="without a gradient update"):
            assert main(["train", *arguments]) == 0
        agent = noterl.load(tmp_path / "run" / "agent.noterl")
        assert agent.steps == 40 and agent.policy.get_config() == result.best["policy"].get_config()

    @pytest.mark.parametrize(
        ("options", "argument"),
        [
            ({"trials": 0}, "trials"), ({"steps": 0}, "steps"), ({"jobs": 0}, "jobs"),
            ({"seeds_per_trial": 0}, "seeds_per_trial"),
            ({"evaluations": 5}, "evaluations"), ({"episodes": 0}, "episodes"), ({"sampler": "x"}, "sampler"),
            ({"pruner": "x"}, "pruner"), ({"pruner": "wilcoxon"}, "seeds_per_trial"), ({"memory": 0}, "memory"),
            ({"time_limit": -1}, "time_limit"), ({"seed": -1}, "seed"), ({"warmup_trials": -1}, "warmup_trials"),
        ],
    )  # fmt: skip
    def test_invalid_argument_raises(self, tmp_path: Path, options: dict[str, Any], argument: str) -> None:
        with pytest.raises(ValueError, match=argument):
            run(tmp_path / "new", {"level": Float(0, 1)}, **options)
        assert not (tmp_path / "new").exists()

    def test_agent_that_is_no_class_raises(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="agent must be a class"):
            tune("dqn", "CartPole-v1", out=tmp_path / "new")

    @pytest.mark.parametrize("space", [{"levle": Float(0, 1)}, None, 3, {"level": 0.3}])
    def test_invalid_space_raises(self, tmp_path: Path, space: Any) -> None:
        with pytest.raises(ValueError, match="space"):
            run(tmp_path / "new", space)


@pytest.mark.slow
@pytest.mark.backends("jax")
def test_failed_trials_do_not_end_the_search(tmp_path: Path) -> None:
    study = open_study(optuna, tmp_path / "study.log", "noterl", "tpe", "none", 5)
    study.set_user_attr("default", 0.1)  # so that the defaults are not measured
    behaviors = ("raise", "exit", "fill", "")
    result = run(
        tmp_path,
        lambda trial, steps: {"behavior": behaviors[trial.number]},
        trials=4,
        jobs=2,
        memory=1.6,
        pruner="none",
    )
    errors = [trial.user_attrs.get("error", "") for trial in result.study.trials]
    assert states(result) == ["FAIL", "FAIL", "FAIL", "COMPLETE"]
    assert "this trial raises" in errors[0] and "exit code 7" in errors[1] and "GiB" in errors[2]
    assert 0.5 <= result.value < 0.6 and 0.5 <= result.fresh_value < 0.6


def test_command_without_a_complete_trial_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tyro")
    monkeypatch.setattr("noterl.tune.search.tune", lambda *_, **__: Result(None, {}, math.nan, 0.5, tmp_path))
    assert main(["tune", "ppo", "--env", "CartPole-v1", "--steps", "10"]) == 1
    assert "no trial is complete" in capsys.readouterr().err


def test_trial_above_the_time_limit_fails() -> None:
    limits = Limits(None, 5e5)
    limits.check(None, time.monotonic() - 4e5)
    with pytest.raises(TrialError, match="500000 seconds"):
        limits.check(None, time.monotonic() - 6e5)


def test_failing_defaults_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, *arguments: Any) -> Any:
        raise TrialError("no reason")

    monkeypatch.setattr(Search, "_measure", fail)
    with pytest.warns(RuntimeWarning, match="no reason"):
        result = run(tmp_path, {"level": Float(0, 1)}, trials=1)
    assert states(result) == ["FAIL"] and result.best == {} and np.isnan([result.value, result.default]).all()
    assert not (tmp_path / "best.toml").exists() and "none is complete" in describe(result)


class Answers:
    """The pipe of a trial: it records what the trial sends, and answers "go" a number of times, then "prune"."""

    def __init__(self, goes: int) -> None:
        self.goes, self.messages = goes, list[tuple[Any, ...]]()

    def send(self, message: tuple[Any, ...]) -> None:
        self.messages.append(message)

    def recv(self) -> str:
        self.goes -= 1
        return "go" if self.goes >= 0 else "prune"


@pytest.mark.backends("jax")
def test_seeds_train_together_on_the_device() -> None:
    values = {"rollout_steps": 16, "epochs": 1, "hidden": (4,), "batch_size": 16, "num_envs": 2}
    task = Task(noterl.PPO, noterl.envs.functional_cartpole(), values, 100, [3, 5], 2, 4, evaluation_seed=1)
    pipe = Answers(2)
    run_trial(pipe, task)
    assert [message[:-1] for message in pipe.messages] == [("values", [0, 1], 1), ("values", [0, 1], 2), ()]
    agent = noterl.PPO(task.env, rollout_steps=16, epochs=1, hidden=(4,), seed=5)
    agent.compile(batch_size=16)
    alone = noterl.Population(agent, seeds=[5])
    for message in pipe.messages[:2]:
        alone.fit(steps=50, num_envs=2)
        assert message[-1][1] == alone.evaluate(4, seed=1)["reward_mean"][0]
    pruned = Answers(0)
    run_trial(pruned, task)
    assert pruned.messages == [pipe.messages[0], ("done",)]


@pytest.mark.backends("jax")
def test_trial_whose_loss_is_not_finite_fails() -> None:
    values = {"rollout_steps": 16, "epochs": 1, "hidden": (4,), "batch_size": 16, "num_envs": 2, "optimizer": 1e38}
    task = Task(noterl.PPO, noterl.envs.functional_cartpole(), values, 200, [3, 5], 2, 4, evaluation_seed=1)
    pipe = Answers(9)
    with pytest.warns(RuntimeWarning, match="is not finite"):
        run_trial(pipe, task)
    assert pipe.messages[-1][0] == "error" and "not finite" in pipe.messages[-1][1]


@pytest.mark.parametrize(
    ("agent", "constants", "check"),
    [
        (noterl.SAC, {"update_every": 1}, lambda values: values["updates"] == 1),
        (noterl.PPO, {"rollout_steps": 16}, lambda values: values["batch_size"] <= 16),
        (noterl.TQC, {"quantiles": 5}, lambda values: values["drop"] < 5),
    ],
)
def test_derived_values_follow_constants(agent: Any, constants: dict[str, Any], check: Any) -> None:
    space, _ = search_space(agent, constants)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    for _ in range(8):
        values = space(study.ask(), 20_000)
        assert check(values) and constants.items() <= values.items()


@pytest.mark.backends("jax")
@pytest.mark.parametrize("change", [{"agent": noterl.DQN}, {"env": "CartPole-v1"}, {"values": {"verbose": 0}}])
def test_seeds_train_one_after_another_otherwise(change: dict[str, Any]) -> None:
    task = Task(noterl.PPO, noterl.envs.functional_cartpole(), {}, 100, [3, 5], 2, 4, evaluation_seed=1)
    assert make_population(task) is not None
    assert len(make_population(replace(task, seeds=[3]))) == 1
    assert make_population(replace(task, **change)) is None


def test_pruner_receives_the_mean_of_seeds_that_train_together(tmp_path: Path) -> None:
    class Together(InProcess):
        def _measure(self, task: Any, goes_on: Any) -> Any:
            level = float(task.values.get("level", 0.5))
            for number in range(1, task.evaluations + 1):
                if not goes_on([0, 1], number, [level, 3 * level]):
                    return [level, 3 * level], True
            return [level, 3 * level], False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("noterl.tune.search.Search", Together)
        result = run(tmp_path, {"level": Float(0.0, 1.0)}, trials=2, seeds_per_trial=2)
    for each in result.study.trials:
        mean = pytest.approx(2 * each.params["level"])
        assert each.intermediate_values == {1: mean, 2: mean} and each.value == mean


@pytest.mark.backends("jax")
def test_command_tunes_and_its_result_trains(tmp_path: Path) -> None:
    """The whole way in new processes: `noterl tune`, then `noterl train --config best.toml`."""
    pytest.importorskip("tyro")
    options = ["--steps", "64", "--trials", "1", "--evaluations", "2", "--episodes", "1"]
    space = ["--gamma", "Float(0.9, 0.99)", "--hidden", "Choice((4,), (8,))", "--batch-size", "16"]
    arguments = ["tune", "dqn", "--env", "CartPole-v1", *options, *space, "--out", str(tmp_path)]
    result = subprocess.run([sys.executable, "-m", "noterl", *arguments], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "1 trials (1 complete)" in result.stdout and "best.toml" in result.stdout
    table = tomllib.loads((tmp_path / "best.toml").read_text())
    assert table["agent"] == "dqn" and 0.9 <= table["gamma"] <= 0.99 and table["hidden"] in ([4], [8])
    assert table["batch_size"] == 16


def test_training_starts_from_the_weights_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "weights.safetensors")
    trained = noterl.DQN("CartPole-v1", hidden=(4,), seed=5)
    trained.save_weights(path)
    starts: list[Any] = []
    monkeypatch.setattr(noterl.DQN, "fit", lambda self, **_: starts.append(self.get_weights()))
    monkeypatch.setattr("noterl.tune.search.Search", InProcess)
    with pytest.raises(ValueError, match=r"^weights must be the path of a file"):
        tune(noterl.DQN, "CartPole-v1", out=tmp_path, weights=tmp_path)
    space = {"gamma": Float(0.9, 0.99), "hidden": (4,)}
    tune(noterl.DQN, "CartPole-v1", space, steps=4, trials=1, evaluations=1, verbose=0, out=tmp_path, weights=path)
    assert tomllib.loads((tmp_path / "best.toml").read_text())["weights"] == path
    task = Task(noterl.DQN, "CartPole-v1", {"hidden": (4,)}, 4, (1,), 1, 1, 0, path)
    run_trial(Answering(), task)
    assert all(np.array_equal(value, starts[0][name]) for name, value in trained.get_weights().items())
    assert make_population(replace(task, seeds=(1, 2))) is None


def test_each_seed_has_objects_of_its_own() -> None:
    torch = pytest.importorskip("torch")
    network = torch.nn.Linear(4, 2)
    weight = network.weight.detach().clone()
    values = {"network": network, "replay": noterl.Replay(100), "learning_starts": 8, "batch_size": 4}
    task = Task(noterl.DQN, "CartPole-v1", values, 40, (1, 2), 1, 1, 0)
    run_trial(Answering(), task)
    assert torch.equal(network.weight, weight)


class Answering:
    """A pipe whose other end lets each trial go on."""

    def send(self, message: Any) -> None:
        assert message[0] != "error", message

    def recv(self) -> str:
        return "go"


@pytest.mark.parametrize("change", [("trial_id", "x"), ('"op_code":0', '"op_code":99'), ("study_name", "x")])
def test_damaged_journal_is_named(change: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    study = open_study(optuna, path, "noterl", "tpe", "none", 5)
    study.optimize(lambda trial: trial.suggest_float("gamma", 0.9, 0.99), n_trials=1)
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ValueError, match=r"storage: .*study\.log is damaged"):
        open_study(optuna, path, "noterl", "tpe", "none", 5)


def test_study_goes_on_after_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "study.log"

    def run_trial_of_study() -> int:
        study = open_study(optuna, path, "noterl", "tpe", "none", 5)
        study.optimize(lambda trial: trial.suggest_float("gamma", 0.9, 0.99), n_trials=1)
        return len(study.trials)

    run_trial_of_study()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The first line that the next run writes is cut.
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            run_trial_of_study()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not path.read_bytes().endswith(b"\n")
    assert [run_trial_of_study() for _ in range(2)] == [2, 3]


def test_lock_of_a_journal_is_released_after_an_error(tmp_path: Path) -> None:
    (tmp_path / "study.log").mkdir()
    for _ in range(2):  # with the lock, the second one waits
        with pytest.raises(IsADirectoryError):
            open_study(optuna, tmp_path / "study.log", "noterl", "tpe", "none", 5)
    assert [path.name for path in tmp_path.iterdir()] == ["study.log"]


def test_sparse_journal_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noterl.utils.budget.available_bytes", lambda: 2**26)
    with (tmp_path / "study.log").open("wb") as sparse:
        sparse.truncate(2**25)
    with pytest.raises(ValueError, match=r"storage: .*study\.log .*memory"):
        open_study(optuna, tmp_path / "study.log", "noterl", "tpe", "median", 2)


def test_results_in_a_journal_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    study = open_study(optuna, path, "noterl", "tpe", "none", 5)
    study.set_user_attr("default", "many")
    with pytest.raises(ValueError, match=r"storage: .*not a number"):
        open_study(optuna, path, "noterl", "tpe", "none", 5)


def trials_in(database: Path) -> list[Any]:
    with warnings.catch_warnings():
        # Optuna leaves connections to the garbage collector, which Python 3.13 warns of.
        warnings.simplefilter("ignore", ResourceWarning)
        study: Any = optuna.load_study(study_name="noterl", storage=f"sqlite:///{database}")
        found = list(study.trials)
        del study
        gc.collect()
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_two_processes_share_a_database(tmp_path: Path) -> None:
    """They start at the same time on a database that does not exist, and no value is tried twice."""
    pytest.importorskip("sqlalchemy")
    program = """
import sys, time
from pathlib import Path
import noterl.tune.search as search
from tests.tune.test_tune import Fixed, Float, InProcess, OneStepEnv, tune
def meet(point):
    Path(f"{point}-{sys.argv[1]}").touch()
    while len(list(Path().glob(f"{point}-*"))) < 2:
        time.sleep(0.01)
class Together(InProcess):
    def _run_trial(self, trial):
        meet("trial")  # so that each process has a trial
        super()._run_trial(trial)
search.Search = Together
meet("start")
tune(Fixed, OneStepEnv, {"level": Float(0, 1)}, steps=4, evaluations=2, verbose=0, trials=8,
     pruner="none", storage="sqlite:///study.db", out=sys.argv[1] + "-out")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (Path.cwd(), *sys.path)))}

    def start(name: str) -> Any:
        command = [sys.executable, "-c", program, name]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)

    with start("first") as first, start("second") as second:
        try:
            for process in (first, second):
                _, errors = process.communicate()
                assert process.returncode == 0, errors
        finally:
            first.kill()
            second.kill()
    found = trials_in(tmp_path / "study.db")
    assert len(found) in (8, 9)  # both may start the last one
    assert {trial.state for trial in found} == {STATES.COMPLETE}
    assert len({trial.params["level"] for trial in found}) == len(found)
    assert len({trial.user_attrs["process"][1] for trial in found}) == 2
    options = {"pruner": "none", "storage": f"sqlite:///{tmp_path}/study.db"}
    run(tmp_path / "third-out", {"level": Float(0, 1)}, trials=12, **options)
    again = trials_in(tmp_path / "study.db")
    assert len(again) == 12
    assert [trial.params for trial in again[: len(found)]] == [trial.params for trial in found]


def test_trial_learns_from_a_data_set() -> None:
    spaces = gymnasium.make("CartPole-v1").observation_space, gymnasium.spaces.Discrete(2)
    episode = [np.zeros((31, 4))], [np.arange(30) % 2], [np.ones(30)], [True]
    data = noterl.Dataset(*episode, observation_space=spaces[0], action_space=spaces[1])
    values = {"hidden": (4,), "batch_size": 4}
    task = Task(noterl.DQN, "CartPole-v1", values, 6, (1, 2), 2, 1, evaluation_seed=0, dataset=data)
    assert make_population(task) is None
    pipe = Answers(4)
    run_trial(pipe, task)
    assert [message[1:3] for message in pipe.messages[:-1]] == [([run], number) for run in (0, 1) for number in (1, 2)]


def test_data_sets_are_told_apart_by_their_paths(tmp_path: Path, in_process: None) -> None:
    run(tmp_path, {"level": Float(0.0, 1.0)}, trials=1, dataset=tmp_path / "a.npz")
    assert 'dataset = "' in (tmp_path / "best.toml").read_text()
    with pytest.raises(ValueError, match="dataset"):
        run(tmp_path, {"level": Float(0.0, 1.0)}, trials=1, dataset=tmp_path / "b.npz")
    with pytest.raises(ValueError, match="dataset must be a path"):
        run(tmp_path, {"level": Float(0.0, 1.0)}, trials=1, dataset=object())

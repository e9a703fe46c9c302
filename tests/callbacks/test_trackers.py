"""Callbacks that report to Optuna, Weights & Biases and MLflow."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import keras
import pytest

import noterl
from noterl.callback import CHECKPOINT
from noterl.callbacks import LambdaCallback, MLflowLogger, OptunaPruning, TrackioLogger, WandbLogger
from tests.support.tape import at, rewarded

pytestmark = pytest.mark.backends("torch")


class Trial:
    """The part of an Optuna trial that the callback uses; it is pruned at a step."""

    def __init__(self, prune_at: int = 10**9) -> None:
        self.prune_at, self.reported = prune_at, []

    def report(self, value: float, step: int) -> None:
        self.reported.append((value, step))

    def should_prune(self) -> bool:
        return self.reported[-1][1] >= self.prune_at


class Pruned(Exception):
    """Replaces `optuna.TrialPruned` if Optuna is not installed."""


@pytest.fixture
def pruned(monkeypatch: pytest.MonkeyPatch) -> type[Exception]:
    """Return the exception of a pruned trial."""
    try:
        import optuna
    except ImportError:
        monkeypatch.setitem(sys.modules, "optuna", SimpleNamespace(TrialPruned=Pruned))
        return Pruned
    return optuna.TrialPruned


class TestOptunaPruning:
    def test_means_are_reported_at_multiples(self, pruned: type[Exception]) -> None:
        trial = Trial()
        rewarded([1, 2, 3, 4, 5, 6, 7]).fit(episodes=7, callbacks=[OptunaPruning(trial, window=3, every=2)], verbose=0)
        assert trial.reported == [(1.5, 2), (3.0, 4), (5.0, 6)]

    def test_passed_multiple_is_reported(self, pruned: type[Exception]) -> None:
        from tests.support.tape import Tape, taped

        trial = Trial()
        taped(Tape(), length=4).fit(
            episodes=4, callbacks=[OptunaPruning(trial, every=6, unit="steps", monitor="steps", window=1)], verbose=0
        )
        assert trial.reported == [(8.0, 6), (12.0, 12)]

    def test_pruned_trial_raises_after_all_train_end_hooks(self, pruned: type[Exception]) -> None:
        called: list[str] = []
        others = LambdaCallback(
            on_train_end=lambda logs: called.append("end"), on_exception=lambda error: called.append("exception")
        )
        agent = rewarded([0])
        with pytest.raises(pruned, match="the trial was pruned at 4 episodes"):
            agent.fit(episodes=9, callbacks=[OptunaPruning(Trial(4), every=2), others], verbose=0)
        assert called == ["end"]
        assert agent.history.stop_reason == "the trial was pruned at 4 episodes"
        assert agent.episodes == 4

    def test_restored_state_continues_exactly(self, pruned: type[Exception]) -> None:
        trial, agent = Trial(), rewarded([1, 2, 3, 4, 5, 6])
        first = OptunaPruning(trial, window=4, every=2)
        agent.fit(episodes=3, callbacks=[first], verbose=0)
        second = OptunaPruning(trial, window=4, every=2)
        second.set_state(first.get_state())
        agent.fit(episodes=3, callbacks=[second], verbose=0)
        assert trial.reported == [(1.5, 2), (2.5, 4), (4.5, 6)]

    def test_study_prunes_trials(self) -> None:
        optuna = pytest.importorskip("optuna")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        heights = [5.0, 6.0, 1.0, 7.0]

        def objective(trial: Any) -> float:
            rewards = [heights[trial.number] * episode for episode in range(10)]
            agent = rewarded(rewards)
            agent.fit(episodes=10, callbacks=[OptunaPruning(trial, every=2, window=2)], verbose=0)
            return rewards[-1]

        pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=5)
        study = optuna.create_study(direction="maximize", pruner=pruner)
        study.optimize(objective, n_trials=4)
        assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE", "PRUNED", "COMPLETE"]
        assert study.trials[2].intermediate_values == {2: 0.5, 4: 2.5, 6: 4.5}
        assert study.best_value == 63.0

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"trial": None}, "trial must be an optuna.Trial, got None"),
            ({"every": 0}, "every must be a positive int, got 0"),
            ({"window": 0}, "window must be a positive int, got 0"),
            ({"unit": "seconds"}, "unit must be 'episodes', 'steps' or 'updates', got 'seconds'"),
        ],
    )
    def test_bad_arguments_raise(self, pruned: type[Exception], arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=f"^{message}"):
            OptunaPruning(**{"trial": Trial(), **arguments})

    def test_missing_extra_raises(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "optuna", None)
        with pytest.raises(ImportError, match=r"OptunaPruning.*noterl\[tune\]"):
            OptunaPruning(Trial())


class Run:
    """The part of a wandb run that the callback uses; stores logged rows in a list."""

    dir = "."

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments, self.id = arguments, arguments["id"] or "new"
        self.rows: list[tuple[int, dict[str, Any]]] = []
        self.axes: dict[str, str] = {}
        self.exit_code: int | None = None

    def define_metric(self, name: str, step_metric: str) -> None:
        self.axes[name] = step_metric

    def log(self, row: dict[str, Any], step: int) -> None:
        self.rows.append((step, row))

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    created: list[Run] = []

    def init(**arguments: Any) -> Run:
        created.append(Run(arguments))
        return created[-1]

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    return created


class TestTrackioLogger:
    """With the real package, in a folder of the test."""

    @pytest.fixture
    def read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[tuple[int, dict[str, Any]]]]:
        """A function that returns the stored steps and rows of the project "first"."""
        pytest.importorskip("trackio")
        for module in ("trackio.utils", "trackio.sqlite_storage", "trackio"):
            if hasattr(sys.modules[module], "TRACKIO_DIR"):
                monkeypatch.setattr(f"{module}.TRACKIO_DIR", tmp_path)

        def rows() -> list[tuple[int, dict[str, Any]]]:
            with contextlib.closing(sqlite3.connect(tmp_path / "first.db")) as database:
                found = database.execute("SELECT step, metrics FROM metrics ORDER BY id").fetchall()
            return [(step, json.loads(metrics)) for step, metrics in found]

        return rows

    def test_rows_are_logged_by_steps(self, read: Callable[[], list[tuple[int, dict[str, Any]]]]) -> None:
        logger = TrackioLogger("first", config={"note": "x"})
        rewarded([4, 5]).fit(episodes=2, callbacks=[logger], verbose=0)
        assert [(step, row["episode"], row["reward"]) for step, row in read()] == [(1, 0, 4.0), (2, 1, 5.0)]
        assert all(row["seconds"] >= 0 and "complete" not in row for _, row in read())

    def test_resumed_run_continues_without_rows_twice(
        self, read: Callable[[], list[tuple[int, dict[str, Any]]]], tmp_path: Path
    ) -> None:
        agent = rewarded([0])
        logger = TrackioLogger("first")
        agent.fit(episodes=2, callbacks=[logger], verbose=0)
        state = logger.get_state()
        agent.fit(episodes=2, callbacks=[logger], verbose=0)  # these are lost, and played again
        other, resumed = rewarded([0]), TrackioLogger("first")
        other.fit(episodes=2, verbose=0)
        resumed.set_state(state)
        other.fit(episodes=3, callbacks=[resumed], verbose=0)
        assert [step for step, _ in read()] == [1, 2, 3, 4, 5]
        assert resumed.name == logger.name

    def test_episodes_that_end_in_one_step_have_rows_of_their_own(
        self, read: Callable[[], list[tuple[int, dict[str, Any]]]]
    ) -> None:
        logger = TrackioLogger("first")
        logger.agent = rewarded([0])
        logger.on_train_begin({})
        for episode, steps in enumerate((5, 5, 6)):
            logger.on_episode_end(episode, {"steps": steps})
        logger.on_train_end({})
        assert [(step, row["steps"]) for step, row in read()] == [(5, 5), (6, 5), (7, 6)]


class TestWandbLogger:
    def test_rows_are_logged_by_steps(self, runs: list[Run], tmp_path: Path) -> None:
        add = LambdaCallback(on_episode_end=lambda episode, logs: logs.update(score=2.0, many=[1, 2]))
        logger = WandbLogger("cartpole", "first", config={"note": "x"}, mode="offline", folder=tmp_path)
        rewarded([4, 5]).fit(episodes=2, callbacks=[add, logger], verbose=0)
        (run,) = runs
        assert run.exit_code == 0 and run.axes == {"*": "steps"}
        assert [step for step, _ in run.rows] == [1, 2]
        for number, (_, row) in enumerate(run.rows):
            assert row.pop("time") >= 0
            assert row == {
                "episode": number, "reward": 4.0 + number, "length": 1, "steps": number + 1, "updates": 0, "score": 2.0
            }  # fmt: skip
        assert {name: run.arguments[name] for name in ("project", "name", "mode", "dir", "id", "resume")} == {
            "project": "cartpole", "name": "first", "mode": "offline",
            "dir": str(tmp_path), "id": None, "resume": "allow",
        }  # fmt: skip
        assert run.arguments["config"]["agent"] == "TapeAgent"
        assert run.arguments["config"]["note"] == "x"

    def test_restored_run_keeps_its_id(self, runs: list[Run]) -> None:
        first, second = WandbLogger(), WandbLogger()
        rewarded([0]).fit(episodes=1, callbacks=[first], verbose=0)
        second.set_state(first.get_state())
        rewarded([0]).fit(episodes=1, callbacks=[second], verbose=0)
        assert [run.arguments["id"] for run in runs] == [None, "new"]

    def test_episodes_that_end_in_one_step_have_rows_of_their_own(self, runs: list[Run]) -> None:
        logger, agent = WandbLogger(), rewarded([0])
        logger.agent = agent
        logger.on_train_begin({})
        for episode, steps in enumerate((5, 5, 5, 6, 20)):
            logger.on_episode_end(episode, {"steps": steps})
        other = WandbLogger()
        other.set_state(logger.get_state())
        other.agent = agent
        other.on_train_begin({})
        other.on_episode_end(5, {"steps": 20})
        first, second = runs
        assert [(step, row["steps"]) for step, row in first.rows] == [(5, 5), (6, 5), (7, 5), (8, 6), (20, 20)]
        assert [(step, row["steps"]) for step, row in second.rows] == [(21, 20)]

    def test_run_whose_folder_is_removed_is_opened_again(self, runs: list[Run], tmp_path: Path) -> None:
        def remove() -> None:
            runs[0].dir = str(tmp_path / "missing")

        rewarded([0]).fit(episodes=4, callbacks=[WandbLogger(), at(2, remove)], verbose=0)
        assert [(run.arguments["id"], run.exit_code) for run in runs] == [(None, 0), ("new", 0)]
        assert [[step for step, _ in run.rows] for run in runs] == [[1, 2], [3, 4]]

    def test_failed_training_marks_the_run(self, runs: list[Run]) -> None:
        broken = LambdaCallback(on_episode_end=lambda episode, logs: int("no number"))
        with pytest.raises(ValueError, match="no number"):
            rewarded([0]).fit(episodes=1, callbacks=[broken, WandbLogger()], verbose=0)
        assert runs[0].exit_code == 1

    def test_missing_extra_raises(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "wandb", None)
        with pytest.raises(ImportError, match=r"WandbLogger.*noterl\[wandb\]"):
            WandbLogger()

    @pytest.mark.filterwarnings("ignore")
    def test_real_wandb_writes_offline(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("wandb")
        monkeypatch.setenv("WANDB_SILENT", "true")
        logger = WandbLogger("cartpole", mode="offline", folder=tmp_path)
        agent = rewarded([4, 5, 6])
        agent.fit(episodes=2, callbacks=[logger], verbose=0)
        time.sleep(1.1)  # wandb names folders by the second, so the second run needs another one
        agent.fit(episodes=2, callbacks=[logger], verbose=0)
        files = sorted(path for path in tmp_path.rglob("*.wandb") if not path.parent.is_symlink())

        def values(file: Path, key: bytes) -> list[bytes]:
            """Each entry is a protocol buffer: the key, the length of the value, and the value as JSON."""
            return sorted(set(re.findall(rb"\x12." + key + rb"\x82\x01.(\d)", file.read_bytes())))

        expected = [[[b"1", b"2"], [b"4", b"5"]], [[b"3", b"4"], [b"6"]]]
        for _ in range(300):  # wandb's own process may write after `finish` has returned
            found = [[values(file, key) for key in (b"_step", b"reward")] for file in files]
            if found == expected:
                break
            time.sleep(0.1)
        assert found == expected
        assert all(logger.get_state()["id"] in file.name for file in files)


class Client:
    """The part of an MLflow client that the callback uses; stores runs by their ids."""

    runs: ClassVar[dict[str, Client]] = {}
    count: ClassVar[int] = 0
    down: ClassVar[bool] = False

    def check(self) -> None:
        if self.down:
            raise OSError("no server")

    def __init__(self, tracking_uri: str | None) -> None:
        self.uri = tracking_uri
        self.tracking_uri = str(tracking_uri)

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="7") if name == "known" else None

    def create_experiment(self, name: str) -> str:
        return f"new {name}"

    def create_run(self, experiment: str, run_name: str | None) -> Any:
        self.check()
        identity = f"run {self.count}"
        type(self).count += 1
        self.runs[identity] = SimpleNamespace(
            uri=self.uri, experiment=experiment, name=run_name, params={}, metrics=[], writes=0, status="RUNNING"
        )
        return SimpleNamespace(info=SimpleNamespace(run_id=identity))

    def log_batch(self, identity: str, metrics: Any = (), params: Any = ()) -> None:
        self.check()
        assert len(metrics) <= 1000
        assert len(params) <= 100
        self.runs[identity].params.update(params)
        self.runs[identity].metrics += metrics
        self.runs[identity].writes += bool(metrics)

    def get_metric_history(self, identity: str, name: str) -> list[Any]:
        return [point for point in self.runs[identity].metrics if point.key == name]

    def update_run(self, identity: str, status: str) -> None:
        self.runs[identity].status = status

    set_terminated = update_run


@pytest.fixture
def mlflow_runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    def metric(key: str, value: float, timestamp: int, step: int) -> Any:
        assert timestamp > 1e12, "milliseconds"
        return SimpleNamespace(key=key, value=value, step=step)

    entities = SimpleNamespace(Metric=metric, Param=lambda key, value: (key, value))
    monkeypatch.setattr(Client, "runs", {})
    monkeypatch.setattr(Client, "count", 0)
    monkeypatch.setattr(Client, "down", False)
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=Client, entities=entities))
    return Client.runs


class TestMLflowLogger:
    def test_rows_are_logged_by_steps(self, mlflow_runs: dict[str, Any]) -> None:
        add = LambdaCallback(on_episode_end=lambda episode, logs: logs.update({"a:b": 2.0, "many": [1, 2]}))
        logger = MLflowLogger("known", "first", parameters={"note": "x"}, tracking_uri="there", flush_every=2)
        rewarded([4, 5, 6]).fit(episodes=3, callbacks=[add, logger], verbose=0)
        run = mlflow_runs["run 0"]
        assert (run.uri, run.experiment, run.name, run.status, run.writes) == ("there", "7", "first", "FINISHED", 2)
        assert {"agent": "TapeAgent", "note": "x"}.items() <= run.params.items()
        assert all(isinstance(value, str) for value in run.params.values())
        points = {key: [point.value for point in run.metrics if point.key == key] for key in ("reward", "episode")}
        assert points == {"reward": [4.0, 5.0, 6.0], "episode": [0.0, 1.0, 2.0]}
        assert sorted({point.key for point in run.metrics}) == [
            "a_b", "episode", "length", "reward", "steps", "time", "updates"
        ]  # fmt: skip
        assert [point.step for point in run.metrics if point.key == "reward"] == [1, 2, 3]

    def test_parameters_are_written_in_calls_of_at_most_a_hundred(self, mlflow_runs: dict[str, Any]) -> None:
        parameters = {f"parameter {number}": "x" * 1000 for number in range(250)}
        rewarded([0]).fit(episodes=1, callbacks=[MLflowLogger(parameters=parameters)], verbose=0)
        found = mlflow_runs["run 0"].params
        assert found["parameter 249"] == "x" * 500
        assert {"optimizer", "batch_size", "policy", "replay"} <= found.keys()

    def test_restored_run_logs_no_step_twice(self, mlflow_runs: dict[str, Any]) -> None:
        first, second = MLflowLogger("x"), MLflowLogger("x")
        agent = rewarded([0])
        agent.fit(episodes=3, callbacks=[first], verbose=0)
        second.set_state(first.get_state())
        rewarded([0]).fit(episodes=5, callbacks=[second], verbose=0)  # plays the first three again
        assert [point.step for point in mlflow_runs["run 0"].metrics if point.key == "reward"] == [1, 2, 3, 4, 5]
        assert (list(mlflow_runs), mlflow_runs["run 0"].experiment) == (["run 0"], "new x")

    def test_saving_writes_pending_metrics(self, mlflow_runs: dict[str, Any]) -> None:
        logger, states = MLflowLogger(), []
        checkpoint = LambdaCallback(on_episode_end=lambda episode, logs: states.append(logger.get_state()))
        checkpoint.order = CHECKPOINT
        rewarded([0]).fit(episodes=1, callbacks=[logger, checkpoint], verbose=0)
        assert (states, mlflow_runs["run 0"].writes) == ([{"id": "run 0"}], 1)

    def test_failed_training_marks_the_run(self, mlflow_runs: dict[str, Any]) -> None:
        broken = LambdaCallback(on_episode_end=lambda episode, logs: int("no number"))
        with pytest.raises(ValueError, match="no number"):
            rewarded([0]).fit(episodes=1, callbacks=[broken, MLflowLogger()], verbose=0)
        assert mlflow_runs["run 0"].status == "FAILED"

    def test_bad_arguments_and_missing_extra_raise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace())
        with pytest.raises(ValueError, match=r"^flush_every must .*got 0$"):
            MLflowLogger(flush_every=0)
        monkeypatch.setitem(sys.modules, "mlflow", None)
        with pytest.raises(ImportError, match=r"MLflowLogger.*noterl\[mlflow\]"):
            MLflowLogger()

    @pytest.mark.parametrize("last", [False, True], ids=["while training", "at the end"])
    def test_removed_run_is_begun_again(self, mlflow_runs: dict[str, Any], last: bool) -> None:
        remove = at(5 if last else 3, lambda: mlflow_runs.__delitem__("run 0"))
        logger, agent = MLflowLogger(flush_every=2), rewarded([0])
        with pytest.warns(UserWarning, match=r"MLflow could not write .*'run 0'") as caught:
            agent.fit(episodes=5, callbacks=[logger, remove], verbose=0)
        assert sum("MLflow" in str(warning.message) for warning in caught) == 1
        run = mlflow_runs["run 1"]
        assert [point.value for point in run.metrics if point.key == "episode"] == ([4] if last else [2, 3, 4])
        assert (run.status, "agent" in run.params) == ("FINISHED", True)
        del mlflow_runs["run 1"]
        with pytest.warns(UserWarning, match="MLflow could not write"):
            agent.fit(episodes=1, callbacks=[logger], verbose=0)
        assert list(mlflow_runs) == ["run 2"]

    def test_rows_wait_until_mlflow_can_write(self, mlflow_runs: dict[str, Any]) -> None:
        cut, repair = (at(episode, partial(setattr, Client, "down", down)) for episode, down in ((2, True), (4, False)))
        with pytest.warns(UserWarning, match=r"\(no server\).* kept") as caught:
            rewarded([0]).fit(episodes=6, callbacks=[MLflowLogger(flush_every=1), cut, repair], verbose=0)
        assert sum("MLflow" in str(warning.message) for warning in caught) == 1
        points = [point.value for point in mlflow_runs["run 0"].metrics if point.key == "episode"]
        assert points == [*range(6)]

    def test_rows_of_a_fit_are_written_by_the_next(self, mlflow_runs: dict[str, Any]) -> None:
        agent, logger = rewarded([0]), MLflowLogger(flush_every=1)
        cut = at(2, partial(setattr, Client, "down", True))
        with pytest.warns(UserWarning, match="kept"):
            agent.fit(episodes=4, callbacks=[logger, cut], verbose=0)
        Client.down = False
        agent.fit(episodes=2, callbacks=[logger], verbose=0)
        assert [point.value for point in mlflow_runs["run 0"].metrics if point.key == "episode"] == [*range(6)]

    @pytest.mark.filterwarnings("ignore")
    def test_real_mlflow_writes_a_run(self, tmp_path: Path) -> None:
        mlflow = pytest.importorskip("mlflow")
        uri = f"sqlite:///{tmp_path}/store/runs.db"
        (tmp_path / "store").mkdir()
        logger = MLflowLogger("cartpole", tracking_uri=uri, flush_every=1)
        agent = rewarded([4, 5, 6])
        for _ in range(2):
            agent.fit(episodes=2, callbacks=[logger], verbose=0)
        client = mlflow.MlflowClient(tracking_uri=uri)
        (run,) = client.search_runs([client.get_experiment_by_name("cartpole").experiment_id])
        points = client.get_metric_history(run.info.run_id, "reward")
        assert [(point.step, point.value) for point in points] == [(1, 4.0), (2, 5.0), (3, 6.0), (4, 6.0)]
        assert (run.info.status, run.data.params["agent"]) == ("FINISHED", "TapeAgent")
        agent.fit(episodes=4, callbacks=[logger, at(7, lambda: shutil.rmtree(tmp_path / "store"))], verbose=0)
        (run,) = client.search_runs([client.get_experiment_by_name("cartpole").experiment_id])
        points = client.get_metric_history(run.info.run_id, "episode")
        assert ([point.value for point in points], run.info.status) == ([7], "FINISHED")


def test_config_is_settled_and_rows_have_no_nan(runs: list[Run]) -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    agent.compile(learning_starts=10**6)
    agent.fit(episodes=1, callbacks=[WandbLogger()], verbose=0)
    config = runs[0].arguments["config"]
    expected = {
        "agent": "DQN", "env": "CartPole-v1", "seed": 1, "hidden": "(4,)", "gamma": 0.99, "double": True,
        "optimizer": "Adam", "optimizer/learning_rate": pytest.approx(1e-3), "optimizer/beta_1": pytest.approx(0.9),
        "batch_size": agent.schedule.batch_size, "learning_starts": 10**6, "update_every": agent.schedule.update_every,
        "updates": agent.schedule.updates, "target_update": pytest.approx(0.01), "noise": None,
    }  # fmt: skip
    assert expected.items() <= config.items()
    assert config["network/q"].endswith("4x4 4 2x4 2" if keras.backend.backend() == "torch" else "4x4 4 4x2 2")
    assert config["policy"].startswith("LinearEpsGreedyPolicy(start=1.0, end=")
    assert config["replay"].startswith("Replay(capacity=100000, sampler=Uniform(), relabel=None, n_step=3")
    assert all(isinstance(value, str | int | float | None) for value in config.values())
    assert not any(isinstance(value, float) and math.isnan(value) for value in runs[0].rows[0][1].values())

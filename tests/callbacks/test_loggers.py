"""Loggers that write a table: formats, times of writing, and resuming."""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import noterl
from noterl import saving
from noterl.callback import CHECKPOINT, LambdaCallback
from noterl.callbacks import CSVLogger, JSONLogger, ParquetLogger
from noterl.utils.budget import LIMITS
from noterl.utils.tables import columns_of, json_text, plain_row, read_columns
from tests.support.doubles import TogetherVectorEnv
from tests.support.encoding import same
from tests.support.states import one_lane
from tests.support.tape import Tape, at, rewarded, taped
from tests.support.worker_envs import CountEnv

pytestmark = pytest.mark.backends("torch")

KINDS = {"csv": CSVLogger, "jsonl": JSONLogger, "parquet": ParquetLogger}


def logger_class(ending: str) -> type[Any]:
    """Return the logger class of a file ending; skip the test if its package is not installed."""
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    return KINDS[ending]


@pytest.fixture(params=sorted(KINDS))
def ending(request: pytest.FixtureRequest) -> str:
    logger_class(request.param)
    return str(request.param)


@pytest.fixture(scope="module")
def agent() -> noterl.DQN:
    return one_lane()


@pytest.fixture(scope="module")
def beginning(agent: noterl.DQN) -> dict[str, Any]:
    return agent.get_state()


class TestFormats:
    def test_file_holds_every_episode_and_metric(self, ending: str, tmp_path: Path) -> None:
        path = tmp_path / f"log.{ending}"
        add = LambdaCallback(
            on_episode_end=lambda episode, logs: logs.update(score=episode / 4, word="a,b", many=np.zeros(2))
        )
        agent = taped(Tape(), learning_starts=3)  # the first episode has no loss
        history = agent.fit(episodes=4, callbacks=[KINDS[ending](path), add], verbose=0).history
        table = read_columns(path)
        assert table["episode"] == [0, 1, 2, 3]
        assert math.isnan(table["loss"][0])
        assert table["loss"][1:] == history["loss"][1:] == [0.5, 2.5, 4.5]
        for name in ("reward", "length", "steps", "updates", "time", "score"):
            assert table[name] == history[name]
        assert table["word"] == ["a,b"] * 4
        assert "many" not in table
        assert "complete" not in table

    def test_incomplete_episode_has_no_row(self, ending: str, tmp_path: Path) -> None:
        taped(Tape(), length=5).fit(steps=9, callbacks=[KINDS[ending](tmp_path / f"log.{ending}")], verbose=0)
        assert read_columns(tmp_path / f"log.{ending}")["length"] == [5]

    def test_late_metric_gets_a_column(self, ending: str, tmp_path: Path) -> None:
        path = tmp_path / f"log.{ending}"
        add = LambdaCallback(on_episode_end=lambda episode, logs: logs.update(score=7.0) if episode == 2 else None)
        rewarded([0]).fit(episodes=4, callbacks=[KINDS[ending](path, flush_every=1), add], verbose=0)
        np.testing.assert_equal(read_columns(path)["score"], [math.nan, math.nan, 7.0, math.nan])
        assert read_columns(path)["episode"] == [0, 1, 2, 3]

    def test_csv_text(self, tmp_path: Path) -> None:
        rewarded([1.5, 2]).fit(episodes=2, callbacks=[CSVLogger(tmp_path / "log.csv")], verbose=0)
        with (tmp_path / "log.csv").open(newline="") as file:
            lines = list(csv.reader(file))
        assert lines[0] == ["episode", "reward", "length", "loss", "steps", "updates", "time"]
        assert [line[:6] for line in lines[1:]] == [["0", "1.5", "1", "", "1", "0"], ["1", "2.0", "1", "", "2", "0"]]

    def test_json_text(self, tmp_path: Path) -> None:
        add = LambdaCallback(on_episode_end=lambda episode, logs: logs.update(score=math.inf))
        rewarded([1.5]).fit(episodes=1, callbacks=[JSONLogger(tmp_path / "log.jsonl"), add], verbose=0)
        (line,) = (tmp_path / "log.jsonl").read_text().splitlines()
        row = json.loads(line, parse_constant=pytest.fail)
        assert isinstance(row.pop("time"), float)
        assert row == {
            "episode": 0, "reward": 1.5, "length": 1, "loss": None, "steps": 1, "updates": 0, "score": None
        }  # fmt: skip

    def test_parquet_has_the_columns_of_xagents(self, tmp_path: Path) -> None:
        logger_class("parquet")
        path = tmp_path / "log.parquet"
        history = rewarded([4, 2, 9, -3, 0]).fit(episodes=5, callbacks=[ParquetLogger(path, window=2)], verbose=0)
        table = read_columns(path)
        assert table["mean_reward"] == [4.0, 3.0, 5.5, 3.0, -1.5]
        assert table["best_reward"] == [4.0, 4.0, 5.5, 5.5, 5.5]
        assert table["episode_reward"] == [4.0, 2.0, 9.0, -3.0, 0.0]
        assert table["step"] == [1, 2, 3, 4, 5]
        assert table["time"] == history.history["time"]
        assert path.is_file()


class TestTimes:
    def test_rows_are_written_every_flush_every_episodes(self, ending: str, tmp_path: Path) -> None:
        path, counts = tmp_path / f"log.{ending}", []

        def count_rows(episode: int, logs: dict[str, Any]) -> None:
            counts.append(len(read_columns(path).get("episode", [])))

        counter = LambdaCallback(on_episode_end=count_rows)
        counter.order = CHECKPOINT
        rewarded([0]).fit(episodes=7, callbacks=[KINDS[ending](path, flush_every=3), counter], verbose=0)
        assert counts == [0, 0, 3, 3, 3, 6, 6]
        assert len(read_columns(path)["episode"]) == 7

    def test_pending_rows_are_written_when_training_fails(self, ending: str, tmp_path: Path) -> None:
        path, tape = tmp_path / f"log.{ending}", Tape()
        tape.acts["step 0", 5] = lambda: int("no number")
        with pytest.raises(ValueError, match="no number"):
            taped(tape).fit(episodes=9, callbacks=[KINDS[ending](path)], verbose=0)
        assert read_columns(path)["episode"] == [0, 1]


class TestResuming:
    def test_next_fit_appends_rows(self, ending: str, tmp_path: Path) -> None:
        path, agent = tmp_path / f"log.{ending}", rewarded([0])
        for _ in range(2):
            agent.fit(episodes=3, callbacks=[KINDS[ending](path)], verbose=0)
        table = read_columns(path)
        assert table["episode"] == [0, 1, 2, 3, 4, 5]
        assert table["steps"] == [1, 2, 3, 4, 5, 6]
        assert table["time"] == sorted(table["time"])

    def test_new_run_replaces_the_file(self, ending: str, tmp_path: Path) -> None:
        path = tmp_path / f"log.{ending}"
        for episodes in (5, 2):
            rewarded([0]).fit(episodes=episodes, callbacks=[KINDS[ending](path)], verbose=0)
        assert read_columns(path)["episode"] == [0, 1]

    def test_log_of_another_run_is_renamed(
        self, ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / f"log.{ending}"
        for episodes in (5, 3, 2):
            rewarded([0]).fit(episodes=episodes, callbacks=[KINDS[ending](path)], verbose=2)
        assert f"renamed to {path}.1" in capsys.readouterr().err
        for number, episodes in (("1", 5), ("2", 3)):
            old = tmp_path / f"old.{ending}"
            shutil.copy(f"{path}.{number}", old)
            assert read_columns(old)["episode"] == list(range(episodes))

    def test_only_a_run_whose_rows_would_be_lost_is_renamed(self, ending: str, tmp_path: Path) -> None:
        path, agent = tmp_path / f"log.{ending}", rewarded([0])
        logger = KINDS[ending](path)
        for callback in (logger, logger, KINDS[ending](path)):
            agent.fit(episodes=2, callbacks=[callback], verbose=0)
        assert [file.name for file in tmp_path.iterdir()] == [path.name]
        rewarded([0]).fit(episodes=1, callbacks=[logger], verbose=0)  # the same object, but another run
        assert len(list(tmp_path.iterdir())) == 2

    def test_append_continues_the_counts_of_another_run(self, ending: str, tmp_path: Path) -> None:
        path = tmp_path / f"log.{ending}"
        rewarded([7]).fit(episodes=3, callbacks=[KINDS[ending](path)], verbose=0)
        agent = taped(Tape(), length=2)
        for _ in range(2):
            agent.fit(episodes=2, callbacks=[KINDS[ending](path, append=True)], verbose=0)
        table = read_columns(path)
        assert table["episode"] == list(range(7))
        assert table["steps"] == [1, 2, 3, 5, 7, 9, 11]
        assert table["updates"][:3] == [0, 0, 0]
        assert table["updates"] == sorted(table["updates"])
        assert table["time"] == sorted(table["time"])
        assert [file.name for file in tmp_path.iterdir()] == [path.name]
        if ending == "parquet":
            assert table["step"] == table["steps"]
            assert table["best_reward"][-1] == 7.0

    def test_appended_run_is_restored_without_duplicates(
        self, ending: str, agent: noterl.DQN, beginning: dict[str, Any], tmp_path: Path
    ) -> None:
        path, states = tmp_path / f"log.{ending}", []
        agent.set_state(beginning)
        agent.fit(episodes=4, callbacks=[KINDS[ending](path)], verbose=0)
        steps = agent.steps
        agent.set_state({**beginning, "callbacks": {}})
        save = at(2, lambda: states.append(agent.get_state()))
        agent.fit(episodes=4, callbacks=[KINDS[ending](path, 1, append=True), save], verbose=0)
        whole = read_columns(path)
        assert whole["steps"][4] > whole["steps"][3] == steps
        agent.set_state(states[0])
        agent.fit(episodes=2, callbacks=[KINDS[ending](path, 1, append=True)], verbose=0)
        again = read_columns(path)
        for table in (whole, again):
            table.pop("time")
        np.testing.assert_equal(again, whole)
        assert [file.name for file in tmp_path.iterdir()] == [path.name]

    @pytest.mark.parametrize(("flush_every", "kept"), [(1, 8), (3, 3), (100, 0)])
    def test_restored_run_neither_loses_nor_duplicates_rows(
        self, ending: str, flush_every: int, kept: int, agent: noterl.DQN, beginning: dict[str, Any], tmp_path: Path
    ) -> None:
        """The crash happens after eight episodes, or right after the agent was saved at the end of the fifth."""
        whole, crashed = tmp_path / f"whole.{ending}", tmp_path / f"log.{ending}"
        states: list[dict[str, Any]] = []

        def save() -> None:
            shutil.copy(log, crashed)
            states.append(agent.get_state())

        log = tmp_path / "first" / crashed.name
        agent.set_state(beginning)
        agent.fit(episodes=8, callbacks=[KINDS[ending](log, flush_every), at(5, save)], verbose=0)
        if kept == 8:
            shutil.copy(log, crashed)
        assert len(read_columns(crashed).get("episode", [])) == kept
        agent.set_state(beginning)
        agent.fit(episodes=8, callbacks=[KINDS[ending](whole, flush_every)], verbose=0)
        agent.set_state(states[0])
        agent.fit(episodes=3, callbacks=[KINDS[ending](crashed, flush_every)], verbose=0)
        tables = [read_columns(path) for path in (whole, crashed)]
        for table in tables:
            times = table.pop("time")
            assert times == sorted(times)
        np.testing.assert_equal(tables[1], tables[0])

    def test_run_that_was_saved_before_its_first_row_appends_no_row_twice(self, ending: str, tmp_path: Path) -> None:
        path, states = tmp_path / f"log.{ending}", []
        agent = taped(Tape(), length=4)
        save = LambdaCallback()
        save.on_step_end = lambda: states.append(agent.get_state()) if agent.steps == 2 else None
        agent.fit(episodes=3, callbacks=[KINDS[ending](path, 1, append=True), save], verbose=0)
        agent.set_state(states[0])
        agent.fit(episodes=3, callbacks=[KINDS[ending](path, 1, append=True)], verbose=0)
        assert read_columns(path)["episode"] == [0, 1, 2]
        assert read_columns(path)["steps"] == [4, 8, 12]

    def test_rows_of_another_run_are_not_mixed_in(self, ending: str, tmp_path: Path) -> None:
        path = tmp_path / f"log.{ending}"
        rewarded([0]).fit(episodes=9, callbacks=[KINDS[ending](path)], verbose=0)
        agent = rewarded([0])
        agent.fit(episodes=3, verbose=0)
        agent.fit(episodes=2, callbacks=[KINDS[ending](path)], verbose=0)
        assert read_columns(path)["episode"] == [3, 4]

    @pytest.mark.parametrize("flush_every", [1, 100])
    @pytest.mark.parametrize(("saved_after", "others"), [(0, 8), (3, 8), (3, 2)])
    def test_restored_run_keeps_the_log_of_another_run(
        self, ending: str, flush_every: int, saved_after: int, others: int, tmp_path: Path
    ) -> None:
        path = tmp_path / f"log.{ending}"
        first, logger = rewarded([1]), KINDS[ending](path, flush_every)
        if saved_after:
            first.fit(episodes=saved_after, callbacks=[logger], verbose=0)
        state = {**first.get_state(), "callbacks": {logger.state_key: logger.get_state()}}
        path.unlink(missing_ok=True)
        rewarded([2]).fit(episodes=others, callbacks=[KINDS[ending](path)], verbose=0)
        first.set_state(state)
        first.fit(episodes=2, callbacks=[KINDS[ending](path)], verbose=0)
        other = (tmp_path / f"log.{ending}.1").rename(tmp_path / f"other.{ending}")
        assert len(read_columns(other)["reward"]) == others
        assert read_columns(path)["episode"] == [saved_after, saved_after + 1]

    @pytest.mark.parametrize("ending", ["csv", "jsonl"])
    def test_full_disk_leaves_no_part_of_a_row(self, ending: str, tmp_path: Path) -> None:
        resource = pytest.importorskip("resource")
        path, agent = tmp_path / f"log.{ending}", rewarded([1])
        before = resource.getrlimit(resource.RLIMIT_FSIZE)

        def fill() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, before[1]))

        free = LambdaCallback(on_exception=lambda error: resource.setrlimit(resource.RLIMIT_FSIZE, before))
        try:
            with pytest.raises(OSError, match=rf"too large.*log\.{ending}"):
                agent.fit(episodes=9, callbacks=[KINDS[ending](path, 1), at(3, fill), free], verbose=0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert read_columns(path)["episode"] == [0, 1, 2, 3]
        agent.fit(episodes=1, callbacks=[KINDS[ending](path, 1)], verbose=0)
        assert read_columns(path)["episode"] == [0, 1, 2, 3, 4]

    def test_episodes_that_end_in_the_same_step_are_not_duplicated(self, ending: str, tmp_path: Path) -> None:
        """Three environments of a vector environment end their episodes together; the second of them saves."""
        log, states = tmp_path / f"log.{ending}", []
        agent = noterl.DQN(TogetherVectorEnv([lambda: CountEnv(4)] * 3, autoreset_mode="SameStep"), seed=1)
        save = at(5, lambda: states.append(agent.get_state()))
        agent.fit(steps=24, callbacks=[KINDS[ending](log, 1), save], verbose=0)
        assert read_columns(log)["steps"] == [12] * 3 + [24] * 3
        agent.set_state(states[0])
        agent.fit(steps=12, callbacks=[KINDS[ending](log, 1)], verbose=0)
        assert read_columns(log)["episode"] == [*range(9)]

    def test_incomplete_last_line_is_dropped(self, tmp_path: Path) -> None:
        for ending in ("csv", "jsonl"):
            path, agent = tmp_path / f"log.{ending}", rewarded([0])
            agent.fit(episodes=3, callbacks=[KINDS[ending](path)], verbose=0)
            path.write_bytes(path.read_bytes()[:-5] + b"\xc3")  # the first byte of a character
            agent.fit(episodes=1, callbacks=[KINDS[ending](path)], verbose=0)
            assert read_columns(path)["episode"] == [0, 1, 3]

    @pytest.mark.parametrize("removed", ["file", "folder", "contents"])
    def test_removed_log_continues_as_a_table(self, ending: str, removed: str, tmp_path: Path) -> None:
        """As logrotate moves or truncates a log."""
        path, agent = tmp_path / "logs" / f"log.{ending}", rewarded([0])

        def remove() -> None:
            if removed == "contents":
                path.write_bytes(b"")
            else:
                path.unlink() if removed == "file" else shutil.rmtree(path.parent)

        saved: list[Any] = []
        save = at(6, lambda: saved.append(agent.get_state()))
        agent.fit(episodes=9, callbacks=[KINDS[ending](path, 2), at(4, remove), save], verbose=0)
        rows = [*range(9)] if ending == "parquet" else [*range(4, 9)]
        assert read_columns(path)["episode"] == rows
        agent.set_state(saved[0])
        agent.fit(episodes=2, callbacks=[KINDS[ending](path)], verbose=0)
        assert read_columns(path)["episode"] == rows[: rows.index(7) + 1]
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    @pytest.mark.parametrize("ending", ["csv", "jsonl"])
    def test_complete_log_is_not_written_again(self, ending: str, tmp_path: Path) -> None:
        path, agent = tmp_path / f"log.{ending}", rewarded([0])
        agent.fit(episodes=3, callbacks=[KINDS[ending](path)], verbose=0)
        before = path.stat().st_ino
        agent.fit(episodes=3, callbacks=[KINDS[ending](path)], verbose=0)
        assert path.stat().st_ino == before
        assert read_columns(path)["episode"] == [*range(6)]

    def test_resumed_log_keeps_a_column_without_values(self, tmp_path: Path) -> None:
        path = tmp_path / "log.csv"
        agent = taped(Tape(), learning_starts=10**6)
        agent.fit(episodes=3, callbacks=[CSVLogger(path)], verbose=0)
        state, header = agent.get_state(), path.read_text().splitlines()[0]
        agent.fit(episodes=3, callbacks=[CSVLogger(path)], verbose=0)
        agent.set_state(state)
        agent.fit(episodes=3, callbacks=[CSVLogger(path)], verbose=0)
        assert "loss" in header
        assert path.read_text().splitlines()[0] == header

    def test_many_pending_rows_and_words_fit_into_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(LIMITS, "values", 1_000)
        logger, history = JSONLogger(tmp_path / "log.jsonl", flush_every=10**6), noterl.History()
        row = {"reward": 1.0, "length": 1, "loss": math.nan, "steps": 1, "updates": 1, "time": 0.0, "word": "ä\n"}
        for episode in range(2_000):
            late = {"phase": "warm-up", "score": np.float64(episode), "whole": np.int64(episode)}
            for callback in (logger, history):
                callback.on_episode_end(episode, {**row, **late} if episode > 9 else row)
        saving.write(tmp_path / "a", {"log": logger.get_state(), "columns": history.history})
        read = saving.read(tmp_path / "a")
        again = JSONLogger(tmp_path / "log.jsonl")
        again.set_state(read["log"])
        assert json_text(again._pending) == json_text(logger._pending)
        assert same(read["columns"], history.history)


class TestBadInput:
    @pytest.mark.parametrize("content", ["steps,episode,reward\n1,0,1\n", "steps,episode,reward,time\n1,0,1,\n"])
    def test_log_without_times_raises(self, content: str, tmp_path: Path) -> None:
        path = tmp_path / "log.csv"
        path.write_text(content)
        with pytest.raises(ValueError, match=r"path: .*log\.csv .*time"):
            rewarded([0]).fit(episodes=1, callbacks=[CSVLogger(path)], verbose=0)

    def test_counts_that_are_no_ints_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "log.csv"
        path.write_text("steps,updates,episode,reward,time\n1,[],0,1,1\n")
        with pytest.raises(ValueError, match=r"path: .*log\.csv .*steps and updates must be ints"):
            rewarded([0]).fit(episodes=1, callbacks=[CSVLogger(path)], verbose=0)

    @pytest.mark.parametrize(
        "change",
        [
            {"reward": "high"},
            {"reward": [1.0]},
            {"reward": 10**400},
            {"steps": 1.5},
            {"steps": None},
            {"updates": "many"},
            {"time": None},
        ],
    )
    def test_logs_that_the_next_fit_would_refuse_are_not_written(
        self, change: dict[str, Any], ending: str, tmp_path: Path
    ) -> None:
        agent, path = rewarded([1]), tmp_path / f"log.{ending}"
        wrong = LambdaCallback(on_episode_end=lambda episode, logs: logs.update(change) if episode == 2 else None)
        with pytest.raises(ValueError, match=rf"logs: '{next(iter(change))}' .*episode 2 "):
            agent.fit(episodes=4, callbacks=[wrong, KINDS[ending](path, 1)], verbose=0)
        assert read_columns(path)["episode"] == [0, 1]
        agent.fit(episodes=1, callbacks=[KINDS[ending](path, 1)], verbose=0)
        assert read_columns(path)["episode"] == [0, 1, 3]

    def test_malformed_state_raises(self, tmp_path: Path) -> None:
        agent, logger = rewarded([0]), JSONLogger(tmp_path / "log.jsonl")
        state = {**logger.get_state(), "pending": ["[" * 10_000]}
        agent.set_state({**agent.get_state(), "callbacks": {logger.state_key: state}})
        with pytest.raises(ValueError, match="callbacks: the restored state"):
            agent.fit(episodes=1, callbacks=[logger], verbose=0)

    def test_other_file_raises_and_is_unchanged(self, ending: str, tmp_path: Path) -> None:
        path = tmp_path / f"log.{ending}"
        path.write_text("name,age\nAda,36\n")
        with pytest.raises(ValueError, match=rf"path: .*{KINDS[ending].__name__}"):
            rewarded([0]).fit(episodes=1, callbacks=[KINDS[ending](path)], verbose=0)
        assert path.read_text() == "name,age\nAda,36\n"

    def test_unwritable_path_raises_before_training(self, ending: str, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        agent = rewarded([0])
        with pytest.raises(OSError, match="file"):
            agent.fit(episodes=1, callbacks=[KINDS[ending](tmp_path / "file" / f"log.{ending}")], verbose=0)
        assert agent.steps == 0

    @pytest.mark.parametrize("flush_every", [0, -1, 1.5, True])
    def test_bad_flush_every_raises(self, ending: str, flush_every: Any) -> None:
        with pytest.raises(ValueError, match=rf"flush_every must .*got {flush_every}"):
            KINDS[ending]("log", flush_every)

    def test_bad_window_raises(self) -> None:
        logger_class("parquet")
        with pytest.raises(ValueError, match="window must be a positive int, got 0"):
            ParquetLogger("log.parquet", window=0)

    def test_missing_extra_raises(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
        with pytest.raises(ImportError, match=r"ParquetLogger.*noterl\[parquet\]"):
            ParquetLogger("log.parquet")

    def test_unknown_ending_raises(self) -> None:
        with pytest.raises(ValueError, match="path must"):
            read_columns("log.txt")


def test_values_of_logs_become_cells() -> None:
    values = {"a": np.int64(3), "b": np.float32(0.5), "c": np.bool_(True), "d": None, "e": [1], "f": np.zeros(2)}
    row = plain_row(values)
    assert row == {"a": 3, "b": 0.5, "c": True, "d": None}
    assert [type(value) for value in row.values()] == [int, float, bool, type(None)]
    assert columns_of([{"b": 1, "a": 2}, {"a": 1, "c": 3}]) == ["b", "a", "c"]

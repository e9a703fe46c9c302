"""Comparison of runs over seeds: the numbers in the figure."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.image
import numpy as np
import pytest

from noterl.history import History
from noterl.plotting import band, compare

pytestmark = pytest.mark.backend_free


def run(rewards: list[float], length: int = 10, **columns: Any) -> dict[str, Any]:
    steps = [length * (number + 1) for number in range(len(rewards))]
    return {"steps": steps, "reward": rewards, "episode": list(range(len(rewards))), **columns}


def history(rewards: list[float]) -> History:
    kept = History()
    for number, reward in enumerate(rewards):
        kept.on_episode_end(number, {"reward": reward, "steps": 10 * (number + 1), "time": number / 2})
    return kept


class TestBand:
    def test_median_and_quartiles(self) -> None:
        middle = band([run([0.0, height]) for height in (1.0, 2.0, 4.0, 8.0, 16.0)], window=1, points=2)
        assert middle.x.tolist() == [10.0, 20.0]
        assert [part.tolist() for part in middle[1:]] == [[0.0, 2.0], [0.0, 4.0], [0.0, 8.0]]

    def test_band_covers_common_range(self) -> None:
        """The first run goes from 10 to 30, the second from 25 to 50; a straight line joins its points."""
        middle = band([run([1.0, 2.0, 3.0]), run([10.0, 20.0], 25)], window=1, points=2)
        assert middle.x.tolist() == [25.0, 30.0]
        assert middle.median.tolist() == [(2.5 + 10.0) / 2, (3.0 + 12.0) / 2]

    def test_band_smooths_over_window(self) -> None:
        middle = band([run([3.0, 5.0, 10.0, 0.0])], window=3, points=4)
        assert middle.median.tolist() == [3.0, 4.0, 6.0, 5.0]
        assert middle.low.tolist() == middle.high.tolist() == middle.median.tolist()

    def test_missing_entries_are_skipped(self) -> None:
        middle = band([run([0.0] * 4, score=[math.nan, 2.0, math.nan, 6.0])], "score", window=1, points=3)
        assert middle.x.tolist() == [20.0, 30.0, 40.0]
        assert middle.median.tolist() == [2.0, 4.0, 6.0]

    def test_histories_and_logs_are_runs_too(self, tmp_path: Path) -> None:
        (tmp_path / "log.csv").write_text("episode,steps,reward\n0,10,4.0\n1,20,6.0\n")
        rows = ({"episode": n, "steps": 10 * n + 10, "reward": 1.0 + n, "loss": None} for n in range(2))
        (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        runs = [history([1.0, 3.0]), tmp_path / "log.csv", str(tmp_path / "log.jsonl")]
        middle = band(runs, window=1, points=2)
        assert middle.median.tolist() == [1.0, 3.0]
        assert middle.high.tolist() == [2.5, 4.5]

    @pytest.mark.parametrize(("against", "x"), [("episode", [0.0, 2.0]), ("time", [0.0, 1.0]), ("steps", [10.0, 30.0])])
    def test_band_against_other_quantities(self, against: str, x: list[float]) -> None:
        assert band([history([1.0, 2.0, 3.0])], against=against, points=2).x.tolist() == x

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (([],), "runs must be a list of histories, paths of logs or dicts of lists, got []"),
            (("none*.csv",), "runs: no file matches 'none*.csv'"),
            (([3],), "runs must hold histories, paths of logs or dicts of lists, got 3"),
            (([run([1.0])], "score"), "what: a run has no 'score'; it has steps, reward, episode"),
            (([run([math.nan])],), "what: a run has no value of 'reward'"),
            (([run([1.0, 2.0]), run([1.0], 50)],), "runs"),
        ],
    )
    def test_bad_arguments_are_named(self, arguments: tuple[Any, ...], message: str) -> None:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            band(*arguments)

    def test_bad_numbers_are_named(self) -> None:
        for name in ("window", "points"):
            with pytest.raises(ValueError, match=f"{name} must be a positive int, got 0"):
                band([run([1.0])], **{name: 0})
        with pytest.raises(ValueError, match="against: a run has no 'years'"):
            band([run([1.0])], against="years")


class TestCompare:
    def test_line_and_band_for_each_group(self, tmp_path: Path) -> None:
        kinds = {"one": [run([0.0, 4.0]), run([0.0, 8.0])], "two": [run([9.0, 9.0])]}
        figure = compare(kinds, window=1, path=tmp_path / "compare.png")
        axes = figure.axes[0]
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one (2 runs)", "two (1 runs)"]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("environment steps", "reward")
        assert axes.lines[0].get_ydata()[-1] == 6.0
        corners = axes.collections[0].get_paths()[0].vertices
        assert {5.0, 7.0} <= set(corners[corners[:, 0] == 20.0][:, 1])
        picture = matplotlib.image.imread(tmp_path / "compare.png")
        assert len(np.unique(picture[..., :3].reshape(-1, 3), axis=0)) > 20

    def test_single_group_needs_no_name(self) -> None:
        axes = compare([run([0.0, 4.0])] * 3, against="episode").axes[0]
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["median of 3 runs"]
        assert axes.get_xlabel() == "episode"

    def test_run_of_arrays_is_recognized(self) -> None:
        run_of_arrays = {name: np.array(values, np.float32) for name, values in run([1.0, 2.0]).items()}
        with pytest.raises(ValueError, match="runs must be a list of histories"):
            compare(run_of_arrays)
        counts = {name: np.array([1, 2]) for name in run([1.0, 2.0])}
        assert len(compare([counts], window=1).axes[0].lines) == 1

    def test_empty_runs_raise(self) -> None:
        with pytest.raises(ValueError, match="runs"):
            compare({})
        with pytest.raises(ValueError, match="runs must be a list of histories"):
            compare(run([1.0]))


def test_pattern_stands_for_the_files_that_match(tmp_path: Path) -> None:
    for seed in range(3):
        log = tmp_path / f"run-{seed}.csv"
        log.write_text(f"steps,reward\n0,0\n10,{10 * seed}\n")
    pattern = str(tmp_path / "run-*.csv")
    assert band(pattern, window=1, points=2).median.tolist() == [0.0, 10.0]
    assert band(tmp_path / "run-2.csv", window=1, points=2).median.tolist() == [0.0, 20.0]
    axes = compare(pattern, window=1).axes[0]
    assert [line.get_label() for line in axes.lines] == ["median of 3 runs"]
    assert len(compare({"ours": tmp_path / "run-*.csv"}, window=1).axes[0].lines) == 1
    axes = compare({"ours": pattern, "one": [tmp_path / "run-0.csv"]}, window=1).axes[0]
    assert [line.get_label() for line in axes.lines] == ["ours (3 runs)", "one (1 runs)"]


def test_dataframe_has_the_columns_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    kept = history([1.0, 2.0])
    kept.to_csv(tmp_path / "history.csv")
    columns = kept.to_dataframe()
    assert ",".join(columns) == (tmp_path / "history.csv").read_text().splitlines()[0]
    assert (columns["episode"], columns["reward"]) == ([0, 1], [1.0, 2.0])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r'History\.to_dataframe needs an extra: pip install "noterl\[pandas\]"'):
        kept.to_dataframe()


def test_real_dataframe_has_a_row_per_episode() -> None:
    pytest.importorskip("pandas")
    frame = history([1.0, 2.0]).to_dataframe()
    assert (len(frame), frame["reward"].sum()) == (2, 3.0)

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
from matplotlib.figure import Figure

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
        runs = [run([0.0, height]) for height in (1.0, 2.0, 4.0, 8.0, 16.0)]
        middle = band(runs, band="quartiles", window=1, points=2)
        assert middle.x.tolist() == [10.0, 20.0]
        assert [part.tolist() for part in middle[1:]] == [[0.0, 2.0], [0.0, 4.0], [0.0, 8.0]]

    def test_band_covers_common_range(self) -> None:
        """The first run goes from 10 to 30, the second from 25 to 50; a straight line joins its points."""
        middle = band([run([1.0, 2.0, 3.0]), run([10.0, 20.0], 25)], window=1, points=2)
        assert middle.x.tolist() == [25.0, 30.0]
        assert middle.middle.tolist() == [(2.5 + 10.0) / 2, (3.0 + 12.0) / 2]

    def test_band_smooths_over_window(self) -> None:
        middle = band([run([3.0, 5.0, 10.0, 0.0])], window=3, points=4)
        assert middle.middle.tolist() == [3.0, 4.0, 6.0, 5.0]
        assert middle.low.tolist() == middle.high.tolist() == middle.middle.tolist()

    def test_missing_entries_are_skipped(self) -> None:
        middle = band([run([0.0] * 4, score=[math.nan, 2.0, math.nan, 6.0])], "score", window=1, points=3)
        assert middle.x.tolist() == [20.0, 30.0, 40.0]
        assert middle.middle.tolist() == [2.0, 4.0, 6.0]
        middle = band(
            [run([1.0, 2.0, 3.0, 4.0], score=[math.nan, 5.0, math.nan, 6.0])], against="score", window=1, points=2
        )
        assert (middle.x.tolist(), middle.middle.tolist()) == ([5.0, 6.0], [2.0, 4.0])

    def test_histories_and_logs_are_runs_too(self, tmp_path: Path) -> None:
        (tmp_path / "log.csv").write_text("episode,steps,reward\n0,10,4.0\n1,20,6.0\n")
        rows = ({"episode": n, "steps": 10 * n + 10, "reward": 1.0 + n, "loss": None} for n in range(2))
        (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        runs = [history([1.0, 2.0]), tmp_path / "log.csv", str(tmp_path / "log.jsonl")]
        middle = band(runs, band="seeds", window=1, points=2)
        assert middle.middle.tolist() == [2.0, 10 / 3]
        assert middle.high.tolist() == [4.0, 6.0]

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

    def test_bootstrap_interval_covers_the_mean_95_times_in_100(self) -> None:
        """The interval of 40 runs has the width of the normal approximation, 1.96 standard errors to each side."""
        heights = np.random.default_rng(1).normal(size=40)
        middle = band([run([0.0, height]) for height in heights], window=1, points=2)
        error = heights.std() / 40**0.5
        assert middle.middle[1] == pytest.approx(heights.mean())
        assert (middle.high - middle.low)[1] == pytest.approx(2 * 1.96 * error, rel=0.08)
        again = band([run([0.0, height]) for height in heights], window=1, points=2)
        np.testing.assert_array_equal(middle, again)

    def test_std_is_that_of_a_sample(self) -> None:
        middle = band([run([0.0, height]) for height in (1.0, 2.0, 6.0)], band="std", window=1, points=2)
        assert [part[1] for part in middle[1:]] == pytest.approx([3 - 7**0.5, 3, 3 + 7**0.5])
        assert band([run([1.0])], band="std").high.tolist() == [1.0] * 200

    def test_evaluations_are_smoothed_only_on_request(self) -> None:
        runs = [run([0.0] * 5, evaluation_reward_mean=[1.0, math.nan, 2.0, math.nan, 9.0])]
        assert band(runs, "evaluation_reward_mean", points=3).middle.tolist() == [1.0, 2.0, 9.0]
        assert band(runs, "evaluation_reward_mean", window=3, points=3).middle.tolist() == [1.0, 1.5, 4.0]


class TestCompare:
    def test_line_and_band_for_each_group(self, tmp_path: Path) -> None:
        kinds = {"one": [run([0.0, 4.0]), run([0.0, 8.0])], "two": [run([9.0, 9.0])]}
        figure = compare(kinds, window=1, band="quartiles", path=tmp_path / "compare.png")
        axes = figure.axes[0]
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one (2 runs)", "two (1 run)"]
        assert axes.get_legend().get_title().get_text() == "median of runs, quartiles"
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("environment steps", "reward")
        assert axes.lines[0].get_ydata()[-1] == 6.0
        corners = axes.collections[0].get_paths()[0].vertices
        assert {5.0, 7.0} <= set(corners[corners[:, 0] == 20.0][:, 1])
        picture = matplotlib.image.imread(tmp_path / "compare.png")
        assert len(np.unique(picture[..., :3].reshape(-1, 3), axis=0)) > 20

    def test_single_group_needs_no_name(self) -> None:
        axes = compare([run([0.0, 4.0])] * 3, against="episode").axes[0]
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["mean of 3 runs, 95 % interval"]
        assert axes.get_xlabel() == "episode"

    def test_legend_says_once_what_line_and_band_are(self) -> None:
        axes = compare({"one": [run([0.0])] * 2, "two": [run([1.0])] * 2}, window=1, band="std").axes[0]
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one", "two"]
        assert axes.get_legend().get_title().get_text() == "mean of 2 runs, ± 1 standard deviation"

    def test_axis_says_how_values_are_smoothed(self) -> None:
        assert compare([run([0.0])]).axes[0].get_ylabel() == "reward, mean of 10"
        assert compare([run([0.0])], window=1).axes[0].get_ylabel() == "reward"

    def test_band_of_seeds_draws_each_run(self) -> None:
        axes = compare([run([0.0, height]) for height in (1.0, 2.0, 6.0)], band="seeds", window=1).axes[0]
        assert [line.get_ydata()[-1] for line in axes.lines] == [3.0, 1.0, 2.0, 6.0]
        assert not axes.collections and len(axes.get_legend().get_texts()) == 1

    @pytest.mark.parametrize("draw", [compare, band])
    def test_unknown_band_raises(self, draw: Any) -> None:
        with pytest.raises(ValueError, match=r"^band must"):
            draw([run([1.0])], band="iqr")

    def test_axes_of_the_caller_are_drawn_on(self, tmp_path: Path) -> None:
        own = Figure(figsize=(7, 3))
        left, right = own.subplots(1, 2)
        assert compare([run([0.0, 4.0])], ax=right, path=tmp_path / "both.svg") is own
        assert (len(left.lines), len(right.lines)) == (0, 1)
        assert (tmp_path / "both.svg").stat().st_size > 1000

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


class TestHistory:
    def test_quantities_have_panels_over_the_chosen_axis(self) -> None:
        kept = History()
        for number in range(12):
            logs = {"reward": number, "steps": 10 * number, "time": number / 2, "entropy": number**2}
            kept.on_episode_end(number, logs | ({"evaluation_reward_mean": 7.0} if number == 5 else {}))
        figure = kept.plot(["entropy", "evaluation_reward_mean"], x="time")
        assert [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes] == [
            ("seconds", "entropy"),
            ("seconds", "evaluation reward mean"),
        ]
        entropy, evaluation = figure.axes
        assert entropy.lines[0].get_xdata().tolist() == [number / 2 for number in range(12)]
        assert entropy.lines[1].get_ydata().tolist() == [28.5, 38.5, 50.5]
        assert [line.get_xydata().tolist() for line in evaluation.lines] == [[[2.5, 7.0]]]
        assert evaluation.lines[0].get_marker() == "."

    def test_steps_are_the_default_axis(self) -> None:
        axes = history([1.0, 2.0]).plot("reward").axes[0]
        assert (axes.get_xlabel(), axes.lines[0].get_xdata().tolist()) == ("environment steps", [10.0, 20.0])

    def test_axes_of_the_caller_are_drawn_on(self) -> None:
        own = Figure()
        panels = own.subplots(2, 2)
        assert history([1.0, 2.0]).plot(["reward", "time"], ax=panels[1]) is own
        assert [len(axes.lines) for axes in panels.flat] == [0, 0, 1, 1]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"metrics": "entropie"}, "metrics: the history has no 'entropie'; it has episode, reward"),
            ({"metrics": ["reward", "both"]}, "metrics: the history has no 'both'"),
            ({"metrics": []}, "metrics must be"),
            ({"x": "years"}, "x: the history has no 'years'"),
            ({"window": 0}, "window must be a positive int"),
            ({"ax": 3}, "ax must be 2 axes of Matplotlib"),
            ({"ax": Figure().subplots()}, "ax must be 2 axes of Matplotlib"),
            ({"metrics": "reward", "ax": "left"}, "ax must be 1 axes of Matplotlib"),
            ({"path": "curve.bmp"}, "path must end in one of .*.pdf.*, got 'curve.bmp'"),
            ({"path": "curve"}, "path must end in one of"),
        ],
    )
    def test_bad_arguments_are_named(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=f"^{message}"):
            history([1.0]).plot(**arguments)


class TestStyle:
    def test_vector_files_hold_text_and_whole_fonts(self, tmp_path: Path) -> None:
        """Journals refuse PDF files with fonts of type 3."""
        for ending in ("svg", "pdf"):
            history([1.0, 2.0]).plot(path=tmp_path / f"curve.{ending}")
        assert ">environment steps</text>" in (tmp_path / "curve.svg").read_text()
        assert b"/Type3" not in (tmp_path / "curve.pdf").read_bytes()

    def test_groups_differ_in_color_or_line(self) -> None:
        groups = {str(number): [run([float(number)])] for number in range(12)}
        lines = compare(groups, window=1).axes[0].lines
        assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 12

    def test_style_stays_inside_of_the_figures(self) -> None:
        before = dict(matplotlib.rcParams)
        history([1.0]).plot()._repr_png_()
        assert dict(matplotlib.rcParams) == before


def test_pattern_stands_for_the_files_that_match(tmp_path: Path) -> None:
    for seed in range(3):
        log = tmp_path / f"run-{seed}.csv"
        log.write_text(f"steps,reward\n0,0\n10,{10 * seed}\n")
    pattern = str(tmp_path / "run-*.csv")
    assert band(pattern, window=1, points=2).middle.tolist() == [0.0, 10.0]
    assert band(tmp_path / "run-2.csv", window=1, points=2).middle.tolist() == [0.0, 20.0]
    axes = compare(pattern, window=1).axes[0]
    assert [line.get_label() for line in axes.lines] == ["mean of 3 runs, 95 % interval"]
    assert len(compare({"ours": tmp_path / "run-*.csv"}, window=1).axes[0].lines) == 1
    axes = compare({"ours": pattern, "one": [tmp_path / "run-0.csv"]}, window=1).axes[0]
    assert [line.get_label() for line in axes.lines] == ["ours (3 runs)", "one (1 run)"]


def test_dataframe_has_the_columns_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    kept = history([1.0, 2.0])
    kept.to_csv(tmp_path / "history.csv")
    columns = kept.to_dataframe()
    assert ",".join(columns) == (tmp_path / "history.csv").read_text().splitlines()[0]
    assert (columns["episode"], columns["reward"]) == ([0, 1], [1.0, 2.0])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"History\.to_dataframe.*noterl\[pandas\]"):
        kept.to_dataframe()


def test_real_dataframe_has_a_row_per_episode() -> None:
    pytest.importorskip("pandas")
    frame = history([1.0, 2.0]).to_dataframe()
    assert (len(frame), frame["reward"].sum()) == (2, 3.0)

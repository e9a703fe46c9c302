"""EarlyStopping, LambdaCallback, the progress displays and History."""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noterl import History
from noterl.callback import EVENTS, LOGGER, Callback
from noterl.callbacks import (
    BackupAndRestore,
    EarlyStopping,
    EpisodePrinter,
    LambdaCallback,
    ProgressBar,
    StopOnSteps,
)
from noterl.training.dispatch import CallbackList
from tests.support.tape import Broken, Tape, at, broken, rewarded, taped

pytestmark = pytest.mark.backends("torch")


def stopped_after(rewards: list[float], callback: EarlyStopping) -> int:
    """Return how many of the episodes are played."""
    return len(rewarded(rewards).fit(episodes=len(rewards), callbacks=[callback], verbose=0))


def expected_end(
    rewards: list[float], trial_count: int, criterion: float | None, patience: int | None, mode: str
) -> int:
    """Return the same number, computed from all means at once."""
    sign = 1 if mode == "max" else -1
    means = {
        end: sign * sum(rewards[end - trial_count : end]) / trial_count for end in range(trial_count, len(rewards) + 1)
    }
    for end, mean in means.items():
        if criterion is not None and mean >= sign * criterion:
            return end
        first_best = min(range(trial_count, end + 1), key=lambda other: (-means[other], other))
        if patience is not None and end - first_best >= patience:
            return end
    return len(rewards)


class TestEarlyStopping:
    @settings(max_examples=300)
    @given(
        rewards=st.lists(st.integers(-3, 3), min_size=8, max_size=20),
        trial_count=st.integers(1, 4),
        criterion=st.none() | st.sampled_from([-2, -0.5, 1, 2.25]),
        patience=st.none() | st.integers(1, 5),
        mode=st.sampled_from(["max", "min"]),
    )
    def test_stops_at_the_expected_episode(
        self, rewards: list[float], trial_count: int, criterion: float | None, patience: int | None, mode: str
    ) -> None:
        if criterion is None and patience is None:
            return
        callback = EarlyStopping(trial_count, criterion, patience=patience, mode=mode)
        assert stopped_after(rewards, callback) == expected_end(rewards, trial_count, criterion, patience, mode)

    @pytest.mark.parametrize(
        ("arguments", "episodes", "reason"),
        [
            ({"trial_count": 2, "criterion": 4}, 4, "reward reached 4"),
            ({"trial_count": 1, "criterion": 4}, 3, "reward reached 4"),
            ({"trial_count": 2, "criterion": 4.5}, 6, "episodes"),
            ({"trial_count": 1, "patience": 2}, 5, "reward has not improved for 2 episodes"),
            ({"trial_count": 1, "patience": 3}, 6, "reward has not improved for 3 episodes"),
            ({"trial_count": 2, "patience": 1}, 5, "reward has not improved for 1 episodes"),
            ({"trial_count": 1, "patience": 1, "mode": "min"}, 2, "reward has not improved for 1 episodes"),
            ({"trial_count": 2, "criterion": 1.5, "mode": "min"}, 2, "reward reached 1.5"),
            ({"trial_count": 6, "criterion": 0}, 6, "reward reached 0"),
        ],
    )
    def test_stop_reason_names_metric_and_limit(self, arguments: dict[str, Any], episodes: int, reason: str) -> None:
        agent = rewarded([1, 2, 5, 3, 4, 4])
        history = agent.fit(episodes=6, callbacks=[EarlyStopping(**arguments)], verbose=0)
        assert (len(history), history.stop_reason) == (episodes, reason)

    def test_criterion_alone_is_compared_with_the_mean_of_ten_episodes(self) -> None:
        assert stopped_after([9] + [1] * 8 + [9] * 12, EarlyStopping(criterion=5)) == 14

    def test_improvement_resets_patience(self) -> None:
        assert stopped_after([0, -1, 2, 1, 3, 2, 2, 9], EarlyStopping(1, patience=2)) == 7

    def test_monitors_a_metric_of_another_callback(self) -> None:
        adder = LambdaCallback(on_episode_end=lambda episode, logs: logs.update(score=-episode))
        agent = rewarded([0])
        stopper = EarlyStopping(1, -3, monitor="score", mode="min")
        assert len(agent.fit(callbacks=[adder, stopper], verbose=0)) == 4

    def test_loss_may_be_missing_before_the_first_update(self) -> None:
        tape = Tape()
        agent = taped(tape, learning_starts=5)  # the first losses, 0 and 1, come at step 6
        history = agent.fit(episodes=9, callbacks=[EarlyStopping(1, 1, monitor="loss", mode="min")], verbose=0)
        assert len(history) == 3

    def test_unknown_metric_raises(self) -> None:
        with pytest.raises(ValueError, match=r"monitor: .*'score'"):
            rewarded([0]).fit(episodes=3, callbacks=[EarlyStopping(1, 3, monitor="score")], verbose=0)

    def test_incomplete_episode_is_skipped(self) -> None:
        agent = taped(Tape(), length=5)
        stopper = EarlyStopping(2, 3)
        agent.fit(steps=9, callbacks=[stopper], verbose=0)  # one episode of five steps, and four of the next
        assert stopper.get_state()["recent"] == [5.0]

    @given(
        rewards=st.lists(st.integers(-3, 3), min_size=2, max_size=20),
        cut=st.integers(1, 19),
        trial_count=st.integers(1, 4),
        patience=st.integers(1, 5),
    )
    def test_restored_state_continues_exactly(
        self, rewards: list[float], cut: int, trial_count: int, patience: int
    ) -> None:
        whole = EarlyStopping(trial_count, patience=patience)
        end = stopped_after(rewards, whole)
        if cut >= end:
            return
        first = EarlyStopping(trial_count, patience=patience)
        stopped_after(rewards[:cut], first)
        second = EarlyStopping(trial_count, patience=patience)
        second.set_state(first.get_state())
        assert stopped_after(rewards[cut:], second) == end - cut
        assert second.get_state() == whole.get_state()

    @pytest.mark.parametrize(
        ("arguments", "rewards", "episodes"),
        [
            ({}, [0, 10, 6, 6, 6, 6], 5),  # below 7 three times in turn
            ({}, [0, 10, 6, 8, 6, 6, 8, 6, 6], 9),  # never three times in turn
            ({}, [0, 10, 7, 7, 7, 7], 6),  # not below 7
            ({}, [5, 1, 1, 1, 1, 1], 6),  # no progress, so nothing can collapse
            ({"collapse_patience": 1}, [0, 10, 6, 9], 3),
            ({"collapse_patience": 1}, [0, 10, 20, 13, 9], 4),  # the best mean counts
            ({"collapse_patience": 1, "mode": "min"}, [10, 0, 4, 9], 3),
        ],
    )
    def test_collapse_is_a_loss_of_progress(
        self, arguments: dict[str, Any], rewards: list[float], episodes: int
    ) -> None:
        stopper = EarlyStopping(1, collapse=0.3, **arguments)
        history = rewarded(rewards).fit(episodes=len(rewards), callbacks=[stopper], verbose=0)
        assert len(history) == episodes
        if episodes < len(rewards):
            assert re.fullmatch(r"reward collapsed from \d+ to \d+", history.stop_reason)

    def test_progress_counts_from_the_first_mean_that_is_a_number(self) -> None:
        scores = iter([math.nan, 0, 10, 6, 6, 6, 6])
        adder = LambdaCallback(on_episode_end=lambda episode, logs: logs.update(score=next(scores)))
        stopper = EarlyStopping(1, monitor="score", collapse=0.3)
        assert len(rewarded([0]).fit(episodes=7, callbacks=[adder, stopper], verbose=0)) == 6

    def test_collapse_is_counted_across_a_restore(self) -> None:
        first, second = (EarlyStopping(1, collapse=0.3) for _ in range(2))
        stopped_after([0, 10, 6, 6], first)
        second.set_state(first.get_state())
        assert stopped_after([6, 6, 6], second) == 1

    def test_state_is_kept_between_fits_of_one_object(self) -> None:
        agent = rewarded([0])
        stopper = EarlyStopping(3, 0)
        agent.fit(episodes=2, callbacks=[stopper], verbose=0)
        assert len(agent.fit(callbacks=[stopper], verbose=0)) == 1
        assert len(agent.fit(callbacks=[EarlyStopping(3, 0)], verbose=0)) == 3

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"trial_count": 0, "criterion": 1}, "trial_count must be a positive int, got 0"),
            ({"trial_count": True, "criterion": 1}, "trial_count must be a positive int, got True"),
            ({"trial_count": 2.0, "criterion": 1}, "trial_count must be a positive int, got 2.0"),
            ({"trial_count": 2}, "criterion, patience or collapse must be given"),
            ({"collapse": 0}, "collapse must be a finite number above 0, got 0"),
            ({"collapse": 0.3, "collapse_patience": 0}, "collapse_patience must be a positive int, got 0"),
            ({"trial_count": 2, "criterion": "high"}, "criterion must be a finite number, got 'high'"),
            ({"trial_count": 2, "patience": 0}, "patience must be a positive int, got 0"),
            ({"trial_count": 2, "patience": 2, "mode": "auto"}, "mode must be 'max' or 'min', got 'auto'"),
        ],
    )
    def test_bad_arguments_raise(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            EarlyStopping(**arguments)


class TestLambdaCallback:
    def test_functions_handle_each_event(self) -> None:
        tape = Tape()
        agent, handled = taped(tape), []
        tape.acts["update", 2] = lambda: int("no number")
        functions = {name: lambda *args, name=name: handled.append((name, len(args))) for name in EVENTS}
        functions["on_episode_end"] = lambda episode, logs: agent.evaluate(episodes=1)
        with pytest.raises(ValueError, match="no number"):
            agent.fit(episodes=2, callbacks=[LambdaCallback(**functions)], verbose=0)
        counts = dict(handled)
        epochs = ("on_epoch_begin", "on_epoch_end")
        one = ("on_train_begin", "on_train_end", "on_evaluate_begin", "on_evaluate_end", "on_exception")
        expected = {name: 1 if name in one else 2 for name in EVENTS if name not in ("on_episode_end", *epochs)}
        assert counts == {**expected, "on_step_end": 0}

    def test_only_passed_events_are_bound(self) -> None:
        events = CallbackList([LambdaCallback(on_train_end=print)]).bind()
        assert events.on_train_end == (print,)
        assert [name for name in EVENTS if getattr(events, name)] == ["on_train_end"]

    def test_unknown_event_raises(self) -> None:
        with pytest.raises(ValueError, match=r"'on_quux' .*on_exception"):
            LambdaCallback(on_quux=print)

    def test_value_that_is_not_callable_raises(self) -> None:
        with pytest.raises(ValueError, match="on_train_end must be callable, got 3"):
            LambdaCallback(on_train_end=3)


class TestEpisodePrinter:
    def test_line_holds_episode_steps_reward_loss_and_speed(self, capsys: pytest.CaptureFixture[str]) -> None:
        printer = EpisodePrinter(every=2)
        printer.agent = SimpleNamespace(steps=100, log_step=100, updates=0, episodes=0, history=None)
        printer.on_train_begin({})
        for reward, steps, seconds, loss in [
            (1.0, 110, 0.5, {}),
            (2.0, 130, 1.0, {}),
            (5.0, 1130, 1.25, {"loss": 0.25}),
            (-6.0, 2130, 1.5, {"loss": 0.012345}),
        ]:
            printer.on_episode_end(0, {"reward": reward, "steps": steps, "time": seconds, "complete": True, **loss})
            printer.on_episode_end(0, {"reward": 99.0, "steps": steps, "time": seconds, "complete": False})
        assert capsys.readouterr().out.splitlines() == [
            "episode 2 | steps 130 | reward 1.50 | 30 steps/s",
            "episode 4 | steps 2130 | reward -0.50 | loss 0.01235 | 4,000 steps/s",
        ]

    def test_fit_prints_every_log_every_episodes(self, capsys: pytest.CaptureFixture[str]) -> None:
        agent = rewarded([0])
        agent.fit(episodes=25, verbose=2)
        assert re.findall(r"^episode (\d+)", capsys.readouterr().out, re.MULTILINE) == ["10", "20"]
        agent.fit(episodes=7, verbose=2, log_every=3)
        assert re.findall(r"^episode (\d+)", capsys.readouterr().out, re.MULTILINE) == ["28", "31"]

    def test_fit_prints_a_line_every_10_seconds_of_a_long_episode(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = itertools.count(0.0, 1.0)  # one second per reading of the clock, so at most two per step
        monkeypatch.setattr(sys.modules["noterl.training.episode_printer"], "perf_counter", lambda: next(clock))
        taped(Tape(), length=1_000).fit(steps=60, verbose=2)
        *lines, summary = capsys.readouterr().out.splitlines()
        steps = [
            int(number) for number in re.findall(r"^episode 0 \| steps (\d+) \| \d+ steps/s$", "\n".join(lines), re.M)
        ]
        assert len(steps) == len(lines) >= 4
        assert max(np.diff([0, *steps])) <= 10
        assert summary.startswith("fit ended (steps): 0 episodes, 60 steps, ")

    def test_fit_ends_with_a_summary(self, capsys: pytest.CaptureFixture[str]) -> None:
        agent = rewarded([1, 2, 6])
        agent.fit(episodes=3, verbose=2)
        agent.fit(episodes=2, verbose=2, log_every=1)
        summaries = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fit ended")]
        number = r"[\d,.]+"
        counts = rf"{number} steps, {number} updates in {number} s, {number} steps/s"
        for line, episodes, last in zip(
            summaries, (3, 2), (r"3\.00 over the last 3", r".* over the last 1"), strict=True
        ):
            assert re.fullmatch(rf"fit ended \(episodes\): {episodes} episodes, {counts}, mean reward {last}", line)

    def test_verbose_0_prints_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        rewarded([0]).fit(episodes=25, verbose=0)
        assert capsys.readouterr() == ("", "")

    @pytest.mark.parametrize("value", [0, -1, 1.5, True, None])
    def test_bad_argument_raises(self, value: Any) -> None:
        with pytest.raises(ValueError, match=rf"^every must .*got {value}$"):
            EpisodePrinter(value)


class TestProgressBar:
    def test_final_bar_shows_totals_and_time_split(self, capsys: pytest.CaptureFixture[str]) -> None:
        rewarded([1, 2, 6]).fit(episodes=3, verbose=1)
        out, err = capsys.readouterr()
        counts = r"3 episodes, 3 steps, 0 updates in .* s, .* steps/s, mean reward 3\.00 over the last 3"
        assert re.fullmatch(rf"fit ended \(episodes\): {counts}\n", out)
        last = err.rstrip("\n").split("\r")[-1]
        split = r"env \d+% act \d+% learn \d+% callbacks \d+%"
        assert re.search(rf"^episode 3 100%\|.*\| 3/3 \[.*, reward 3\.0, [\d,]+ steps/s, {split}\]", last)
        assert sum(int(share) for share in re.findall(r"(\d+)%", last.partition("steps/s")[2])) <= 101

    def test_bar_counts_steps_of_a_step_budget(self, capsys: pytest.CaptureFixture[str]) -> None:
        agent = taped(Tape(), length=4)
        agent.fit(steps=6, verbose=0)
        agent.fit(steps=10, episodes=100, verbose=1)
        assert re.search(r"episode 4 100%\|.*\| 10/10 \[", capsys.readouterr().err)

    def test_bar_counts_what_a_callback_leaves_of_the_budget(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        agent = taped(Tape(), length=4)
        agent.fit(steps=6, verbose=0)
        agent.fit(steps=100, callbacks=[StopOnSteps(16)], verbose=1)
        assert re.search(r"100%\|.*\| 10/10 \[", capsys.readouterr().err)
        for crash in (broken, lambda: None):
            backup = BackupAndRestore(tmp_path / "backup.noterl", 1, unit="episodes")
            with suppress(Broken):
                rewarded([0]).fit(episodes=9, callbacks=[at(7, crash), backup], verbose=1)
        assert re.search(r"episode 9 100%\|.*\| 3/3 \[", capsys.readouterr().err)

    def test_bar_without_budget_counts_episodes(self, capsys: pytest.CaptureFixture[str]) -> None:
        rewarded([0]).fit(callbacks=[EarlyStopping(4, 0)], verbose=1)
        assert re.search(r"episode 4 4 episodes \[.*reward 0\.0", capsys.readouterr().err)

    def test_bar_without_finished_episodes_shows_no_reward(self, capsys: pytest.CaptureFixture[str]) -> None:
        taped(Tape(), length=100).fit(steps=5, verbose=1)
        assert re.search(r"episode 0 100%\|.*\| 5/5 \[.*reward -,", capsys.readouterr().err)

    def test_bar_moves_during_training(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = iter(range(10_000))
        monkeypatch.setattr(sys.modules["noterl.training.progress_bar"], "perf_counter", lambda: float(next(clock)))
        rewarded([0]).fit(episodes=5, verbose=1)
        shown = re.findall(r"episode (\d) +(\d+)%", capsys.readouterr().err)
        assert [(str(n), str(20 * n)) for n in range(1, 6)] == list(dict.fromkeys(shown))

    def test_bar_moves_within_a_long_episode(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = itertools.count(0.0, 5.0)
        monkeypatch.setattr(sys.modules["noterl.training.progress_bar"], "perf_counter", lambda: next(clock))
        taped(Tape(), length=1_000).fit(steps=10, verbose=1)
        shown = re.findall(r"episode 0 [^\r]* (\d+)/10 ", capsys.readouterr().err)
        assert {str(n) for n in range(1, 11)} <= set(shown)

    @pytest.mark.parametrize("columns", [80, 200])
    def test_bar_fits_the_terminal(
        self, columns: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((columns, 25)))
        # Older versions of tqdm read these.
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("LINES", "25")
        taped(Tape(), length=100).fit(steps=25_000, verbose=1)
        last = capfd.readouterr().err.rstrip("\n").split("\r")[-1]
        assert len(last) <= columns
        assert last.endswith("]") and last.count("█") >= 5
        assert re.search(r"25000/25000 \[.*reward 100\.0, .* steps/s", last)
        assert ("callbacks" in last) == (columns == 200)

    def test_bar_is_closed_when_training_fails(self, capsys: pytest.CaptureFixture[str]) -> None:
        tape = Tape()
        agent = taped(tape)
        tape.acts["step 0", 3] = lambda: int("no number")
        with pytest.raises(ValueError, match="no number"):
            agent.fit(episodes=4, verbose=1)
        assert re.search(r"episode 1 +25%", capsys.readouterr().err)
        [bar] = [callback for callback in agent.callbacks if isinstance(callback, ProgressBar)]
        assert bar._bar is None

    def test_verbose_auto_shows_a_bar_on_a_terminal(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        agent = rewarded([0])
        agent.fit(episodes=10)
        out, err = capsys.readouterr()
        assert out.startswith("episode 10 |")
        assert err == ""
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        agent.fit(episodes=10)
        out, err = capsys.readouterr()
        assert out.startswith("fit ended (episodes): 10 episodes, ") and out.count("\n") == 1
        assert "10/10" in err

    def test_a_stopped_run_says_why_after_the_bar(self, capsys: pytest.CaptureFixture[str]) -> None:
        rewarded([5]).fit(episodes=100, callbacks=[EarlyStopping(2, 5)], verbose=1)
        assert capsys.readouterr().out.startswith("fit ended (reward reached 5): 2 episodes, ")

    def test_both_displays_end_with_the_same_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        lines = []
        for verbose in (1, 2):
            rewarded([1, 2, 6]).fit(episodes=3, verbose=verbose)
            lines.append(re.sub(r"in .* steps/s", "", capsys.readouterr().out.splitlines()[-1]))
        assert lines[0] == lines[1]

    def test_reason_without_a_message_is_the_name_of_the_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        def interrupt(episode: int, logs: Any) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            rewarded([1]).fit(episodes=3, callbacks=[LambdaCallback(on_episode_end=interrupt)], verbose=1)
        assert capsys.readouterr().out.startswith("fit ended (KeyboardInterrupt): ")

    def test_bar_shows_the_loss_after_the_first_update(self, capsys: pytest.CaptureFixture[str]) -> None:
        taped(Tape()).fit(episodes=2, verbose=1)
        shown = capsys.readouterr().err.rstrip("\n").split("\r")
        assert "reward 2.0, loss 2.5, " in shown[-1]
        assert "loss" not in shown[0]

    @pytest.mark.parametrize("home", ["builtins", "ipykernel.iostream"])
    def test_bar_is_hidden_without_terminal_or_notebook(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: str
    ) -> None:
        """A file is neither a terminal nor a notebook. A notebook's stream is recognized by the module of its class."""
        stream = type("Stream", (io.StringIO,), {"__module__": home})()
        monkeypatch.setattr(sys, "stderr", stream)
        rewarded([0]).fit(episodes=3, callbacks=[ProgressBar(episodes=3)], verbose=0)
        assert ("3/3" in stream.getvalue()) == (home != "builtins")

    def test_progress_displays_run_with_loggers(self) -> None:
        assert ProgressBar.order == EpisodePrinter.order == LOGGER


class TestHistory:
    @pytest.fixture
    def history(self) -> History:
        history = History()
        for episode, (reward, logs) in enumerate([(1.0, {}), (3.0, {"loss": 0.5}), (8.0, {"loss": 0.25, "eps": 0.1})]):
            history.on_episode_end(
                episode + 4, {"reward": reward, "length": 2, "steps": 2, "updates": 1, "time": 1.5, **logs}
            )
            history.on_episode_end(9, {"reward": 99.0, "complete": False})
        return history

    def test_to_csv_writes_a_row_per_episode(self, history: History, tmp_path: Path) -> None:
        history.to_csv(tmp_path / "history.csv")
        assert (tmp_path / "history.csv").read_text().splitlines() == [
            "episode,reward,length,loss,steps,updates,time,eps",
            "4,1.0,2,nan,2,1,1.5,nan",
            "5,3.0,2,0.5,2,1,1.5,nan",
            "6,8.0,2,0.25,2,1,1.5,0.1",
        ]

    def test_full_disk_keeps_the_older_table(self, history: History, tmp_path: Path) -> None:
        resource = pytest.importorskip("resource")
        history.to_csv(tmp_path / "history.csv")
        before, limit = (tmp_path / "history.csv").read_text(), resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))
            with pytest.raises(OSError, match=r"history\.csv"):
                history.to_csv(tmp_path / "history.csv")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert (tmp_path / "history.csv").read_text() == before
        assert [path.name for path in tmp_path.iterdir()] == ["history.csv"]

    def test_to_csv_of_a_fit_keeps_exact_numbers(self, tmp_path: Path) -> None:
        history = rewarded([1.5, -2]).fit(episodes=2, verbose=0)
        history.to_csv(str(tmp_path / "history.csv"))
        with (tmp_path / "history.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [row["reward"] for row in rows] == ["1.5", "-2.0"]
        assert [float(row["time"]) for row in rows] == history.history["time"]

    @pytest.mark.parametrize(
        ("metrics", "labels"), [("reward", ["reward"]), (["loss"], ["loss"]), (("reward", "loss"), ["reward", "loss"])]
    )
    def test_plot_draws_values_and_moving_average(self, history: History, metrics: Any, labels: list[str]) -> None:
        figure = history.plot(metrics, x="episode", window=2)
        assert [axes.get_ylabel() for axes in figure.axes] == labels
        for axes in figure.axes:
            values = history.history[axes.get_ylabel()]
            np.testing.assert_array_equal(axes.lines[0].get_ydata(), [each for each in values if not math.isnan(each)])
        if "reward" in labels:
            mean = figure.axes[0].lines[1]
            np.testing.assert_array_equal(mean.get_xdata(), history.episode[1:])
            np.testing.assert_array_equal(mean.get_ydata(), [2.0, 5.5])

    def test_window_longer_than_the_run_draws_no_average(self, history: History) -> None:
        assert len(history.plot("reward", window=4).axes[0].lines) == 1

    @pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
    def test_plot_writes_a_file(self, history: History, tmp_path: Path, ending: str) -> None:
        history.plot(path=tmp_path / f"curve.{ending}")
        assert (tmp_path / f"curve.{ending}").stat().st_size > 1000
        if ending == "png":
            assert matplotlib.image.imread(tmp_path / "curve.png").std() > 0.01

    def test_empty_history_can_be_plotted(self) -> None:
        assert len(History().plot().axes) == 2

    def test_each_fit_has_its_own_history(self) -> None:
        agent = rewarded([1, 2, 3])
        first = agent.fit(episodes=2, verbose=0)
        second = agent.fit(episodes=1, verbose=0)
        assert (first.history["reward"], second.history["reward"]) == ([1.0, 2.0], [3.0])
        assert agent.history is second
        assert math.isnan(second.history["loss"][0])


def test_states_are_saved_by_key() -> None:
    class Counter(Callback):
        def __init__(self, count: int) -> None:
            self.count = count

        def get_state(self):
            return {"count": self.count}

        def set_state(self, state):
            self.count = state["count"]

    class Named(Counter):
        @property
        def state_key(self):
            return "mine"

    saved = CallbackList([Counter(1), Callback(), Counter(2), Named(3)]).get_state()
    assert saved == {"Counter": {"count": 1}, "Counter#2": {"count": 2}, "mine": {"count": 3}}
    fresh = [Named(0), Counter(0), Counter(0), Counter(9)]
    CallbackList(fresh).set_state(saved)
    assert [callback.count for callback in fresh] == [3, 1, 2, 9]

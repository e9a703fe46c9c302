"""Callbacks that monitor a metric that not every episode logs, such as those of `Evaluate`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import noterl
from noterl.callbacks import (
    Callback,
    Checkpoint,
    EarlyStopping,
    Export,
    LambdaCallback,
    OptunaPruning,
    ReduceLROnPlateau,
)
from noterl.plotting import band
from tests.callbacks.test_checkpoint import FileAgent, episodes_of
from tests.support.tape import rewarded

pytestmark = pytest.mark.backends("torch")

SCORES = [9.6, 8.8, 165.0, 389.4, 344.0, 261.0, 260.0, 184.0]


class Scores(Callback):
    """Logs a score every second episode."""

    adds = ("evaluation_reward_mean",)

    def __init__(self, scores: list[float]) -> None:
        self.scores = scores

    def on_episode_end(self, episode: int, logs: dict[str, Any]) -> None:
        if logs.get("complete", True) and episode % 2:
            logs["evaluation_reward_mean"] = self.scores[episode // 2]


def fit(*callbacks: Any, episodes: int = 16, agent: Any = None, **arguments: Any) -> noterl.Agent:
    agent = rewarded([0.0] * 20, FileAgent) if agent is None else agent
    agent.fit(episodes=episodes, callbacks=[Scores(SCORES), *callbacks], verbose=0, **arguments)
    return agent


@pytest.mark.parametrize("chosen", [{"save_best_only": True, "max_save_files": 1}, {"save_top_k": 1}])
def test_checkpoint_keeps_the_agent_with_the_best_evaluation(tmp_path: Path, chosen: dict[str, Any]) -> None:
    fit(Checkpoint(tmp_path, save_freq=2, save_last=False, monitor="evaluation_reward_mean", **chosen))
    assert episodes_of(tmp_path) == [8]


def test_checkpoint_compares_a_score_when_it_is_logged(tmp_path: Path) -> None:
    """A file that is due between two evaluations holds another agent than the one that was evaluated."""
    fit(Checkpoint(tmp_path, save_freq=3, save_top_k=1, save_last=False, monitor="evaluation_reward_mean"))
    assert episodes_of(tmp_path) == [10]  # due at 3, 6, 9, ...: compared at 4, 6, 10, ..., so 389.4 at 8 is not


def test_export_exports_the_agent_with_the_best_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = []
    monkeypatch.setattr(FileAgent, "export", lambda self, *_: exported.append(self.episodes), raising=False)
    export = Export(tmp_path / "policy", "numpy", monitor="evaluation_reward_mean")
    fit(export)
    assert exported == [2, 6, 8]
    assert export.best == 389.4


def test_early_stopping_stops_at_the_first_evaluation_that_reaches_the_criterion() -> None:
    agent = fit(EarlyStopping(criterion=380, monitor="evaluation_reward_mean"))
    assert agent.episodes == 8


def test_patience_counts_values() -> None:
    agent = fit(EarlyStopping(patience=2, monitor="evaluation_reward_mean"))
    assert agent.episodes == 12
    assert agent.stop_reason == "evaluation_reward_mean has not improved for 2 values"


def test_optuna_receives_each_evaluation_once() -> None:
    pytest.importorskip("optuna")
    reported = []

    class Trial:
        def report(self, value: float, step: int) -> None:
            reported.append((value, step))

        def should_prune(self) -> bool:
            return False

    fit(OptunaPruning(Trial(), monitor="evaluation_reward_mean", every=3))
    assert reported == [(8.8, 3), (165.0, 6), (344.0, 9), (261.0, 12), (184.0, 15)]


def test_reduce_lr_compares_single_evaluations_also_between_checks() -> None:
    reduce = ReduceLROnPlateau(0.5, 2, monitor="evaluation_reward_mean", every=3)
    fit(reduce)
    # Due at 3, 6, 9, 12 and 15; compared at 4, 6, 10, 12 and 16: 8.8, 165, 344, 261, 184.
    assert reduce.get_state()["best"] == 344.0
    assert reduce.get_state()["plateaus"] == 1


def test_explicit_window_averages_values() -> None:
    agent = fit(EarlyStopping(2, criterion=360, monitor="evaluation_reward_mean"))
    assert agent.episodes == 10


def test_values_of_info_that_some_episodes_lack_are_not_averaged() -> None:
    stopper = EarlyStopping(criterion=1.0, monitor="score")
    agent = rewarded([0.0] * 20)

    def log(episode: int, logs: dict[str, Any]) -> None:
        if episode % 4 == 3:
            logs["score"] = float(episode == 11)

    agent.fit(episodes=16, callbacks=[LambdaCallback(on_episode_end=log), stopper], verbose=0, info={"score": "last"})
    assert agent.episodes == 12


def test_metric_of_each_episode_is_averaged_over_ten() -> None:
    agent = rewarded([float(n) for n in range(30)])
    agent.fit(episodes=20, callbacks=[EarlyStopping(criterion=4.5)], verbose=0)
    assert agent.episodes == 10


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: EarlyStopping(criterion=400),
        lambda folder: EarlyStopping(3, criterion=400, monitor="evaluation_reward_mean"),
        lambda folder: Checkpoint(folder, save_best_only=True),
        lambda folder: Checkpoint(folder, save_top_k=1, monitor="evaluation_reward_mean", window=3),
        lambda folder: ReduceLROnPlateau(every=9),
    ],
)
def test_fit_that_compares_nothing_warns(make: Any, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"compared no .*(window|trial_count)="):
        fit(make(tmp_path), episodes=4)


def test_checkpoint_that_chooses_nothing_by_score_does_not_warn(tmp_path: Path, recwarn: Any) -> None:
    fit(Checkpoint(tmp_path), episodes=4)
    assert not [warning for warning in recwarn if "compared" in str(warning.message)]


def test_restored_callback_compares_single_evaluations_too(tmp_path: Path) -> None:
    stopper = EarlyStopping(criterion=1e9, monitor="evaluation_reward_mean")
    fit(stopper, episodes=4)
    other = EarlyStopping(criterion=1e9, monitor="evaluation_reward_mean")
    other.set_state(stopper.get_state())
    assert other._monitor.recent.maxlen == 1
    assert other.get_state() == stopper.get_state()


def test_plots_average_single_evaluations() -> None:
    run = {"steps": [*range(20)], "loss": [math.nan, *[float(n) for n in range(19)]]}
    run["evaluation_reward_mean"] = [math.nan if n % 10 != 9 else 80.0 + n for n in range(20)]
    assert band([run], "evaluation_reward_mean", points=2).middle.tolist() == [89.0, 99.0]
    assert band([run], "evaluation_reward_mean", window=2, points=2).middle.tolist() == [89.0, 94.0]
    assert band([run], "loss", points=2).middle.tolist() == [0.0, 13.5]

"""`noterl train --seeds`: one run for each seed, one table, one figure."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from noterl.cli import main
from noterl.cli.errors import UsageError
from noterl.cli.seeds import seeds_of, summary_of_scores
from noterl.training.evaluation import interquartile_mean
from noterl.utils.tables import read_columns

pytestmark = [pytest.mark.backends("torch"), pytest.mark.filterwarnings("ignore:fit ended without a gradient update")]

SMALL = ["train", "dqn", "--env", "CartPole-v1", "--hidden", "8", "--steps", "80", "--verbose", "0"]


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_each_seed_is_a_run_like_that_of_the_seed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--seeds", "3-4", "--out", "both", "--checkpoint", "kept/{seed}"]
    assert main([*SMALL, *options]) == 0
    text = capsys.readouterr().out
    assert main([*SMALL, "--seed", "4", "--out", "alone", "--quiet"]) == 0
    logs = [read_columns(Path(folder, "log.csv")) for folder in ("both/seed-3", "both/seed-4", "alone")]
    assert logs[1]["reward"] == logs[2]["reward"] != logs[0]["reward"]
    assert tomllib.loads(Path("both/seed-3/run.toml").read_text())["seed"] == 3
    assert Path("both/seeds.png").stat().st_size > 1_000 and list(Path("kept/4").iterdir())
    scores = [float(np.mean(log["reward"][-100:])) for log in logs[:2]]
    assert f"seed 3  {scores[0]:.2f}" in text and summary_of_scores(scores) in text


def test_seeds_of_a_text() -> None:
    assert seeds_of("0-3") == [0, 1, 2, 3] and seeds_of("7, 1,20-21") == [7, 1, 20, 21]
    for text in ("", "a", "3-1", "1,1", "0-99999", "-3", "1.5"):
        with pytest.raises(UsageError, match="--seeds"):
            seeds_of(text)


def test_summary_is_the_interquartile_mean_with_its_interval() -> None:
    scores = [1.0, 2.0, 3.0, 4.0, 100.0]
    middle = interquartile_mean(np.asarray(scores))
    text = summary_of_scores(scores)
    assert f"mean of 5 runs {middle:.2f}, 95 % interval" in text
    assert summary_of_scores([5.0, 5.0]).endswith("5.00, 95 % interval 5.00 to 5.00")
    assert summary_of_scores([]) == "no run has finished an episode"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seeds"], "--seeds"),
        (["--seeds", "0-1", "--seed", "2"], "--seed"),
        (["--seeds", "0", "--csv", "a.csv"], "--csv"),
        (["--seeds", "0-1", "--restore", "runs/agent"], "--restore"),
        (["--seeds", "0-1", "--backup-and-restore", "backup.noterl"], "--backup-and-restore"),
        (["--seeds", "0-1", "--evaluate.on-best", "best.noterl"], "--evaluate.on-best"),
    ],
)
def test_wrong_options_leave_nothing(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *options]) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_runs_without_an_episode_end_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["train", "td3", "--env", "Pendulum-v1", "--hidden", "8", "--steps", "20", "--verbose", "0"]
    assert main([*options, "--seeds", "0-1", "--out", "short"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["no run has finished an episode", "short"]


def test_folder_of_another_run_stops_all_seeds_before_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    Path("both/seed-4").mkdir(parents=True)
    Path("both/seed-4/run.toml").write_text("")
    assert main([*SMALL, "--seeds", "3-4", "--out", "both"]) == 2
    assert "seed-4 holds the run.toml of another run" in capsys.readouterr().err
    assert not Path("both/seed-3").exists()


def test_runs_without_common_steps_have_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    options = [*SMALL[:6], "--episodes", "1", "--verbose", "0"]
    assert main([*options, "--seeds", "0-2", "--out", "short"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "interquartile mean of 3 runs" in lines[-2] and lines[-1] == "short"

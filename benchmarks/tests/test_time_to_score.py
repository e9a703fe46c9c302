"""When weights hold a score, and how the participants of a race are compared."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.judging import judge
from benchmarks.report import time_to_score_table
from benchmarks.time_to_score import RACES, commands, draw, parse, returns_at, summarize

pytestmark = pytest.mark.backend_free


def weights(folder: Path, means: list[float]) -> tuple[list[Path], dict[Path, float]]:
    """Return the paths of weights after 10, 20, ... steps and seconds, and the mean return of each."""
    paths = [folder / f"{10 * (place + 1)}.zip" for place in range(len(means))]
    for place, path in enumerate(paths):
        path.touch()
        os.utime(path, (10.0 * (place + 1), 10.0 * (place + 1)))
    return paths, dict(zip(paths, means, strict=True))


@pytest.mark.parametrize(
    ("means", "held", "judged"),
    [([1, 5, 2, 5, 5, 0], 3, 5), ([5, 5], 0, 2), ([1, 5], None, 2), ([5, 1, 5], None, 3), ([5], None, 1)],
)
def test_two_weights_in_a_row_hold_a_score(tmp_path: Path, means: list[float], held: int | None, judged: int) -> None:
    paths, mean_of = weights(tmp_path, means)
    found = judge(paths, mean_of.__getitem__, 5)
    assert found["held"] == held
    assert found["points"] == [(10 * k, 10.0 * k, means[k - 1]) for k in range(1, judged + 1)]
    assert found["final"] == means[-1]


def run(who: str, seed: int, seconds: float, held: bool = True) -> dict[str, object]:
    return {"who": who, "seed": seed, "seconds": seconds, "held": held, "steps": 1, "final": 0.0, "memory_mb": 1.0}


def test_the_fastest_algorithm_of_a_peer_is_the_measure() -> None:
    runs = [
        run(who, seed, seconds + seed, held=who != "sb3-dqn")
        for seed in range(5)
        for who, seconds in (("noterl-jax", 1.0), ("sb3-ppo", 20.0), ("sb3-dqn", 10.0))
    ]
    summary = summarize("Acrobot-v1", runs)
    (row,) = summary["rows"]
    assert row["name"] == "noterl-jax / sb3-dqn"
    assert row["ratio"]["ratio"] == pytest.approx(3 / 12)
    assert row["bar"] == 0.35
    assert row["met"] == (5 / 14 <= 0.35)
    assert summary["participants"]["sb3-dqn"]["held"] == 0
    machine = {"processor": "x", "cores": 2}
    table = time_to_score_table(
        {"task": "Acrobot-v1", "score": -85, "date": "2026-11-28", "machine": machine, "summary": summary}
    )
    assert "| noterl-jax " in table and "5 of 5" in table


def test_each_participant_has_commands(tmp_path: Path) -> None:
    for environment, race in RACES.items():
        for who in race.participants:
            training, judging = commands(environment, who, 3, tmp_path, "python")
            assert str(tmp_path) in training and str(tmp_path) in judging
    with pytest.raises(SystemExit):
        parse(["CartPole-v1", "--participants", "sb4"])


def test_returns_over_time_are_those_of_the_last_weights() -> None:
    done = {"points": [[2_000, 1.0, 80.0], [4_000, 2.0, 500.0]]}
    np.testing.assert_array_equal(returns_at(done, np.array([0.5, 1.0, 1.9, 2.5])), [np.nan, 80.0, 80.0, 500.0])


def test_figure_has_a_line_for_each_participant_and_the_score() -> None:
    participants = ("noterl-jax", "sb3-ppo")
    runs = [
        {**run(who, seed, 3.0), "points": [[2_000, 1.0 + seed, 80.0], [4_000, 3.0, 500.0]]}
        for who in participants
        for seed in range(2)
    ]
    result = {"task": "CartPole-v1", "score": 475, "summary": {"participants": participants}, "runs": runs}
    (axes,) = draw(result).axes
    assert [line.get_label() for line in axes.lines] == [*participants, "score"]
    times = axes.lines[0].get_xdata()
    assert times[0] >= 2.0 and axes.lines[0].get_ydata()[-1] == 500.0  # the second seed's first weights come at 2 s

"""benchmarks/stats.py: exact values, edges, coverage and agreement with rliable."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import numpy as np
import pytest

from benchmarks import stats
from benchmarks.processes import ROOT

pytestmark = pytest.mark.backend_free

PEER_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
# Scores as `[runs, tasks]`, with the IQM and the 95 % interval of rliable 1.2.0 (50,000 resamples, seed 0).
RLIABLE: list[tuple[list[list[float]], float, tuple[float, float]]] = [
    ([[500.0], [500.0], [476.6], [21.4], [497.7]], 491.43333333, (173.13333333, 500.0)),
    (
        [[-163.4], [-163.7], [-165.3], [-162.8], [-160.3], [-162.7], [-163.6], [-160.2], [-161.2], [-315.5]],
        -162.9,
        (-189.06666667, -161.43333333),
    ),
    ([[2.0**run, 10 * 2.0**run] for run in range(7)], 33.75, (14.5, 103.5)),
]
# Prints what rliable computes for the JSON in its argument.
RLIABLE_SCRIPT = """
import json, sys
import numpy as np
from rliable import library, metrics

np.random.seed(1)  # rliable draws from NumPy's global generator, whatever its random_state is
scores = {str(i): np.array(one) for i, one in enumerate(json.loads(sys.argv[1]))}
points, intervals = library.get_interval_estimates(
    scores,
    lambda values: np.array([metrics.aggregate_iqm(values)]),
    reps=20_000,
    random_state=np.random.RandomState(1),
)
print(json.dumps([[points[name][0], *intervals[name][:, 0]] for name in scores]))
"""


@pytest.mark.parametrize(("scores", "iqm", "interval"), RLIABLE, ids=["five runs", "ten runs", "two tasks"])
def test_iqm_and_interval_equal_those_of_rliable(
    scores: list[list[float]], iqm: float, interval: tuple[float, float]
) -> None:
    assert stats.interquartile_mean(np.array(scores)) == pytest.approx(iqm)
    # The resamples are other ones.
    assert stats.iqm_interval(np.array(scores)) == pytest.approx(interval, rel=0.01)


def test_iqm_and_interval_equal_those_of_the_installed_rliable() -> None:
    tables = [scores for scores, _, _ in RLIABLE]
    words = [str(PEER_PYTHON), "-W", "ignore", "-c", RLIABLE_SCRIPT, json.dumps(tables)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("needs rliable in the peers' environment (make peers)")
    for scores, (iqm, *interval) in zip(tables, json.loads(done.stdout.splitlines()[-1]), strict=True):
        assert stats.interquartile_mean(np.array(scores)) == pytest.approx(iqm)
        assert stats.iqm_interval(np.array(scores)) == pytest.approx(interval, rel=0.02)


def test_interquartile_mean_drops_a_quarter_at_each_end() -> None:
    assert stats.interquartile_mean([100, 0, 1, 2, 3, 4, 5, 6]) == 3.5
    assert stats.interquartile_mean([100, 0, 1, 2, 3]) == 2
    assert stats.interquartile_mean([0, 1, 8]) == 3
    assert stats.interquartile_mean([7]) == 7


def test_iqm_is_over_runs_not_over_episodes() -> None:
    returns = [[0.0, 100.0], [40.0, 60.0], [50.0, 50.0], [500.0, 500.0]]
    summary = stats.summarize_scores([float(np.mean(run)) for run in returns])
    assert summary["iqm"] == 50
    assert summary["scores"] == [50, 50, 50, 500]


def test_iqm_interval_of_equal_scores_is_a_point_and_of_one_run_is_missing() -> None:
    assert stats.iqm_interval([3.0, 3.0, 3.0]) == (3, 3)
    assert stats.iqm_interval([3.0]) is None
    assert stats.summarize_scores([3.0])["iqm_low"] is None


def test_bootstrap_resamples_each_task_separately() -> None:
    # Joint resampling of runs would always keep the sum of a row, so the interval would be a point.
    scores = np.array([[value, -value] for value in (1.0, 2.0, 3.0, 4.0)])
    low, high = stats.iqm_interval(scores) or (0, 0)
    assert low < -0.5
    assert high > 0.5


def test_summary_names_the_worst_seed() -> None:
    summary = stats.summarize_scores([500, 350, 490])
    assert (summary["median"], summary["worst"], summary["scores"]) == (490, 350, [500, 350, 490])


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.1, 9.0, "better"),
        (0.0, 9.0, "equal"),
        (-24.9, 9.0, "equal"),
        (-24.9, -0.1, "equal"),
        (0.0, 0.0, "equal"),
        (-25.0, 9.0, "undecided"),
        (-25.0, 0.0, "undecided"),
        (-25.0, -0.1, "worse"),
        (-99.0, -50.0, "worse"),
        (-99.0, 99.0, "undecided"),
    ],
)
def test_outcome_follows_from_the_ends_of_the_interval(low: float, high: float, expected: str) -> None:
    assert stats.outcome(low, high, span=500) == expected


@pytest.mark.parametrize(
    ("center", "found", "expected"),
    [
        (3.0, "better", True),
        (0.0, "equal", True),
        (-25.0, "undecided", True),
        (-25.1, "undecided", False),
        (-10.0, "worse", False),
        (-60.0, "worse", False),
    ],
)
def test_learning_bar_fails_on_worse_or_a_difference_below_five_percent(
    center: float, found: str, expected: bool
) -> None:
    assert stats.passes(center, found, span=500) is expected


@pytest.mark.parametrize(
    ("ours", "expected", "passes"),
    [
        ([500] * 5, "better", True),
        ([480] * 5, "equal", True),
        ([450] * 5, "worse", False),
        ([500, 500, 500, 500, 380], "undecided", True),
        ([500, 500, 500, 500, 100], "undecided", False),
    ],
)
def test_difference_is_judged_by_its_interval(ours: list[float], expected: str, passes: bool) -> None:
    result = stats.difference(ours, [481, 482, 480, 480, 481], span=500)
    assert result["outcome"] == expected
    assert result["passes"] is passes
    assert result["difference"] == pytest.approx(np.mean(ours) - 480.8)
    assert result["low"] <= result["difference"] <= result["high"]


def test_difference_with_too_few_seeds_is_undecided() -> None:
    few = stats.difference([500] * 4, [0] * 9, span=500)
    assert (few["low"], few["high"], few["outcome"], few["passes"]) == (500, 500, "undecided", None)
    assert stats.difference([500] * 4, [0] * 9, span=500, min_seeds=4)["outcome"] == "better"
    one = stats.difference([500], [0] * 9, span=500, min_seeds=1)
    assert one == {"difference": 500, "low": None, "high": None, "outcome": "undecided", "passes": None}


def test_bootstrap_of_the_difference_has_exact_quantiles() -> None:
    # The mean of two resampled values 0 and 1 is 0, 1/2 and 1 with probabilities 1/4, 1/2 and 1/4.
    result = stats.difference([0, 1], [5, 5], span=1000, min_seeds=2)
    assert (result["difference"], result["low"], result["high"]) == (-4.5, -5, -4)


@pytest.mark.parametrize(("seconds", "seeds"), [(1, 10), (119.9, 10), (120, 5), (3600, 5), (3601, 3)])
def test_required_seeds_follow_from_the_duration_of_a_run(seconds: float, seeds: int) -> None:
    assert stats.required_seeds(seconds) == seeds


def test_ratio_is_the_median_of_pairs_with_an_interval_of_ranks() -> None:
    assert stats.paired_ratio([3, 8, 5, 12, 7], [1, 2, 1, 2, 1]) == {"ratio": 5, "low": 3, "high": 7}
    assert stats.paired_ratio([1, 2, 3, 40], [1, 1, 1, 1]) == {"ratio": 2.5, "low": None, "high": None}
    assert stats.paired_ratio([6.0], [2.0]) == {"ratio": 3, "low": None, "high": None}


@pytest.mark.parametrize(
    ("pairs", "rank"), [(1, 0), (4, 0), (5, 1), (7, 1), (8, 2), (10, 2), (11, 3), (15, 4), (20, 6), (30, 11)]
)
def test_interval_ends_at_the_ranks_of_the_sign_test(pairs: int, rank: int) -> None:
    ratios = [float(value) for value in range(1, pairs + 1)]
    result = stats.paired_ratio(ratios, [1.0] * pairs)
    ends = (ratios[rank - 1], ratios[-rank]) if rank else (None, None)
    assert (result["low"], result["high"]) == ends


@pytest.mark.parametrize("pairs", [5, 9, 15])
def test_ratio_interval_contains_the_truth_nine_times_in_ten(pairs: int) -> None:
    samples = np.random.default_rng(0).standard_cauchy((4000, pairs)) * 0.01
    results = [stats.paired_ratio(3.0 * np.exp(sample), np.ones(pairs)) for sample in samples]
    assert np.mean([result["low"] <= 3.0 <= result["high"] for result in results]) >= 0.89


def test_ratio_of_paired_runs_ignores_what_slows_both() -> None:
    ours, theirs = np.array([6.0, 6.1, 5.9, 6.0, 6.0]), np.ones(5)
    drift = np.array([1.0, 0.5, 0.25, 2.0, 1.0])
    assert stats.paired_ratio(ours * drift, theirs * drift) == pytest.approx(stats.paired_ratio(ours, theirs))


def test_ratio_of_unpaired_runs_is_refused() -> None:
    unpaired: list[Any] = [[1.0, 2.0], [1.0]]
    with pytest.raises(ValueError, match="zip"):
        stats.paired_ratio(*unpaired)

"""Statistics of comparisons: inter-quartile means, differences of return and ratios of speed, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

RESAMPLES = 50_000
# "Equal" allows a mean return lower by this share of the task's range.
MARGIN = 0.05
# Fewer seeds, or fewer pairs of runs, decide nothing.
MIN_SEEDS = 5
MIN_PAIRS = 5


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float | None]:
    """Return the median ratio of paired runs and its 90 % interval.

    The interval lies between the k-th smallest and the k-th largest ratio, with the largest k for which it covers the
    median in at least 90 % of all samples of this size, whatever the distribution (the sign test's interval). With five
    pairs these are the smallest and the largest ratio. Fewer than five pairs have no such interval.
    """
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    rank = _interval_rank(len(ratios))
    return {
        "ratio": float(np.median(ratios)),
        "low": ratios[rank - 1] if rank else None,
        "high": ratios[-rank] if rank else None,
    }


def _interval_rank(pairs: int, coverage: float = 0.9) -> int:
    """Return the largest k such that the k-th smallest and the k-th largest value enclose the median; 0 if none do."""
    rank, outside = 0, 1.0
    while outside <= (1 - coverage) / 2 * 2**pairs:
        rank += 1
        outside += math.comb(pairs, rank)
    return rank


def interquartile_mean(scores: Sequence[float] | np.ndarray) -> float:
    """Return the mean of the middle half of the scores of runs: a quarter, rounded down, is cut off at each end.

    Args:
        scores: one score per run, or `[runs, tasks]`. As in rliable, the scores of all tasks are sorted together.
    """
    return float(_trimmed_means(np.asarray(scores, float).reshape(1, -1))[0])


def iqm_interval(scores: Sequence[float] | np.ndarray) -> tuple[float, float] | None:
    """Return the 95 % percentile interval of the inter-quartile mean by stratified bootstrap; None for a single run.

    Each resample draws as many runs as there are, with replacement and for each task separately.

    Args:
        scores: one score per run, or `[runs, tasks]`.
    """
    scores = np.asarray(scores, float)
    table = scores.reshape(len(scores), -1)
    runs, tasks = table.shape
    if runs < 2:
        return None
    chosen = np.random.default_rng(0).integers(runs, size=(RESAMPLES, runs, tasks))
    low, high = np.quantile(_trimmed_means(table[chosen, np.arange(tasks)].reshape(RESAMPLES, -1)), [0.025, 0.975])
    return float(low), float(high)


def _trimmed_means(rows: np.ndarray) -> np.ndarray:
    """Return the inter-quartile mean of each row."""
    ordered = np.sort(rows, axis=1)
    cut = ordered.shape[1] // 4
    return ordered[:, cut : ordered.shape[1] - cut].mean(axis=1)


def summarize_scores(scores: Sequence[float]) -> dict[str, Any]:
    """Return the median, the worst and the inter-quartile mean of the scores of runs, one run per seed."""
    low, high = iqm_interval(scores) or (None, None)
    return {
        "scores": list(scores),
        "median": float(np.median(scores)),
        "worst": min(scores),
        "iqm": interquartile_mean(scores),
        "iqm_low": low,
        "iqm_high": high,
    }


def difference(
    ours: Sequence[float], theirs: Sequence[float], span: float, min_seeds: int = MIN_SEEDS
) -> dict[str, Any]:
    """Compare mean returns over training seeds: the difference, its 95 % bootstrap interval and what it shows.

    Args:
        ours: one mean return per training seed.
        theirs: as `ours`; the number of seeds may differ.
        span: highest less lowest return of the task.
        min_seeds: with fewer seeds on either side, the outcome is "undecided" whatever the interval.

    Returns:
        `difference`, `low`, `high` (None if a side has one seed), `outcome` and `passes` (None with too few seeds).
    """
    ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
    center = float(ours.mean() - theirs.mean())
    seeds = min(len(ours), len(theirs))
    if seeds < 2:
        return {"difference": center, "low": None, "high": None, "outcome": "undecided", "passes": None}
    generator = np.random.default_rng(0)
    ours, theirs = (
        side[generator.integers(len(side), size=(RESAMPLES, len(side)))].mean(axis=1) for side in (ours, theirs)
    )
    low, high = (float(end) for end in np.quantile(ours - theirs, [0.025, 0.975]))
    found = outcome(low, high, span) if seeds >= min_seeds else "undecided"
    passed = passes(center, found, span) if seeds >= min_seeds else None
    return {"difference": center, "low": low, "high": high, "outcome": found, "passes": passed}


def outcome(low: float, high: float, span: float) -> str:
    """Return what the 95 % interval of a difference of mean returns shows.

    Returns:
        "better" if the lower end is above 0; "equal" if it is above -5 % of the span, even where the upper end is below
        0; "worse" if the upper end is below 0; otherwise "undecided".
    """
    if low > 0:
        return "better"
    if low > -MARGIN * span:
        return "equal"
    return "worse" if high < 0 else "undecided"


def passes(center: float, found: str, span: float) -> bool:
    """Return whether a learning bar is met: the outcome is not "worse", and the difference is at least -5 %."""
    return found != "worse" and center >= -MARGIN * span


def required_seeds(seconds: float) -> int:
    """Return how many seeds a comparison needs: 10 if a run takes under two minutes, 3 above an hour, otherwise 5."""
    if seconds < 120:
        return 10
    return 5 if seconds <= 3600 else 3

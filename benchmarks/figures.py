"""What a comparison says in numbers: ratios of speed and differences of return, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# The 0.95 quantile of Student's t by degrees of freedom: both ends of a 90 % interval.
T_95 = (
    *(6.3138, 2.9200, 2.3534, 2.1318, 2.0150, 1.9432, 1.8946, 1.8595, 1.8331, 1.8125),
    *(1.7959, 1.7823, 1.7709, 1.7613, 1.7531, 1.7459, 1.7396, 1.7341, 1.7291, 1.7247),
)
RESAMPLES = 10_000
# Seeds below which nothing is judged.
FEWEST = 5


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float | None]:
    """Compare speeds of paired runs: the geometric mean of the ratios and its 90 % t-interval.

    The interval is Student's, on the logarithm of each pair's ratio: what slows both runs of a pair cancels, and a
    ratio and its reciprocal are treated alike. One pair has no interval.
    """
    logs = np.log(np.asarray(ours, float) / np.asarray(theirs, float))
    centre = float(logs.mean())
    if len(logs) < 2:
        return {"ratio": math.exp(centre), "low": None, "high": None}
    quantile = T_95[min(len(logs) - 1, len(T_95)) - 1]
    half = quantile * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return {"ratio": math.exp(centre), "low": math.exp(centre - half), "high": math.exp(centre + half)}


def interquartile_mean(values: Sequence[float]) -> float:
    """Return the mean of the middle half: a quarter of the values, rounded down, is cut off at each end."""
    ordered = np.sort(np.asarray(values, float))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def returns(runs: Sequence[Sequence[float]]) -> dict[str, float | list[float]]:
    """Summarise the evaluations of several seeds: each seed's mean, their median and worst, and the IQM of all."""
    means = [float(np.mean(run)) for run in runs]
    return {
        "seed_means": means,
        "median": float(np.median(means)),
        "worst": min(means),
        "iqm": interquartile_mean([value for run in runs for value in run]),
    }


def difference(
    ours: Sequence[float], theirs: Sequence[float], span: float, fewest: int = FEWEST
) -> dict[str, float | str | None]:
    """Compare mean returns over training seeds: the 95 % bootstrap interval of the difference, and what it says.

    Args:
        ours, theirs: one mean return per training seed.
        span: highest less lowest return of the task.
        fewest: seeds below which nothing is judged.

    Returns:
        `verdict` is "better" when the lower end is above 0, "equal" when it is above -5 % of the span, else "not
        shown"; "not judged" on fewer than `fewest` seeds.
    """
    ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
    centre = float(ours.mean() - theirs.mean())
    if min(len(ours), len(theirs)) < fewest:
        return {"difference": centre, "low": None, "high": None, "verdict": "not judged"}
    generator = np.random.default_rng(0)
    ours, theirs = (
        values[generator.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1) for values in (ours, theirs)
    )
    low, high = (float(value) for value in np.quantile(ours - theirs, [0.025, 0.975]))
    verdict = "better" if low > 0 else "equal" if low > -0.05 * span else "not shown"
    return {"difference": centre, "low": low, "high": high, "verdict": verdict}

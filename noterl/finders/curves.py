"""Statistics of a series of rewards or losses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# Number of points before which no collapse is reported, because the first ones are noise.
MIN_POINTS = 5


def window_means(values: Sequence[float], window: int) -> list[float]:
    """Return, for each value, the mean of the `window` values that end with it; there are fewer at the start.

    Example:
    >>> from noterl.finders.curves import window_means
    >>> window_means([2.0, 4.0, 9.0], 2)
    [2.0, 3.0, 6.5]
    """
    return [_mean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]


def normalised(values: Sequence[float], window: int) -> list[float]:
    """Return each value normalised by the `window` values that end with it: (value - mean) / (deviation + 1e-8).

    The deviation is that of the population. Rising values are above zero, whatever the scale of the rewards.

    Example:
    >>> from noterl.finders.curves import normalised
    >>> [round(value, 3) for value in normalised([2.0, 4.0, 4.0], 2)]
    [0.0, 1.0, 0.0]
    """
    result = []
    for end in range(1, len(values) + 1):
        recent = np.asarray(values[max(0, end - window) : end], np.float64)
        result.append(float((recent[-1] - recent.mean()) / (recent.std() + 1e-8)))
    return result


def derivative(values: Sequence[float], sma: int = 1) -> list[float]:
    """Return the change per point, over `sma` points: (x[i] - x[i - sma]) / sma; the first are 0.

    Example:
    >>> from noterl.finders.curves import derivative
    >>> derivative([1.0, 2.0, 4.0, 8.0], 2)
    [0.0, 0.0, 1.5, 3.0]
    """
    slopes = [(late - early) / sma for early, late in zip(values, values[sma:], strict=False)]
    return [0.0] * min(sma, len(values)) + slopes


def reward_collapsed(rewards: Sequence[float], window: int) -> bool:
    """Return whether the reward has lost half of its gain, by more than noise explains.

    The gain is from the mean over the first complete window to the best mean, the loss is from the best mean to the
    last. Noise explains up to six standard errors of a mean, more than the usual range of ten means. A value that is
    not finite counts as a collapse.
    """
    if not all(map(math.isfinite, rewards)):
        return True
    if len(rewards) <= max(MIN_POINTS, window):
        return False
    means = window_means(rewards, window)[window - 1 :]
    best = max(means)
    return best - means[-1] > max(0.5 * (best - means[0]), 6 * deviation(rewards) / math.sqrt(window))


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of the noise on a trend, from the median step between neighbours.

    For a normal variable, the median step is 0.954 standard deviations.

    Example:
    >>> from noterl.finders.curves import deviation
    >>> round(deviation([0.0, 11.0, 20.0, 31.0, 40.0]), 2)
    10.48
    """
    return float(np.median(np.abs(np.diff(values)))) / 0.954


def differs_from_noise(values: Sequence[float], index: int, window: int, sma: int) -> bool:
    """Return whether the mean over a window changed, in the `sma` points up to an index, by over four standard errors.

    In noise alone, the largest of about fifty changes is rarely that large.

    Example:
    >>> from noterl.finders.curves import differs_from_noise
    >>> values = [0.0, 1.0, 0.0, 1.0, 9.0, 10.0, 9.0, 10.0]
    >>> differs_from_noise(values, 7, 4, 4), differs_from_noise(values, 3, 4, 1)
    (True, False)
    """
    means = window_means(values, window)
    if not all(map(math.isfinite, values)) or index < sma:
        return False
    error = deviation(values) * math.sqrt(2 * min(sma, window)) / window
    return abs(means[index] - means[index - sma]) > 4 * error


def loss_exploded(losses: Sequence[float], window: int) -> bool:
    """Return whether the mean loss of a window exceeds four times the lowest mean, or a loss is not finite."""
    if not all(map(math.isfinite, losses[-1:])):
        return True
    if len(losses) <= max(MIN_POINTS, window):
        return False
    means = window_means(losses, window)[window - 1 :]
    return means[-1] > 4 * min(means)


def steepest(slopes: Sequence[float], *, rising: bool, skip_beginning: int, skip_end: int) -> int | None:
    """Return the index of the steepest rise or fall between the skipped points; None if no point is left.

    Example:
    >>> from noterl.finders.curves import steepest
    >>> steepest([9.0, 1.0, 3.0, -2.0, 9.0], rising=True, skip_beginning=1, skip_end=1)
    2
    """
    kept = [(slope if rising else -slope, -index) for index, slope in enumerate(slopes)]
    kept = kept[skip_beginning : len(kept) - skip_end]
    return -max(kept)[1] if kept else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan

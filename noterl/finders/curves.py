"""Statistics of a series of rewards or losses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# A collapse is reported only after more points than this, because the first points are noisy.
MIN_POINTS = 5


def window_means(values: Sequence[float], window: int) -> list[float]:
    """Return, for each value, the mean of the `window` values that end with it; there are fewer at the start.

    Example:
    >>> from noterl.finders.curves import window_means
    >>> window_means([2.0, 4.0, 9.0], 2)
    [2.0, 3.0, 6.5]
    """
    return [_mean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]


def normalized(values: Sequence[float], window: int) -> list[float]:
    """Return each value normalized by the `window` values that end with it: (value - mean) / (deviation + 1e-8).

    The deviation is that of the population. Rising values are above zero, whatever the scale of the rewards.

    Example:
    >>> from noterl.finders.curves import normalized
    >>> [round(value, 3) for value in normalized([2.0, 4.0, 4.0], 2)]
    [0.0, 1.0, 0.0]
    """
    result = []
    for end in range(1, len(values) + 1):
        recent = np.asarray(values[max(0, end - window) : end], np.float64)
        result.append(float((recent[-1] - recent.mean()) / (recent.std() + 1e-8)))
    return result


def derivative(values: Sequence[float], sma: int = 1) -> list[float]:
    """Return the change per point, over `sma` points: (x[i] - x[i - sma]) / sma; the first `sma` changes are 0.

    Example:
    >>> from noterl.finders.curves import derivative
    >>> derivative([1.0, 2.0, 4.0, 8.0], 2)
    [0.0, 0.0, 1.5, 3.0]
    """
    slopes = [(late - early) / sma for early, late in zip(values, values[sma:], strict=False)]
    return [0.0] * min(sma, len(values)) + slopes


def reward_collapsed(rewards: Sequence[float], window: int) -> bool:
    """Return whether the reward has lost more than half of its gain, and more than noise explains.

    The gain is from the mean over the first complete window to the best mean. The decline is from the best mean to the
    last one. Noise explains up to six standard errors of a mean; ten means rarely spread further. A value that is not
    finite counts as a collapse.
    """
    if not all(map(math.isfinite, rewards)):
        return True
    if len(rewards) <= max(MIN_POINTS, window):
        return False
    means = window_means(rewards, window)[window - 1 :]
    best = max(means)
    return best - means[-1] > max(0.5 * (best - means[0]), 6 * reward_noise(rewards) / math.sqrt(window))


def loss_noise(losses: Sequence[float]) -> float:
    """Return the standard deviation of the noise on a trend, from the median step between neighbors.

    For a normal variable, the median step is 0.954 standard deviations. Outliers hardly change the median, so an
    exploding loss does not count as noise.

    Example:
    >>> from noterl.finders.curves import loss_noise
    >>> round(loss_noise([0.0, 11.0, 20.0, 31.0, 40.0]), 2)
    10.48
    """
    return float(np.median(np.abs(np.diff(losses)))) / 0.954


def reward_noise(rewards: Sequence[float]) -> float:
    """Return the standard deviation of the noise on a trend, where rare large values count as noise too.

    If most rewards are 0, the median step is 0. The standard deviation of the steps includes rare rewards.

    Example:
    >>> from noterl.finders.curves import loss_noise, reward_noise
    >>> rare = [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    >>> loss_noise(rare), reward_noise(rare)
    (0.0, 0.35355339059327373)
    """
    return max(loss_noise(rewards), float(np.std(np.diff(rewards))) / math.sqrt(2))


def differs_from_noise(values: Sequence[float], index: int, window: int, sma: int, noise: float) -> bool:
    """Return whether the mean over a window changed by more than four standard errors in `sma` points.

    In noise alone, the largest of about fifty changes is rarely that large.

    Args:
        values: the series.
        index: the last point of the change.
        window: number of points in a mean.
        sma: number of points over which the change is measured.
        noise: the standard deviation of the noise on the series.

    Example:
    >>> from noterl.finders.curves import differs_from_noise
    >>> values = [0.0, 1.0, 0.0, 1.0, 9.0, 10.0, 9.0, 10.0]
    >>> differs_from_noise(values, 7, 4, 4, noise=1.0), differs_from_noise(values, 3, 4, 1, noise=1.0)
    (True, False)
    """
    means = window_means(values, window)
    if not all(map(math.isfinite, values)) or index < sma:
        return False
    error = noise * math.sqrt(2 * min(sma, window)) / window
    return abs(means[index] - means[index - sma]) > 4 * error


def loss_exploded(losses: Sequence[float], window: int) -> bool:
    """Return whether the loss is not finite, or has risen by more than three times its range and more than its noise.

    The rise is from the lowest mean over a window to the last one. The range is the distance from the lowest mean to
    the first one, or to zero if that is larger. A positive loss that only rises thus explodes at four times its first
    mean. Noise explains up to six standard errors of a mean.
    """
    if not all(map(math.isfinite, losses[-1:])):
        return True
    if len(losses) <= max(MIN_POINTS, window):
        return False
    means = window_means(losses, window)[window - 1 :]
    best = min(means)
    loss_range = max(means[0] - best, abs(best))
    return means[-1] - best > max(3 * loss_range, 6 * loss_noise(losses) / math.sqrt(window))


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

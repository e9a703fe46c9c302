"""Statistics of a series of rewards or losses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# A collapse is reported only after more points than this, because the first points are noisy.
MIN_POINTS = 5


def window_means(values: Sequence[float], window: int) -> list[float]:
    """Return, for each value, the mean of the last `window` values up to this value; fewer at the start.

    Example:
    >>> from noterl.finders.curves import window_means
    >>> window_means([2.0, 4.0, 9.0], 2)
    [2.0, 3.0, 6.5]
    """
    return [_mean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]


def normalized(values: Sequence[float], window: int) -> list[float]:
    """Return each value normalized by the last `window` values up to this value: (value - mean) / (deviation + 1e-8).

    The deviation is the population's. Rising values are above zero, whatever the scale of the rewards.

    Example:
    >>> from noterl.finders.curves import normalized
    >>> [round(value, 3) for value in normalized([2.0, 4.0, 4.0], 2)]
    [0.0, 1.0, 0.0]
    """
    result = []
    for end in range(1, len(values) + 1):
        recent = np.asarray(values[max(0, end - window) : end], np.float64)
        # Equal values have the deviation 0.
        result.append(float((recent[-1] - recent.mean()) / (recent.std() + 1e-8)))
    return result


def derivative(values: Sequence[float], sma: int = 1) -> list[float]:
    """Return the change per point, over `sma` points: (x[i] - x[i - sma]) / sma; the first `sma` changes are 0.

    Example:
    >>> from noterl.finders.curves import derivative
    >>> derivative([1.0, 2.0, 4.0, 8.0], 2)
    [0.0, 0.0, 1.5, 3.0]
    """
    # Not strict: the last `sma` values have no later partner.
    slopes = [(late - early) / sma for early, late in zip(values, values[sma:], strict=False)]
    return [0.0] * min(sma, len(values)) + slopes


def reward_collapsed(rewards: Sequence[float], window: int) -> bool:
    """Return whether the reward has lost more than half of the gain, and more than noise explains.

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


def best_index(means: Sequence[float], window: int, *, rising: bool) -> int | None:
    """Return the index of the highest or lowest mean over a complete window; None if none is finite.

    Example:
    >>> from noterl.finders.curves import best_index
    >>> best_index([0.0, 3.0, 2.0, 5.0, math.nan], 2, rising=False)
    2
    """
    complete = [(mean if rising else -mean, -index) for index, mean in enumerate(means) if index >= window - 1]
    complete = [pair for pair in complete if math.isfinite(pair[0])]
    # Of equal means, the largest negative index is the first.
    return -max(complete)[1] if complete else None


def gain(means: Sequence[float], window: int, best: int, *, rising: bool) -> float:
    """Return how much the means over complete windows improved from the worst value before `best` to `best`."""
    before = means[window - 1 : best + 1]
    return means[best] - min(before) if rising else max(before) - means[best]


def gained_index(means: Sequence[float], window: int, best: int, *, rising: bool) -> int:
    """Return the first index at which the means have made nine tenths of the improvement up to `best`."""
    sign = 1 if rising else -1
    goal = means[best] - sign * 0.1 * gain(means, window, best, rising=rising)
    return next(index for index in range(window - 1, best + 1) if sign * means[index] >= sign * goal)


def mean_noise(values: Sequence[float], window: int, noise: float) -> float:
    """Return the standard deviation of a mean over the window around the trend.

    This is `noise` / sqrt(window) if the noise of the points is independent. Points with common data, such as the
    updates of one rollout, are not. The second differences between windows side by side show noise of this kind: a
    steady trend does not change them. For a normal variable, 60 % of them are below 2.061 standard deviations.

    Args:
        values: the series.
        window: number of points in a mean.
        noise: the standard deviation of a point.

    Example:
    >>> from noterl.finders.curves import mean_noise
    >>> mean_noise([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, noise=0.0)
    0.0
    >>> round(mean_noise([1.0, 1.0, 9.0, 9.0, 1.0, 1.0, 9.0, 9.0], 2, noise=0.0), 2)
    7.76
    """
    means = np.asarray(window_means(values, window)[window - 1 :])
    independent = noise / math.sqrt(window)
    bends = means[2 * window :] - 2 * means[window:-window] + means[: -2 * window]
    return max(independent, float(np.quantile(np.abs(bends), 0.6)) / 2.061) if len(bends) else independent


def is_gain_clear(values: Sequence[float], window: int, *, rising: bool) -> bool:
    """Return whether the means improve by more than 14 standard deviations of a mean, up to the best value.

    In 300 points of noise, means improve by at most 7 if the points are independent. If groups of 16 points share data,
    means improve by 14 in one series of twenty. Losses that fell while agents learned improved by 17 to 190.
    """
    finite = [value for value in values if math.isfinite(value)]
    means = window_means(finite, window)
    best = best_index(means, window, rising=rising)
    if best is None or len(finite) < 2:
        return False
    noise = reward_noise(finite) if rising else loss_noise(finite)
    return gain(means, window, best, rising=rising) > 14 * mean_noise(finite, window, noise)


def loss_exploded(losses: Sequence[float], window: int) -> bool:
    """Return whether the last loss is not finite, or the losses have risen clearly above the lowest mean over a window.

    The rise is from the lowest mean to the smaller one of the last mean and the last median. It is clear if it exceeds
    the largest of three figures: a quarter of the fall before the lowest mean, the distance of the lowest mean from
    zero, and eight standard errors of a mean. If the lowest mean is positive, the last mean is thus more than twice as
    high. A Huber loss grows slowly, so a multiple of the fall would be reached too late.
    """
    if len(losses) > 0 and not math.isfinite(losses[-1]):
        return True
    if len(losses) <= max(MIN_POINTS, window):
        return False
    means = window_means(losses, window)
    best = best_index(means, window, rising=False)
    if best is None:
        return False
    fall = gain(means, window, best, rising=False)
    noise = loss_noise(losses) / math.sqrt(window)
    last = min(means[-1], float(np.median(losses[-window:])))  # one outlier raises the mean only
    return last - means[best] > max(0.25 * fall, abs(means[best]), 8 * noise)


def steepest(slopes: Sequence[float], *, rising: bool, skip_beginning: int) -> int | None:
    """Return the index of the steepest rise or fall after the skipped points; None if no point is left.

    Example:
    >>> from noterl.finders.curves import steepest
    >>> steepest([9.0, 1.0, 3.0, -2.0], rising=True, skip_beginning=1)
    2
    """
    # Of equal slopes, the largest negative index is the first.
    kept = [(slope if rising else -slope, -index) for index, slope in enumerate(slopes) if index >= skip_beginning]
    return -max(kept)[1] if kept else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan

"""The statistics of the finders: formulas by hand, and rules on series with known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from noterl.finders import curves

pytestmark = pytest.mark.backend_free


def test_normalized_uses_the_window_that_ends_at_the_value() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0]
    expected = []
    for index in range(5):
        recent = np.array(values[max(0, index - 2) : index + 1])
        expected.append((values[index] - recent.mean()) / (recent.std() + 1e-8))
    assert curves.normalized(values, 3) == pytest.approx(expected, rel=1e-12)
    assert curves.normalized([7.0, 7.0, 7.0], 2) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("sma", "expected"),
    [(1, [0, 1, 2, -4, 0]), (2, [0, 0, 1.5, -1, -2]), (4, [0, 0, 0, 0, -0.25]), (9, [0, 0, 0, 0, 0])],
)
def test_derivative_is_the_change_over_sma_points(sma: int, expected: list[float]) -> None:
    assert curves.derivative([1.0, 2.0, 4.0, 0.0, 0.0], sma) == expected


class TestRewardCollapsed:
    def end(self, rewards: list[float], window: int = 3) -> int | None:
        """Return after how many points the search would end."""
        return next((n for n in range(1, len(rewards) + 1) if curves.reward_collapsed(rewards[:n], window)), None)

    def test_losing_half_of_the_gain_is_a_collapse(self) -> None:
        assert self.end([0.0] * 5 + [10.0] * 5 + [5.5] * 20) is None
        # Means over three go 10, 8, 6, 4. The two jumps count as noise until there are enough points without one.
        assert self.end([0.0] * 5 + [10.0] * 5 + [4.0] * 20) == 24

    def test_negative_rewards_can_collapse(self) -> None:
        assert self.end([-1000.0] * 5 + [-200.0] * 5 + [-500.0] * 20) is None
        assert self.end([-1000.0] * 5 + [-200.0] * 5 + [-900.0] * 40) is not None

    def test_noise_rarely_is_a_collapse(self) -> None:
        ended = [self.end(list(np.random.default_rng(seed).normal(size=77)), 7) is not None for seed in range(40)]
        assert sum(ended) <= 4

    @pytest.mark.parametrize("probability", [0.03, 0.1, 0.3])
    def test_rare_rewards_are_not_a_collapse(self, probability: float) -> None:
        rewards = [(np.random.default_rng(seed).random(77) < probability) * 1.0 for seed in range(40)]
        assert sum(self.end(list(series), 7) is not None for series in rewards) <= 2

    def test_one_success_is_not_a_collapse(self) -> None:
        assert self.end([0.0] * 20 + [1.0] + [0.0] * 50, 7) is None

    def test_first_points_are_not_a_collapse(self) -> None:
        assert self.end([9.0, 0.0, 0.0, 0.0, 0.0], 2) is None
        assert self.end([9.0, 9.0] + [0.0] * 20, 2) is not None

    def test_value_that_is_not_finite_is_a_collapse(self) -> None:
        assert self.end([1.0, 2.0, math.nan]) == 3
        assert self.end([1.0, math.inf]) == 2


class TestLossExploded:
    def test_loss_that_doubles_and_loses_a_quarter_of_its_fall_explodes(self) -> None:
        falling = [8.0, 6.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0]  # the means over three fall from 6 to 1
        assert not curves.loss_exploded([*falling, 2.2, 2.2, 2.2], 3)  # a quarter of the fall is 1.25
        assert curves.loss_exploded([*falling, 2.3, 2.3, 2.3], 3)

    def test_rising_loss_above_twice_its_minimum_explodes(self) -> None:
        assert not curves.loss_exploded([1.0] * 7 + [2.0] * 3, 3)
        assert curves.loss_exploded([1.0] * 7 + [2.0, 2.1, 2.1], 3)

    @pytest.mark.parametrize(("first", "last"), [(-0.010, -0.020), (0.010, -0.010), (0.0, -1.0)])
    def test_falling_loss_below_zero_does_not_explode(self, first: float, last: float) -> None:
        losses = np.linspace(first, last, 40)
        assert not any(curves.loss_exploded(list(losses[:points]), 7) for points in range(1, 41))

    def test_noise_around_zero_does_not_explode(self) -> None:
        for seed in range(20):
            losses = np.random.default_rng(seed).normal(scale=1e-3, size=77)
            assert not any(curves.loss_exploded(list(losses[:points]), 7) for points in range(1, 78))

    def test_negative_loss_can_explode(self) -> None:
        assert curves.loss_exploded([-1.0, -1.5, -2.0, -2.0, -2.0, 5.0, 9.0, 30.0], 2)

    def test_one_outlier_is_not_an_explosion(self) -> None:
        assert not curves.loss_exploded([1.0] * 8 + [9.0], 3)
        assert curves.loss_exploded([1.0] * 8 + [9.0], 1)

    def test_first_points_explode_only_if_not_finite(self) -> None:
        assert not curves.loss_exploded([1.0, 100.0], 1)
        assert curves.loss_exploded([1.0, math.nan], 1)
        assert curves.loss_exploded([math.inf], 1)


class TestSteepest:
    def test_steepest_rise_or_fall_is_found(self) -> None:
        slopes = [0.0, 1.0, 5.0, -7.0, 2.0]
        assert curves.steepest(slopes, rising=True, skip_beginning=0) == 2
        assert curves.steepest(slopes, rising=False, skip_beginning=0) == 3

    def test_skipped_points_are_ignored(self) -> None:
        slopes = [9.0, 1.0, 5.0, -7.0]
        assert curves.steepest(slopes, rising=True, skip_beginning=1) == 2
        assert curves.steepest(slopes, rising=True, skip_beginning=4) is None

    def test_first_of_equal_slopes_is_returned(self) -> None:
        assert curves.steepest([0.0, 2.0, 2.0], rising=True, skip_beginning=0) == 1


def test_suggestion_is_where_the_rise_begins() -> None:
    """A reward that rises at point 40 of 77 is suggested within the window after it; a falling loss likewise."""
    noise = np.random.default_rng(0).normal(size=77)
    rewards = noise + np.where(np.arange(77) < 40, 0.0, 20.0)
    for values, rising in ((rewards, True), (-rewards, False)):
        slopes = curves.derivative(curves.window_means(list(values), 7), 7)
        index = curves.steepest(slopes[:-5], rising=rising, skip_beginning=10)
        assert 40 <= index <= 47


def huber(points: int, seed: int, noise: float = 0.05) -> np.ndarray:
    """Return a Huber loss for 300 growing rates: a descent around point 120, a spike at 240 and a steeper recovery."""
    at = np.arange(points)
    loss = 0.15 + 2.2 / (1 + np.exp((at - 120) / 8)) + 1.4 * np.exp(-(((at - 243) / 6) ** 2))
    return loss * (1 + noise * np.random.default_rng(seed).normal(size=points))


def correlated(kind: str, points: int, seed: int) -> list[float]:
    """Return noise without a trend."""
    generator = np.random.default_rng(seed)
    if kind == "independent":
        return generator.normal(5.0, 1.0, points).tolist()
    if kind == "heavy tails":
        return generator.standard_t(2.5, points).tolist()
    if kind == "rollouts":  # 16 updates with the same data
        shared = np.repeat(generator.normal(size=points // 16 + 1), 16)[:points]
        return (shared + generator.normal(size=points)).tolist()
    return np.convolve(generator.normal(size=points + 20), 0.8 ** np.arange(20))[20 : 20 + points].tolist()


class TestGain:
    @pytest.mark.parametrize("kind", ["independent", "heavy tails", "rollouts", "autoregressive"])
    @pytest.mark.parametrize("points", [40, 77, 300])
    @pytest.mark.parametrize("rising", [False, True])
    def test_noise_is_not_clear(self, kind: str, points: int, rising: bool) -> None:
        clear = [curves.is_gain_clear(correlated(kind, points, seed), 7, rising=rising) for seed in range(40)]
        assert sum(clear) <= (0 if kind == "independent" else 2)

    @pytest.mark.parametrize("rising", [False, True])
    def test_steady_improvement_is_clear(self, rising: bool) -> None:
        for seed in range(10):
            values = np.linspace(0, 9, 120) + 0.5 * np.random.default_rng(seed).normal(size=120)
            assert curves.is_gain_clear((values if rising else -values).tolist(), 7, rising=rising)

    def test_worse_values_after_the_best_mean_do_not_count(self) -> None:
        assert curves.gain([5.0, 4.0, 1.0, 9.0], 1, 2, rising=False) == 4.0
        assert curves.gain([5.0, 4.0, 7.0, 0.0], 1, 2, rising=True) == 3.0

    def test_first_means_are_incomplete(self) -> None:
        assert curves.best_index([0.0, 1.0, 3.0, 2.0], 3, rising=False) == 3
        assert curves.best_index([math.nan, math.nan], 1, rising=False) is None

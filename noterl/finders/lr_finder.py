"""Finding a learning rate by a range test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from noterl.finders import curves
from noterl.finders.finder import Curve, Finder, check_agent
from noterl.finders.preserving import preserving, train
from noterl.learning import optimizers
from noterl.training.finder_logger import METRICS, FinderLogger
from noterl.utils.checks import check_int, check_number, check_positive, check_word

# Factors between rates of the metric "loss", from the searches of benchmarks/learning_rates.py with the seeds 0 to 4.
# A rate just below that of the lowest loss is stable for a short time only. A loss that falls long before it explodes
# falls by itself, such as from the values of an untrained network.
BELOW_LOWEST = 4.0
BELOW_END = 600.0
# Points that `suggestion` skips by default: the first means are over few points, and the last rates are too high.
SKIP_BEGINNING = 10
SKIP_END = 5

if TYPE_CHECKING:
    from noterl.agent import BaseAgent


class LRFinder(Finder):
    """Train for a short time with an exponentially growing learning rate, and find where learning is fastest.

    Afterwards the agent is exactly as before. The method comes from Smith, "Cyclical Learning Rates for Training Neural
    Networks", 2017, who uses the loss of supervised learning. A reward is noisier, and noise alone leads to a
    suggestion too; `is_clear` shows whether the suggestion differs from noise. If an agent explores at random for a
    long time, use the metric "loss", because rewards then hardly depend on the rate.

    Args:
        agent: the agent.

    Attributes:
        results: a row per point: `learning_rate`, `reward`, `normalized_reward` and `mean_reward` over the window (for
            the metric "loss": `loss` and `mean_loss`).
        stop_reason: why the search ended.
        seconds: the duration of the search.

    Example:
    >>> import noterl
    >>> from noterl.finders import LRFinder
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> agent.compile(learning_starts=50, batch_size=8)
    >>> finder = LRFinder(agent)
    >>> rate = finder.find(episodes=20, start_lr=1e-4, end_lr=1e-1)
    >>> 1e-4 <= rate <= 1e-1, agent.steps, round(finder.results[0]["learning_rate"], 6)
    (True, 0, 0.0001)
    """

    x_scale = "log"

    def __init__(self, agent: BaseAgent) -> None:
        super().__init__()
        self.agent: BaseAgent = check_agent(agent)
        self.metric: str = "reward"
        self.stop_reason: str | None = None
        self.seconds: float = 0.0
        self._window = 1

    def find(
        self,
        env: Any = None,
        episodes: int = 77,
        start_lr: float = 1e-4,
        end_lr: float = 1.0,
        window_size: int = 7,
        metric: str = "reward",
        updates: int | None = None,
        optimizer: str | None = None,
        **fit: Any,
    ) -> float | None:
        """Run the test and return the rate of `suggestion`; None if the search ended too early for one.

        The rate is `start_lr` for the first point and is multiplied by (end_lr / start_lr) ** (1 / points) at each
        point. A point is an episode, starting with the first that has an update; for the metric "loss", a gradient
        update. The search ends early if the reward loses half of the gain, or if the loss rises above the minimum by a
        quarter of the fall and at least doubles. Both are means over the window, and the change must exceed the noise.
        The search also ends if a value is not finite.

        Args:
            env: where to train; by default a new copy of the training environment.
            episodes: number of points, at least 16, because `suggestion` skips the first 10 and the last 5.
            start_lr: the first rate.
            end_lr: the rate after the last point.
            window_size: number of points in a mean.
            metric: "reward" or "loss".
            updates: number of points for the metric "loss", at least 16; by default `episodes`.
            optimizer: the name of the optimizer whose rate grows, such as "critic"; None for all.
            **fit: further arguments of `Agent.fit`.

        Raises:
            ValueError: if an argument is not one of the allowed values, or an optimizer's learning rate has a schedule.
        """
        check_number("start_lr", start_lr, low=0, above=True)
        check_number("end_lr", end_lr, low=start_lr, above=True)
        check_positive("window_size", window_size)
        check_word("metric", metric, METRICS)
        # With fewer points, no point would be left between the ones that `suggestion` skips.
        name, points = ("episodes", episodes) if metric == "reward" or updates is None else ("updates", updates)
        check_int(name, points, least=SKIP_BEGINNING + SKIP_END + 1)
        names = self.agent.optimizer_names
        if optimizer is not None and optimizer not in names:
            raise ValueError(f"optimizer must be {', '.join(map(repr, names))} or None, got {optimizer!r}")
        for name in names if optimizer is None else (optimizer,):
            # A schedule would overwrite the rates of the test.
            optimizers.check_without_schedule(self.agent.optimizers[name])
        # A geometric series, because rates matter by their ratio.
        rates = np.geomspace(start_lr, end_lr, points, endpoint=False).tolist()
        collapsed = curves.reward_collapsed if metric == "reward" else curves.loss_exploded
        logger = FinderLogger(
            metric,
            points,
            before=lambda index: self.agent.set_rule("learning_rate", rates[index], optimizer),
            collapsed=lambda values: collapsed(values, window_size),
        )
        with preserving(self.agent):
            self.stop_reason, _ = train(self.agent, logger, env, fit)
        self.metric = metric
        self.seconds = logger.seconds
        self._window = window_size
        self.results: list[dict[str, Any]] = _rows(metric, rates, logger.values, window_size)
        return self.suggestion() if self.results else None

    def suggestion(
        self, sma: int | None = None, n_skip_beginning: int = SKIP_BEGINNING, n_skip_end: int = SKIP_END
    ) -> float | None:
        """Return the rate where the mean loss falls fastest, or one above that where the mean reward rises fastest.

        A loss shows at once what a rate does, while a reward also depends on what earlier rates have taught. For a
        reward, the suggestion is therefore the geometric mean of the rate of the fastest rise and the rate of the
        highest mean. A loss is often lowest just before it explodes: only rates up to a quarter of the rate of the
        lowest mean are suggested. A change of means depends on several points; its rate is the middle point's.

        Args:
            sma: number of points over which the change is measured; by default `window_size`.
            n_skip_beginning: number of points that are skipped at the start.
            n_skip_end: number of points that are skipped at the end.

        Returns:
            The rate; None if no point is left.

        Raises:
            ValueError: if a number is not one of the allowed values, or `find` has not been called.
        """
        sma = self._window if sma is None else check_positive("sma", sma)
        for name, value in (("n_skip_beginning", n_skip_beginning), ("n_skip_end", n_skip_end)):
            check_int(name, value, least=0)
        fastest = self._fastest(sma, n_skip_beginning, n_skip_end)
        if fastest is None:
            return None
        index, last = fastest
        # Rates are a geometric series, so the middle point has the geometric mean.
        return self.curves(self.metric)[self._mean][0][(index + last) // 2 if self.metric == "reward" else index]

    def _fastest(self, sma: int, skip_beginning: int, skip_end: int) -> tuple[int, int] | None:
        """Return the point where the means improve fastest, and the last point of the improvement.

        For a loss, the rate of the first point is at most a quarter of the rate of the lowest mean. Without any point
        between the skipped ones, the result is None.
        """
        rising = self.metric == "reward"
        rates, means = self.curves(self.metric)[self._mean]
        best = curves.best_index(means, self._window, rising=rising)
        if best is None:
            return None
        # Only points up to the best mean count: afterwards, learning diverges, and a recovery can be steeper than
        # learning.
        last = max(-1, min(best, len(means) - 1 - skip_end))
        slopes = curves.derivative(means, sma)[: last + 1]
        # The index of the last of the `sma` points over which the mean improves fastest.
        index = curves.steepest(slopes, rising=rising, skip_beginning=skip_beginning)
        if index is None:
            return None
        # Half of the points that the change depends on: `window` of the mean and `sma` of the change.
        index = max(0, index - (self._window + sma - 1) // 2)
        if not rising:
            index = min(index, max(0, int(np.searchsorted(rates, rates[best] / BELOW_LOWEST, "right")) - 1))
        return index, last

    @property
    def is_clear(self) -> bool:
        """Whether the suggestion of `find` can be relied on.

        The means must improve by more than noise explains, and make nine tenths of the improvement within a quarter of
        the points after the fastest change. A slower improvement does not depend on one rate. A loss that explodes must
        do so before the rate is 600 times the suggestion.
        """
        fastest = self._fastest(self._window, SKIP_BEGINNING, SKIP_END) if self.results else None
        if fastest is None:
            return False
        index, _ = fastest
        rising = self.metric == "reward"
        rates, values = self.curves(self.metric)[self.metric]
        ended_late = rates[-1] > BELOW_END * rates[index]
        exploded_late = not rising and ended_late and curves.loss_exploded(values, self._window)
        if exploded_late or not curves.is_gain_clear(values, self._window, rising=rising):
            return False
        means = self.curves(self.metric)[self._mean][1]
        best = curves.best_index(means, self._window, rising=rising)
        assert best is not None  # there is a suggestion
        return 4 * (curves.gained_index(means, self._window, best, rising=rising) - index) <= len(rates)

    @property
    def _mean(self) -> str:
        return f"mean of {self._window}"

    def marked(self) -> float | None:
        """Return the rate that `find` suggested, which plots mark."""
        return self.suggestion() if self.results else None

    def curves(self, metric: str) -> dict[str, Curve]:
        """Return the values of the metric that `find` used, and the means over the window."""
        if self.metric != metric or not self.results:
            raise ValueError(f"there is no {metric} to plot: run find(metric={metric!r}) first")
        rates = [row["learning_rate"] for row in self.results]
        columns = {metric: metric, self._mean: f"mean_{metric}"}
        return {label: (rates, [row[column] for row in self.results]) for label, column in columns.items()}

    def x_label(self, metric: str) -> str:
        """Return the label of the horizontal axis in a plot of the metric."""
        return "learning rate"


def _rows(metric: str, rates: list[float], values: list[float], window: int) -> list[dict[str, Any]]:
    """Return the rows of `results`, one for each recorded value."""
    means = curves.window_means(values, window)
    columns = {"learning_rate": rates[: len(values)], metric: values, f"mean_{metric}": means}
    if metric == "reward":
        columns["normalized_reward"] = curves.normalized(values, window)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

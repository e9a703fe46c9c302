"""A range test of the learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from noterl.backends.common import NonFiniteError
from noterl.finders.curves import (
    derivative,
    exponential,
    loss_exploded,
    normalised,
    reward_collapsed,
    stands_out,
    steepest,
    window_means,
)
from noterl.finders.finder import Curve, Finder
from noterl.finders.finder_logger import METRICS, FinderLogger
from noterl.finders.preserving import preserving, trial_environment
from noterl.utils.checks import check_int, check_number, check_positive, check_word

if TYPE_CHECKING:
    from noterl.agent import Agent


class LRFinder(Finder):
    """Train for a while with a learning rate that grows exponentially, and see where learning goes best.

    The agent is left exactly as it was. Smith, "Cyclical Learning Rates for Training Neural Networks", 2017, did so
    with the loss of supervised learning. A reward is noisier, and of noise alone something is suggested too: `is_clear`
    says whether it is more than that. Where an agent explores at random for long prefer the loss.

    Args:
        agent: the agent.

    Attributes:
        results: a row per point: `learning_rate`, `reward`, `normalised_reward` and `mean_reward` over the window (with
            the metric "loss": `loss` and `mean_loss`).
        stop_reason: what ended the search.
        seconds: that it took.

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

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent
        self.metric: str | None = None
        self.stop_reason: str | None = None
        self.seconds = 0.0
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
        **fit: Any,
    ) -> float | None:
        """Run the test and return the rate that `suggestion` names.

        The rate is `start_lr` for the first point and grows by (end_lr / start_lr) ** (1 / points) with each.
        A point is an episode, from the first one with an update on; with the metric "loss" a gradient update. The
        search ends early where the reward loses half of what it had gained, or the loss grows to four times its best
        (both as means over the window), or something is not finite.

        Args:
            env: where to train; a fresh copy of the training environment by default.
            episodes: how many points there are.
            start_lr: the first rate.
            end_lr: where the rate leads.
            window_size: points in a mean.
            metric: "reward" or "loss".
            updates: how many points there are with the metric "loss"; as many as `episodes` if not given.
            **fit: further arguments of `Agent.fit`.

        Raises:
            ValueError: naming the argument that is not what it may be.
        """
        check_positive("episodes", episodes)
        check_number("start_lr", start_lr, low=0, above=True)
        check_number("end_lr", end_lr, low=start_lr, above=True)
        window = self._window = check_positive("window_size", window_size)
        self.metric = check_word("metric", metric, METRICS)
        points = episodes if metric == "reward" else check_positive("updates", updates or episodes)
        rates: list[float] = []

        def before(index: int) -> None:
            rates.append(exponential(start_lr, end_lr, points, index))
            self.agent.set_rule("learning_rate", rates[-1])

        collapsed = reward_collapsed if metric == "reward" else loss_exploded
        logger = FinderLogger(metric, points, before=before, collapsed=lambda values: collapsed(values, window))
        self.stop_reason = self._run(logger, env, fit)
        self.seconds = logger.seconds
        self.results = _rows(metric, rates, logger.values, window)
        return self.suggestion() if self.results else None

    def suggestion(self, sma: int | None = None, n_skip_beginning: int = 10, n_skip_end: int = 5) -> float | None:
        """Return the rate at which the mean reward rises fastest, or the mean loss falls fastest; None if too short.

        A change of means is that of many points; the rate is the one in the middle of them.

        Args:
            sma: points over which the change is measured; `window_size` if not given.
            n_skip_beginning: points that are not looked at, at the start.
            n_skip_end: points that are not looked at, at the end.

        Raises:
            ValueError: if a number is not what it may be, or nothing was found yet.
        """
        sma = self._window if sma is None else check_positive("sma", sma)
        for name, value in (("n_skip_beginning", n_skip_beginning), ("n_skip_end", n_skip_end)):
            check_int(name, value, least=0)
        index = self._steepest(sma, n_skip_beginning, n_skip_end)
        rates = self.curves(self._searched)[self._searched][0]
        return None if index is None else rates[max(0, index - (self._window + sma - 1) // 2)]

    @property
    def is_clear(self) -> bool:
        """Whether what `find` suggests stands out of the noise: a change of more than four standard errors."""
        index = self._steepest(self._window) if self.results else None
        return index is not None and stands_out(
            self.curves(self._searched)[self._searched][1], index, self._window, self._window
        )

    @property
    def _searched(self) -> str:
        return self.metric or "reward"

    def _steepest(self, sma: int, n_skip_beginning: int = 10, n_skip_end: int = 5) -> int | None:
        """Return where the mean changes fastest for the better, within the `sma` points up to there."""
        slopes = derivative(self.curves(self._searched)[self._mean][1], sma)
        rising = self.metric == "reward"
        return steepest(slopes, rising=rising, skip_beginning=n_skip_beginning, skip_end=n_skip_end)

    @property
    def _mean(self) -> str:
        return f"mean of {self._window}"

    def marked(self) -> float | None:
        """Return the rate that `find` suggested, for pictures to show."""
        return self.suggestion() if self.results else None

    def curves(self, metric: str) -> dict[str, Curve]:
        """Return the points of the metric that was searched by, and their means over the window."""
        if self.metric != metric or not self.results:
            raise ValueError(f"there is no {metric} to show: run find(metric={metric!r}) first")
        rates = [row["learning_rate"] for row in self.results]
        return {
            name: (rates, [row[column] for row in self.results])
            for name, column in ((metric, metric), (self._mean, f"mean_{metric}"))
        }

    def x_label(self, metric: str) -> str:
        """Return what lies to the right in a picture of the metric."""
        return "learning rate"

    def _run(self, logger: FinderLogger, env: Any, fit: dict[str, Any]) -> str | None:
        """Train until the logger ends it, and put the agent back; return what ended it."""
        agent = self.agent
        callbacks = [*fit.pop("callbacks", ()), logger]
        with preserving(agent):
            try:
                history = agent.fit(trial_environment(agent, env), callbacks=callbacks, **{"verbose": 0, **fit})
            except NonFiniteError as error:
                return str(error)
            return history.stop_reason


def _rows(metric: str, rates: list[float], values: list[float], window: int) -> list[dict[str, Any]]:
    columns = {"learning_rate": rates[: len(values)], metric: values, f"mean_{metric}": window_means(values, window)}
    if metric == "reward":
        columns["normalised_reward"] = normalised(values, window)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

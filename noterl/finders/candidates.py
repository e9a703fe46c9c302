"""Comparing the trials of several candidates."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from noterl.finders.finder import Curve, Finder
from noterl.training.finder_logger import METRICS
from noterl.utils.checks import check_positive, check_word


class Trial(NamedTuple):
    """The trial of a candidate: what `FinderLogger` recorded, and the error that ended the trial, if any."""

    name: str
    rewards: list[float]
    losses: list[float]
    seconds: float
    error: str | None = None

    def values(self, metric: str) -> list[float]:
        """Return the recorded values of "reward" or "loss"."""
        return self.rewards if metric == "reward" else self.losses


class CandidateFinder(Finder):
    """Base of the finders that compare candidates; the best has the highest mean reward, or the lowest mean loss.

    Attributes:
        results: a row per candidate, best first: `name`, `mean` and `spread` (standard deviation) of the metric over
            its points, `points`, `seconds`, and `error` (None if there was none). After an error, `mean` and `spread`
            are NaN.
        trials: the trials by candidate name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trials: dict[str, Trial] = {}
        self.metric: str = "reward"

    @property
    def best(self) -> str | None:
        """The name of the best candidate; None if no candidate has a mean."""
        return self.results[0]["name"] if self.results and not math.isnan(self.results[0]["mean"]) else None

    @property
    def ties(self) -> list[str]:
        """The names of the candidates that may be as good as the best, which is the first.

        The means of these candidates differ from the best mean by at most three standard errors of the difference. A
        candidate with one point has no standard error, and is tied.
        """
        rows = [row for row in self.results if not math.isnan(row["mean"])]
        return [row["name"] for row in rows if abs(row["mean"] - rows[0]["mean"]) <= 3 * _error(row, rows[0])]

    @property
    def is_clear(self) -> bool:
        """Whether no other candidate is tied with the best."""
        return len(self.ties) == 1 and len(self.results) > 1

    def curves(self, metric: str) -> dict[str, Curve]:
        """Return, by candidate name, the points of those candidates that have any."""
        values_by_name = {name: trial.values(metric) for name, trial in self.trials.items() if trial.values(metric)}
        if not values_by_name:
            raise ValueError(f"there is no {metric} to plot: run find first")
        return {name: (list(range(len(values))), values) for name, values in values_by_name.items()}

    def x_label(self, metric: str) -> str:
        """Return the label of the horizontal axis in a plot of the metric."""
        return "gradient update" if metric == self.metric == "loss" else "episode"

    def find(self, env: Any = None, episodes: int = 7, *, metric: str = "reward", **fit: Any) -> str | None:
        """Try every candidate and return the name of the best, or None if no candidate has a mean.

        Args:
            env: where to train; by default a new copy of the training environment.
            episodes: number of points in a trial. A point is an episode, starting with the first that has an update;
                for the metric "loss", a point is a gradient update.
            metric: "reward" or "loss". A loss shows how fast a candidate fits its targets, not how well the agent acts.
            **fit: further arguments of `Agent.fit`.

        Raises:
            ValueError: if an argument is not one of the allowed values.
            RuntimeError: if all candidates failed; the message is the error of the first. `results` has the others.
        """
        check_positive("episodes", episodes)
        check_word("metric", metric, METRICS)
        self.trials = {trial.name: trial for trial in self._run(env, episodes, metric, fit)}
        self.metric = metric
        rows = [_row(metric, trial) for trial in self.trials.values()]
        sign = -1 if metric == "reward" else 1
        # NaN is in no order, so candidates without a mean come last by the first key.
        self.results: list[dict[str, Any]] = sorted(rows, key=lambda row: (math.isnan(row["mean"]), sign * row["mean"]))
        first = next(iter(self.trials.values()))
        if all(trial.error for trial in self.trials.values()):
            raise RuntimeError(f"all candidates failed, the first ({first.name!r}) with the error:\n{first.error}")
        return self.best

    @abstractmethod
    def _run(self, env: Any, episodes: int, metric: str, fit: dict[str, Any]) -> list[Trial]:
        """Train every candidate for `episodes` points and return the trials."""


def named(candidates: Mapping[str, Any] | Sequence[Any], kinds: Sequence[str] | None = None) -> dict[str, Any]:
    """Return candidates by name; those in a list are named by `kinds` or `kind_of`, and numbered if names repeat.

    Example:
    >>> from noterl.finders.candidates import named
    >>> list(named([1.5, 2, 3]))
    ['float', 'int 1', 'int 2']
    """
    if isinstance(candidates, Mapping):
        names = [str(name) for name in candidates]
        values = list(candidates.values())
    else:
        names = list(kinds or map(kind_of, candidates))
        values = list(candidates)
    total = Counter(names)
    result = {name: None for name in names if total[name] == 1}  # numbered names must not equal these
    for index, name in enumerate(names):
        if total[name] > 1:
            names[index] = next(numbered for number in count(1) if (numbered := f"{name} {number}") not in result)
            result[names[index]] = None
    return dict(zip(names, values, strict=True))


def kind_of(candidate: Any) -> str:
    """Return a name for a candidate: the string itself, the class, or the names of the parts."""
    if isinstance(candidate, str):
        return candidate
    if isinstance(candidate, list | tuple):
        return ", ".join(map(kind_of, candidate))
    if isinstance(candidate, Mapping):
        return ", ".join(f"{name}: {kind_of(part)}" for name, part in candidate.items())
    return getattr(candidate, "__name__", type(candidate).__name__)


def _error(row: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the standard error of the difference of two means."""
    # One point has no spread, so nothing is known about its error.
    if min(row["points"], other["points"]) < 2:
        return math.inf
    return math.sqrt(sum(summary["spread"] ** 2 / (summary["points"] - 1) for summary in (row, other)))


def _row(metric: str, trial: Trial) -> dict[str, Any]:
    """Return the row of `results` for a trial; mean and spread are NaN after an error or without a point."""
    values = np.asarray(trial.values(metric), np.float64)
    complete = len(values) > 0 and trial.error is None
    return {
        "name": trial.name,
        "mean": float(values.mean()) if complete else math.nan,
        "spread": float(values.std()) if complete else math.nan,
        "points": len(values),
        "seconds": trial.seconds,
        "error": trial.error,
    }

"""A callback that ends training when the agent is good enough, or no longer improves."""

from __future__ import annotations

from typing import Any

import numpy as np

from noterl.registry import register
from noterl.types import Logs
from noterl.utils.checks import check_number, check_positive, positive

from .support.monitor import Monitor
from .support.stateful import MonitoringCallback


@register
class EarlyStopping(MonitoringCallback):
    """End training when a moving mean reaches a criterion, has not improved for some episodes, or has collapsed.

    The mean is over the last `trial_count` values of `monitor`, one value for each finished episode that logs the
    metric. Nothing is checked before there are that many; if there never are, a warning says so. The state is kept
    between `fit` calls with the same object, and in saved files.

    Args:
        trial_count: number of values in the mean. By default 10, or 1 for a metric that not every episode logs, such as
            the metrics of `Evaluate`.
        criterion: stop when the mean reaches this value; None for never.
        monitor: the metric, a name in an episode's logs.
        patience: stop after this number of values without a better mean; None for never.
        mode: "max" if higher is better, "min" if lower is better.
        collapse: stop when the mean has lost more than this share of the progress for `collapse_patience` values in
            turn. The progress is the difference of the best mean and the first: 0.3 allows a loss of 30 %. None for
            never. With `restore_best_weights`, the agent then has the weights of the best mean.
        collapse_patience: number of values in turn that end training by `collapse`.
        restore_best_weights: when training ends for any reason, set the networks to the weights of the best mean of
            all `fit` calls. A checkpoint at the end of training holds these. The optimizers are not changed.

    Raises:
        ValueError: if an argument is not one of the allowed values, or neither `criterion`, `patience` nor `collapse`
            is given; at an episode's end, if the logs do not hold `monitor`.

    Example:
    >>> from noterl.callbacks import EarlyStopping
    >>> import noterl
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> history = agent.fit(callbacks=[EarlyStopping(trial_count=2, criterion=5)], verbose=0)
    >>> len(history), history.stop_reason
    (2, 'reward reached 5')
    """

    stops_training = True
    saved = ("_first", "_best", "_collapsed", "_best_weights", "_waited")

    def __init__(
        self,
        trial_count: int | None = None,
        criterion: float | None = None,
        *,
        monitor: str = "reward",
        patience: int | None = None,
        mode: str = "max",
        collapse: float | None = None,
        collapse_patience: int = 3,
        restore_best_weights: bool = False,
    ) -> None:
        self._monitor = Monitor(monitor, trial_count, mode, argument="trial_count")
        self.patience: Any = check_positive("patience", patience, none=True)
        self.collapse_patience: int = check_positive("collapse_patience", collapse_patience)
        if criterion is None and patience is None and collapse is None:
            raise ValueError("criterion, patience or collapse must be given, otherwise training never stops")
        self.collapse: float | None = None if collapse is None else positive("collapse", collapse)
        if criterion is not None:
            check_number("criterion", criterion)
        self.criterion: float | None = criterion
        self.restore_best_weights: bool = restore_best_weights
        self._first: float | None = None  # the first mean, from which progress counts
        self._best: float | None = None
        self._collapsed = 0  # values in turn that lie far below the best mean
        self._best_weights: dict[str, np.ndarray] | None = None
        self._waited = 0

    def on_train_begin(self, logs: Logs) -> None:
        """Check that the best weights are known when the metric is."""
        if self.restore_best_weights:
            self._monitor.check_choice(self)

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Add the metric to the moving mean, stop if a condition holds, and store the weights of the best mean."""
        if not logs.get("complete", True) or not self._monitor.update(logs, self) or not self._monitor.is_full:
            return
        name = self._monitor.name
        mean = self._monitor.mean
        if self.criterion is not None and (mean == self.criterion or self._monitor.is_better(mean, self.criterion)):
            self.agent.stop(f"{name} reached {self.criterion}")
        if self._monitor.is_better(mean, self._best):
            self._first = mean if self._best is None else self._first
            self._best = mean
            self._waited = self._collapsed = 0
            if self.restore_best_weights:
                self._best_weights = self.agent.get_weights()
            return
        self._waited += 1
        if self.patience is not None and self._waited >= self.patience:
            # Counting starts again, so that a further `fit` trains for at least `patience` episodes.
            self._waited = 0
            unit = "values" if self._monitor.is_rare else "episodes"
            self.agent.stop(f"{name} has not improved for {self.patience} {unit}")
        self._stop_after_collapse(mean)

    def _stop_after_collapse(self, mean: float) -> None:
        """Stop if the mean has stayed below the best one by the share `collapse` of the progress."""
        best = self._best
        first = self._first
        # Before there is progress, a share of it is 0, and each mean below the first would be a collapse.
        if self.collapse is None or best is None or first is None or best == first:
            return
        has_collapsed = self._monitor.is_better(best - self.collapse * (best - first), mean)
        self._collapsed = self._collapsed + 1 if has_collapsed else 0
        if self._collapsed >= self.collapse_patience:
            self._collapsed = 0
            self.agent.stop(f"{self._monitor.name} collapsed from {best:.4g} to {mean:.4g}")

    def on_train_end(self, logs: Logs) -> None:
        """Restore the best weights if `restore_best_weights` is set."""
        if self.restore_best_weights and self._best_weights is not None:
            self.agent.set_weights(self._best_weights)
        super().on_train_end(logs)

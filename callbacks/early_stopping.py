"""A callback that ends training when the agent is good enough, or no longer improves."""

from __future__ import annotations

from typing import Any

import numpy as np

from noterl.callback import Callback
from noterl.types import Logs
from noterl.utils.checks import check_number, check_positive

from .support.monitor import Monitor


class EarlyStopping(Callback):
    """End training when a moving mean reaches a criterion, or has not improved for a number of episodes.

    The mean is that of the last `trial_count` values of `monitor`, one of each finished episode with it. Nothing is
    checked before there are that many; if there never are, a warning says so. The state is kept between `fit` calls
    with the same object, and in saved files.

    Args:
        trial_count: number of values in the mean. By default 10, or 1 for a metric that not every episode logs, such as
            those of `Evaluate`.
        criterion: stop when the mean reaches it; None for never.
        monitor: the metric, a name in an episode's logs.
        patience: stop after this number of values without a better mean; None for never.
        mode: "max" if higher is better, "min" if lower is better.
        restore_best_weights: when training ends for any reason, set the networks to the weights of the best mean of
            all `fit` calls. A checkpoint at the end of training holds these. The optimizers are not changed.

    Raises:
        ValueError: if an argument is not one of the allowed values, or neither `criterion` nor `patience` is given; at
            an episode's end, if its logs do not hold `monitor`.

    Example:
    >>> from noterl.callbacks import EarlyStopping
    >>> import noterl
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> history = agent.fit(callbacks=[EarlyStopping(trial_count=2, criterion=5)], verbose=0)
    >>> len(history), history.stop_reason
    (2, 'reward reached 5')
    """

    stops_training = True

    def __init__(
        self,
        trial_count: int | None = None,
        criterion: float | None = None,
        *,
        monitor: str = "reward",
        patience: int | None = None,
        mode: str = "max",
        restore_best_weights: bool = False,
    ) -> None:
        self._monitor = Monitor(monitor, trial_count, mode, argument="trial_count")
        self.patience: Any = check_positive("patience", patience, none=True)
        if criterion is None and patience is None:
            raise ValueError("criterion or patience must be given, otherwise training never stops")
        if criterion is not None:
            check_number("criterion", criterion)
        self.criterion: float | None = criterion
        self.restore_best_weights: bool = restore_best_weights
        self._best: float | None = None
        self._best_weights: dict[str, np.ndarray] | None = None
        self._waited = 0

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Check the moving mean."""
        if not logs.get("complete", True) or not self._monitor.update(logs, self) or not self._monitor.is_full:
            return
        name, mean = self._monitor.name, self._monitor.mean
        if self.criterion is not None and (mean == self.criterion or self._monitor.is_better(mean, self.criterion)):
            self.agent.stop(f"{name} reached {self.criterion}")
        if self._monitor.is_better(mean, self._best):
            self._best, self._waited = mean, 0
            if self.restore_best_weights:
                self._best_weights = self.agent.get_weights()
            return
        self._waited += 1
        if self.patience is not None and self._waited >= self.patience:
            self._waited = 0
            unit = "values" if self._monitor.is_rare else "episodes"
            self.agent.stop(f"{name} has not improved for {self.patience} {unit}")

    def on_train_end(self, logs: Logs) -> None:
        """Restore the best weights if `restore_best_weights` is set."""
        if self.restore_best_weights and self._best_weights is not None:
            self.agent.set_weights(self._best_weights)
        self._monitor.end(self)

    def get_state(self) -> dict[str, Any]:
        """Return the recent values, the best mean, the number of episodes since then, and the best weights if kept."""
        state: dict[str, Any] = {**self._monitor.get_state(), "best": self._best, "waited": self._waited}
        if self._best_weights is not None:
            state["best_weights"] = dict(self._best_weights)
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._monitor.set_state(state)
        self._best, self._waited = state["best"], state["waited"]
        self._best_weights = state.get("best_weights")

"""Stopping when training is good enough, or gets no better."""

from __future__ import annotations

from typing import Any

import numpy as np

from noterl.callback import Callback
from noterl.types import Logs
from noterl.utils.checks import check_number, check_positive

from .monitor import Monitor


class EarlyStopping(Callback):
    """Stop when a moving mean reaches a criterion, or has not improved for a while.

    Both look at the mean of `monitor` over the last `trial_count` finished episodes, once there are so many. What it
    remembers outlives a `fit` and a save: the next `fit` with the same object goes on where it was.

    Args:
        trial_count: number of episodes in the mean.
        criterion: stop when the mean reaches it; None for never.
        monitor: the quantity in an episode's logs.
        patience: stop when the mean has not been better than its best for so many episodes; None for never.
        mode: "max" if more is better, "min" if less.
        restore_best_weights: end training, whatever ends it, with the networks' weights of the best mean. Checkpoints
            of the end then hold these. The best of all `fit`s counts; the optimizers are left as they are.

    Raises:
        ValueError: if an argument is not what it may be, or neither `criterion` nor `patience` is given; at an
            episode's end if its logs have no `monitor`.

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
        trial_count: int,
        criterion: float | None = None,
        *,
        monitor: str = "reward",
        patience: int | None = None,
        mode: str = "max",
        restore_best_weights: bool = False,
    ) -> None:
        self._monitor = Monitor(monitor, trial_count, mode, window_name="trial_count")
        self.patience = check_positive("patience", patience, none=True)
        if criterion is None and patience is None:
            raise ValueError("criterion or patience must be given, or training would never stop")
        if criterion is not None:
            check_number("criterion", criterion)
        self.criterion, self.restore_best_weights = criterion, restore_best_weights
        self._best: float | None = None
        self._best_weights: dict[str, np.ndarray] | None = None
        self._waited = 0

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Look at the moving mean, and stop if it is time."""
        if not logs.get("complete", True) or not self._monitor.hear(logs, self.agent) or not self._monitor.full:
            return
        name, mean = self._monitor.name, self._monitor.mean
        if self.criterion is not None and (mean == self.criterion or self._monitor.better(mean, self.criterion)):
            self.agent.stop(f"{name} reached {self.criterion}")
        if self._monitor.better(mean, self._best):
            self._best, self._waited = mean, 0
            if self.restore_best_weights:
                self._best_weights = _weights(self.agent)
            return
        self._waited += 1
        if self.patience is not None and self._waited >= self.patience:
            self._waited = 0
            self.agent.stop(f"{name} has not improved for {self.patience} episodes")

    def on_train_end(self, logs: Logs) -> None:
        """Bring the best weights back, if that was asked for."""
        if self.restore_best_weights and self._best_weights is not None:
            from noterl.training import state as agent_state

            agent_state.set_weights(self.agent, self._best_weights)

    def get_state(self) -> dict[str, Any]:
        """Return the recent values, the best mean, how long ago it was, and its weights if they are kept."""
        state: dict[str, Any] = {"recent": list(self._monitor.recent), "best": self._best, "waited": self._waited}
        if self._best_weights is not None:
            state["best_weights"] = dict(self._best_weights)
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned."""
        self._monitor.set_recent(state["recent"])
        self._best, self._waited = state["best"], state["waited"]
        self._best_weights = state.get("best_weights")


def _weights(agent: Any) -> dict[str, np.ndarray]:
    from noterl.training import state as agent_state

    return agent_state.weights(agent)

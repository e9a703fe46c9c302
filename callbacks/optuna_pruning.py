"""Telling an Optuna trial how training goes, and ending it where the study has seen enough."""

from __future__ import annotations

from typing import Any

from noterl.callback import Callback
from noterl.types import Logs
from noterl.utils.optional import require

from .cadence import Cadence
from .monitor import Monitor


class OptunaPruning(Callback):
    """Report a mean to an Optuna trial every so often; where the study prunes the trial, end training.

    The trial hears of the multiple of `every` that was reached or passed, so that trials are compared at the same
    points. When it is pruned, training ends as by `Agent.stop`, every callback hears that, and then `fit` raises
    `optuna.TrialPruned`, which the study expects.

    Args:
        trial: what Optuna hands to the objective.
        monitor: the quantity in an episode's logs.
        window: finished episodes in the mean, fewer at the start.
        every: how often it is reported, at the end of the first episode that reaches or passes a multiple.
        unit: of `every`: "episodes", "steps" or "updates".

    Raises:
        ValueError: if an argument is not what it may be; at an episode's end if its logs have no `monitor`.
        ImportError: without the extra `tune`.
        optuna.TrialPruned: when training has ended, if the trial was pruned.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import OptunaPruning
    >>> def objective(trial):
    ...     agent = noterl.DQN("CartPole-v1", gamma=trial.suggest_float("gamma", 0.9, 0.999), seed=1)
    ...     agent.fit(episodes=200, callbacks=[OptunaPruning(trial)], verbose=0)
    ...     return agent.evaluate()["reward_mean"]
    >>> # optuna.create_study(direction="maximize").optimize(objective, n_trials=20)
    """

    def __init__(
        self, trial: Any, *, monitor: str = "reward", window: int = 10, every: int = 10, unit: str = "episodes"
    ) -> None:
        if not callable(getattr(trial, "report", None)) or not callable(getattr(trial, "should_prune", None)):
            raise ValueError(f"trial must be an optuna.Trial, got {trial!r}")
        self._optuna = require("optuna", "tune", "OptunaPruning")
        if unit == "seconds":
            raise ValueError("unit must be 'episodes', 'steps' or 'updates', got 'seconds'")
        self.trial, self._cadence, self._monitor = trial, Cadence("every", every, unit), Monitor(monitor, window)
        self._pruned = False

    def on_train_begin(self, logs: Logs) -> None:
        """Count from here."""
        self._pruned = False
        self._cadence.go_on(self.agent)

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Report if it is time, and stop if the study says so."""
        if not logs.get("complete", True):
            return
        self._monitor.hear(logs, self.agent)
        if not self._cadence.due(self.agent) or not self._monitor.recent:
            return
        count = getattr(self.agent, self._cadence.unit)
        point = int(count // self._cadence.every * self._cadence.every)
        self.trial.report(self._monitor.mean, point)
        if self.trial.should_prune():
            self._pruned = True
            self.agent.stop(f"the trial was pruned at {point} {self._cadence.unit}")

    def on_train_end(self, logs: Logs) -> None:
        """Tell the study that the trial was pruned."""
        if self._pruned:
            raise self._optuna.TrialPruned(self.agent.stop_reason)

    def get_state(self) -> dict[str, Any]:
        """Return the recent values, and since when it counts."""
        return {"recent": list(self._monitor.recent), "mark": self._cadence.saved_mark}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned."""
        self._monitor.set_recent(state["recent"])
        self._cadence.mark = state["mark"]

"""A callback that reports to an Optuna trial, and ends training if the trial is pruned."""

from __future__ import annotations

from typing import Any

from noterl.callback import Every
from noterl.types import Logs
from noterl.utils.checks import check_word
from noterl.utils.optional import require

from .support.monitor import Monitor
from .support.stateful import MonitoringCallback


class OptunaPruning(MonitoringCallback):
    """Report the mean of a metric to an Optuna trial at a fixed frequency, and end training if the trial is pruned.

    The reported step is the last multiple of `every` that was reached, so trials are compared at the same steps. A
    metric that not every episode logs is reported at the next episode that logs the metric. If the study prunes the
    trial, the callback calls `Agent.stop`. After training, `fit` raises `optuna.TrialPruned`, which the study handles.

    Args:
        trial: the `optuna.Trial` that the objective receives.
        monitor: name of a metric in an episode's logs.
        window: number of values in the mean, one of each finished episode that logs the metric; there are fewer at the
            start. By default 10, or 1 for a metric that not every episode logs, such as `evaluation_reward_mean`.
        every: number of `unit` between reports. A report is made at the end of the first episode that reaches a
            multiple.
        unit: "episodes", "steps" or "updates".

    Raises:
        ValueError: if an argument is not one of the allowed values; at an episode's end, if the logs do not hold
            `monitor`.
        ImportError: if the extra `tune` is not installed.
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
        self, trial: Any, *, monitor: str = "reward", window: int | None = None, every: int = 10, unit: str = "episodes"
    ) -> None:
        if not callable(getattr(trial, "report", None)) or not callable(getattr(trial, "should_prune", None)):
            raise ValueError(f"trial must be an optuna.Trial, got {trial!r}")
        self._optuna = require("optuna", "tune", "OptunaPruning")
        check_word("unit", unit, ("episodes", "steps", "updates"))
        self.trial: Any = trial
        self._monitor = Monitor(monitor, window)
        self.every: Every = Every(every, unit, at="episode", name="every")
        self._pruned = False

    def on_train_begin(self, logs: Logs) -> None:
        """Reset the pruned state of an earlier fit."""
        self._pruned = False

    def on_due(self, logs: Logs) -> bool:
        """Report the mean, and end training if the study prunes the trial; return False if there is no new mean."""
        if not self._monitor.recent or not self._monitor.is_current(self.agent.log_step):
            return False
        # A pruner compares trials at equal steps, and an episode rarely ends at a multiple of `every`.
        step = int(self.every.now(self.agent) // self.every.count * self.every.count)
        self.trial.report(self._monitor.mean, step)
        self._monitor.has_compared = True
        if self.trial.should_prune():
            self._pruned = True
            self.agent.stop(f"the trial was pruned at {step} {self.every.unit}")
        return True

    def on_train_end(self, logs: Logs) -> None:
        """Raise `optuna.TrialPruned` if the trial was pruned."""
        super().on_train_end(logs)
        # Raised after training, not at the report, so that the other callbacks end and write their files.
        if self._pruned:
            raise self._optuna.TrialPruned(self.agent.stop_reason)

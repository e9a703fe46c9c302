"""The base class of loggers that write to a run of an experiment tracker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noterl.callback import LOGGER
from noterl.types import Logs
from noterl.utils.optional import require
from noterl.utils.tables import plain_row

from .stateful import StatefulCallback


class RunLogger(StatefulCallback):
    """Base of the loggers whose tracker has one row for each step of a run.

    Args:
        tracker: the name of the tracker's package, and of the extra.
        project: name of the project.
        name: name of the run; None if the tracker chooses one.
        config: further entries of the run's configuration, in addition to the agent's `configuration`.
    """

    order = LOGGER
    takes_epochs = True

    def __init__(self, tracker: str, project: str, name: str | None, config: Mapping[str, Any] | None) -> None:
        self._tracker = require(tracker, tracker, type(self).__name__)
        self.project: str = project
        self.name: str | None = name
        self.config: dict[str, Any] = dict(config or {})
        self.run: Any = None
        self._step = 0  # of the last row

    @property
    def state_key(self) -> str:
        """The class and the project's name."""
        return f"{type(self).__name__}:{self.project}"

    def _begin(self, **options: Any) -> None:
        """Begin or continue a run, with the configuration of the agent."""
        config = {**self.agent.configuration, **self.config}
        self.run = self._tracker.init(project=self.project, name=self.name, config=config, **options)

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Log a complete episode."""
        if self.run is not None and logs.get("complete", True):
            # The steps at the end of the episode, plus the updates that `log_step` counts too. Several episodes may end
            # in one environment step, and each row needs a step of its own.
            self._step = max(logs["steps"] + self.agent.log_step - self.agent.steps, self._step + 1)
            self._write({"episode": episode, **plain_row(logs)})

    def _write(self, row: dict[str, Any]) -> None:
        """Write a row, whose step is `_step`."""
        self.run.log(row, step=self._step)

    def on_train_end(self, logs: Logs) -> None:
        """Write the rows that wait, and close the run."""
        if self.run is not None:
            self._finish()
            self.run = None

    def _finish(self) -> None:
        self.run.finish()

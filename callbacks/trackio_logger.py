"""A callback that logs episodes to Trackio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noterl.callback import LOGGER, Callback
from noterl.types import Logs
from noterl.utils.optional import require
from noterl.utils.tables import plain_row


class TrackioLogger(Callback):
    """Log the metrics of each finished episode to a run of Trackio; the step is the number of environment steps.

    Trackio writes a local database in the folder of the environment variable `TRACKIO_DIR`, by default in the home
    folder, and needs no account. `trackio show` opens the charts. If several episodes end in one environment step, the
    later ones get the next steps of the run; the column `steps` is exact. The column `time` is called `seconds`. A
    restored agent continues the same run; episodes that are played again are not logged twice.

    Args:
        project: name of the project.
        name: name of the run; by default Trackio chooses one.
        config: further entries of the run's configuration, in addition to the agent's `configuration`.

    Raises:
        ImportError: if the extra `trackio` is not installed.
    """

    order = LOGGER

    def __init__(
        self, project: str = "noterl", name: str | None = None, *, config: Mapping[str, Any] | None = None
    ) -> None:
        self._trackio = require("trackio", "trackio", "TrackioLogger")
        self.project: str = project
        self.name: str | None = name
        self.config: dict[str, Any] = dict(config or {})
        self.run: Any = None
        self._resumes = False
        self._step = 0  # of the last row
        self._last_stored = 0  # the step up to which the run has the rows already

    @property
    def state_key(self) -> str:
        """The class and the project's name."""
        return f"{type(self).__name__}:{self.project}"

    def on_train_begin(self, logs: Logs) -> None:
        """Open the run, or continue an earlier run."""
        self.run = self._trackio.init(
            project=self.project,
            name=self.name,
            config={**self.agent.configuration, **self.config},
            resume="allow" if self._resumes else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self.name = self.run.name
        self._resumes = True
        # Trackio has no public function for the last step of a run, and would store a row twice.
        self._last_stored = getattr(self.run, "_initial_last_step", None) or 0

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Log a complete episode."""
        if self.run is None or not logs.get("complete", True):
            return
        # Several episodes may end in one environment step, and each row needs a step of its own.
        self._step = max(logs["steps"], self._step + 1)
        if self._step > self._last_stored:
            row = plain_row(logs)
            row.pop("complete", None)
            if "time" in row:  # a name that Trackio reserves
                row["seconds"] = row.pop("time")
            self.run.log({"episode": episode, **row}, step=self._step)

    def on_train_end(self, logs: Logs) -> None:
        """Write the rows that wait, and close the run."""
        if self.run is not None:
            self.run.finish()
            self.run = None

    def get_state(self) -> dict[str, Any]:
        """Return the name of the run, and the step of the last row."""
        return {"name": self.name, "resumes": self._resumes, "step": self._step}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.name = state["name"]
        self._resumes = state["resumes"]
        self._step = state["step"]

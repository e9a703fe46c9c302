"""A callback that logs episodes to Trackio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noterl.types import Logs

from .support.run_logger import RunLogger


class TrackioLogger(RunLogger):
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

    saved = ("name", "_resumes", "_step")

    def __init__(
        self, project: str = "noterl", name: str | None = None, *, config: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__("trackio", project, name, config)
        self._resumes = False
        self._last_stored = 0  # the step up to which the run has the rows already

    def on_train_begin(self, logs: Logs) -> None:
        """Open the run, or continue an earlier run."""
        resume = "allow" if self._resumes else "never"
        self._begin(resume=resume, embed=False, auto_log_gpu=False, auto_log_cpu=False)
        self.name = self.run.name
        self._resumes = True
        # Trackio has no public function for the last step of a run, and would store a row twice.
        self._last_stored = getattr(self.run, "_initial_last_step", None) or 0

    def _write(self, row: dict[str, Any]) -> None:
        if self._step > self._last_stored:
            if "time" in row:  # a name that Trackio reserves
                row["seconds"] = row.pop("time")
            super()._write(row)

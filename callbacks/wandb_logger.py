"""A callback that logs episodes to Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noterl.types import Logs

from .support.run_logger import RunLogger


class WandbLogger(RunLogger):
    """Log the metrics of each finished episode to a Weights & Biases run, whose charts are over environment steps.

    wandb has one row for each step of a run. If several episodes end in one environment step, the later ones get the
    next steps of the run; the column `steps` is exact, and the charts use this column. A restored agent continues the
    same run; episodes that are played again are not logged twice. wandb writes each episode to the disk immediately and
    uploads in the background.

    Args:
        project: name of the project.
        name: name of the run; by default wandb chooses one.
        config: further entries of the run's configuration, in addition to the agent's `configuration`.
        mode: "online", "offline" or "disabled", as in `wandb.init`; None for wandb's own setting, such as `WANDB_MODE`.
        folder: folder of wandb's files; None for wandb's default.

    Raises:
        ImportError: if the extra `wandb` is not installed.

    Example:
    >>> from noterl.callbacks import WandbLogger
    >>> def offline():
    ...     return WandbLogger("cartpole", mode="offline")
    """

    saved = ("_id", "_step")

    def __init__(
        self,
        project: str = "noterl",
        name: str | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        mode: str | None = None,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__("wandb", project, name, config)
        self.mode: str | None = mode
        self.folder: str | Path | None = folder
        self._id: str | None = None
        self._failed = False

    def on_train_begin(self, logs: Logs) -> None:
        """Open the run, or continue an earlier run."""
        self._failed = False
        self._open()

    def _open(self) -> None:
        folder = None if self.folder is None else str(self.folder)
        self._begin(mode=self.mode, dir=folder, id=self._id, resume="allow")
        self._id = self._id or self.run.id  # a disabled run of older versions has another id each time
        is_of_data = self.agent.history is not None and self.agent.history.unit == "epoch"
        self.run.define_metric("*", step_metric="updates" if is_of_data else "steps")

    def _write(self, row: dict[str, Any]) -> None:
        if not Path(self.run.dir).exists():  # it was removed, and wandb would write the removed files
            self.run.finish(exit_code=0)
            self._open()
        super()._write(row)

    def on_exception(self, error: BaseException) -> None:
        """Mark the run as failed."""
        self._failed = True

    def _finish(self) -> None:
        self.run.finish(exit_code=int(self._failed))

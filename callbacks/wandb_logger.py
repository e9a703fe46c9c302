"""A callback that logs episodes to Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noterl.callback import LOGGER, Callback
from noterl.types import Logs
from noterl.utils.optional import require
from noterl.utils.tables import plain_row


class WandbLogger(Callback):
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

    order = LOGGER

    def __init__(
        self,
        project: str = "noterl",
        name: str | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        mode: str | None = None,
        folder: str | Path | None = None,
    ) -> None:
        self._wandb = require("wandb", "wandb", "WandbLogger")
        self.project: str = project
        self.name: str | None = name
        self.mode: str | None = mode
        self.folder: str | Path | None = folder
        self.config: dict[str, Any] = dict(config or {})
        self.run: Any = None
        self._id: str | None = None
        self._step = 0  # the run's step of the last row
        self._failed = False

    @property
    def state_key(self) -> str:
        """The class and the project's name."""
        return f"{type(self).__name__}:{self.project}"

    def on_train_begin(self, logs: Logs) -> None:
        """Open the run, or continue an earlier run."""
        self._failed = False
        self._open()

    def _open(self) -> None:
        self.run = self._wandb.init(
            project=self.project,
            name=self.name,
            config={**self.agent.configuration, **self.config},
            mode=self.mode,
            dir=self.folder,
            id=self._id,
            resume="allow",
        )
        self._id = self.run.id
        self.run.define_metric("*", step_metric="steps")

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Log a complete episode."""
        if self.run is not None and logs.get("complete", True):
            if not Path(self.run.dir).exists():  # it was removed, and wandb would write the removed files
                self.run.finish(exit_code=0)
                self._open()
            row = plain_row(logs)
            row.pop("complete", None)
            # A run of wandb has one row per step.
            self._step = max(logs["steps"], self._step + 1)
            self.run.log({"episode": episode, **row}, step=self._step)

    def on_exception(self, error: BaseException) -> None:
        """Mark the run as failed."""
        self._failed = True

    def on_train_end(self, logs: Logs) -> None:
        """Close the run."""
        if self.run is not None:
            self.run.finish(exit_code=int(self._failed))
            self.run = None

    def get_state(self) -> dict[str, Any]:
        """Return the id of the run, and the step."""
        return {"id": self._id, "step": self._step}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._id = state["id"]
        self._step = state["step"]

"""Charts in Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noterl.callback import LOGGER, Callback
from noterl.types import Logs
from noterl.utils.optional import require
from noterl.utils.tables import agent_row, plain_row


class WandbLogger(Callback):
    """Log the numbers of each finished episode to a run of Weights & Biases, against environment steps.

    A restored agent goes on in the same run, in which steps that are played again are not logged twice. What was
    logged lies on the disk at once and is sent in the background.

    Args:
        project: of the run.
        name: of the run; one of wandb's if not given.
        config: further entries of the run's configuration, beside the agent's arguments.
        mode: "online", "offline" or "disabled", as wandb has it; None for what its environment variable says.
        folder: where wandb keeps its files.

    Raises:
        ImportError: without the extra `wandb`.

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
        self.project, self.name, self.mode, self.folder = project, name, mode, folder
        self.config = dict(config or {})
        self.run: Any = None
        self._id: str | None = None
        self._failed = False

    @property
    def state_key(self) -> str:
        """The class and the project's name."""
        return f"{type(self).__name__}:{self.project}"

    def on_train_begin(self, logs: Logs) -> None:
        """Open the run, or go on with it."""
        self._failed = False
        self.run = self._wandb.init(
            project=self.project,
            name=self.name,
            config={**agent_row(self.agent), **self.config},
            mode=self.mode,
            dir=self.folder,
            id=self._id,
            resume="allow",
        )
        self._id = self.run.id

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Log the episode; one that the end of training cut short is passed over."""
        if self.run is not None and logs.get("complete", True):
            row = plain_row(logs)
            row.pop("complete", None)
            self.run.log({"episode": episode, **row}, step=logs["steps"])

    def on_exception(self, error: BaseException) -> None:
        """Note that training failed."""
        self._failed = True

    def on_train_end(self, logs: Logs) -> None:
        """Close the run."""
        if self.run is not None:
            self.run.finish(exit_code=int(self._failed))
            self.run = None

    def get_state(self) -> dict[str, Any]:
        """Return which run it is."""
        return {"id": self._id}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned."""
        self._id = state["id"]

"""The base of loggers that write one row per episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from noterl import saving
from noterl.callback import LOGGER, Callback
from noterl.history import COLUMNS
from noterl.types import Logs
from noterl.utils.checks import check_positive
from noterl.utils.tables import Row, plain_row


class RowLogger(Callback):
    """Base of the loggers that write a table: a row for each finished episode, a column for each metric.

    If a run continues, in a second `fit` or after a restore, the rows up to its step are kept. Later rows are removed,
    because their episodes are played again. Rows that were saved with the agent but not yet written are restored. No
    row is therefore duplicated. A new run replaces the file. `time` continues to count. A subclass defines how
    rows are read and written.

    Args:
        path: path of the file.
        flush_every: number of finished episodes between writes; a crash loses the episodes since the last write.

    Raises:
        ValueError: if `flush_every` is not a positive int; when training begins, if the file is not a log of this kind.
        OSError: when training begins, if the file cannot be written.
    """

    order = LOGGER

    def __init__(self, path: str | Path, flush_every: int = 10) -> None:
        self.path = Path(path)
        self.flush_every = check_positive("flush_every", flush_every)
        self._pending: list[Row] = []
        self._seconds = 0.0  # training time of earlier fits

    @property
    def state_key(self) -> str:
        """The class and the file's name."""
        return f"{type(self).__name__}:{self.path.name}"

    def read(self) -> list[Row]:
        """Return the rows of the file."""
        raise NotImplementedError

    def rewrite(self, rows: list[Row]) -> None:
        """Replace the file by one with these rows."""
        raise NotImplementedError

    def append(self, rows: list[Row]) -> None:
        """Append rows."""
        raise NotImplementedError

    def complete_row(self, row: Row) -> Row:
        """Return the row with the columns that a subclass adds."""
        return row

    def on_train_begin(self, logs: Logs) -> None:
        """Keep the rows up to the step at which training continues."""
        saving.check_writable(self.path)
        kept = [row for row in self._written_rows() if row["steps"] <= self.agent.steps]
        known = {row["episode"] for row in kept}
        kept += [row for row in self._pending if row["episode"] not in known]
        self._seconds = float(kept[-1]["time"]) if kept else 0.0
        self._pending = []
        self.rewrite(kept)

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Add a row for a complete episode."""
        if not logs.get("complete", True):
            return
        row = {"episode": episode, **dict.fromkeys(COLUMNS), **plain_row(logs)}
        row.pop("complete", None)
        row["time"] += self._seconds
        self._pending.append(self.complete_row(row))
        if len(self._pending) >= self.flush_every:
            self._flush()

    def on_train_end(self, logs: Logs) -> None:
        """Write the remaining rows."""
        self._flush()

    def get_state(self) -> dict[str, Any]:
        """Return the rows that are not yet written."""
        return {"pending": [dict(row) for row in self._pending]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._pending = [dict(row) for row in state["pending"]]

    def _flush(self) -> None:
        if self._pending:
            self.append(self._pending)
            self._pending = []

    def _written_rows(self) -> list[Row]:
        if not self.path.exists() or (self.path.is_file() and not self.path.stat().st_size):
            return []
        try:
            rows = self.read()
            if not all(isinstance(row["steps"], int) and row["episode"] >= 0 for row in rows):
                raise ValueError("its steps are not ints")
        except (KeyError, OSError, TypeError, ValueError) as error:
            name = type(self).__name__
            raise ValueError(f"path: {self.path} exists and is not a log of {name}: {error!r}") from error
        return rows

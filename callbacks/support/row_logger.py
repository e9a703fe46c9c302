"""What loggers of one row per episode share: when rows are written, and which stay when a run goes on."""

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
    """Base of the loggers that write a table: a row for each finished episode, a column for each quantity.

    A run that goes on, in a second `fit` or restored, keeps the rows up to the step at which it goes on and drops later
    ones, which a crash left and which it is about to play again; rows that a crash lost, but which were noted when the
    agent was saved, come back. So no row is there twice, and a run that begins anew replaces the file. `time` goes on
    counting. A subclass says how rows are read and written.

    Args:
        path: the file.
        flush_every: finished episodes between writes; a crash loses those since the last.

    Raises:
        ValueError: if `flush_every` is no positive int; as training begins, if the file holds something else.
        OSError: as training begins, if the file cannot be written.
    """

    order = LOGGER

    def __init__(self, path: str | Path, flush_every: int) -> None:
        self.path = Path(path)
        self.flush_every = check_positive("flush_every", flush_every)
        self._pending: list[Row] = []
        self._seconds = 0.0  # of the fits before this one

    @property
    def state_key(self) -> str:
        """The class and the file's name."""
        return f"{type(self).__name__}:{self.path.name}"

    def read(self) -> list[Row]:
        """Return the rows that the file holds."""
        raise NotImplementedError

    def rewrite(self, rows: list[Row]) -> None:
        """Write a file of these rows in the place of the old one."""
        raise NotImplementedError

    def append(self, rows: list[Row]) -> None:
        """Write further rows."""
        raise NotImplementedError

    def complete_row(self, row: Row) -> Row:
        """Return the row with what a subclass adds to it."""
        return row

    def on_train_begin(self, logs: Logs) -> None:
        """Keep the rows that were written before the step at which training goes on."""
        saving.check_writable(self.path)
        kept = [row for row in self._known() if row["steps"] <= self.agent.steps]
        known = {row["episode"] for row in kept}
        kept += [row for row in self._pending if row["episode"] not in known]
        self._seconds = float(kept[-1]["time"]) if kept else 0.0
        self._pending = []
        self.rewrite(kept)

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Note the episode; one that the end of training cut short is passed over."""
        if not logs.get("complete", True):
            return
        row = {"episode": episode, **dict.fromkeys(COLUMNS), **plain_row(logs)}
        row.pop("complete", None)
        row["time"] += self._seconds
        self._pending.append(self.complete_row(row))
        if len(self._pending) >= self.flush_every:
            self._flush()

    def on_train_end(self, logs: Logs) -> None:
        """Write what is not written yet."""
        self._flush()

    def get_state(self) -> dict[str, Any]:
        """Return the rows that are not written yet."""
        return {"pending": [dict(row) for row in self._pending]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned."""
        self._pending = [dict(row) for row in state["pending"]]

    def _flush(self) -> None:
        if self._pending:
            self.append(self._pending)
            self._pending = []

    def _known(self) -> list[Row]:
        if not self.path.exists() or (self.path.is_file() and not self.path.stat().st_size):
            return []
        try:
            rows = self.read()
            if all(isinstance(row["steps"], int) and row["episode"] >= 0 for row in rows):
                return rows
        except (KeyError, OSError, TypeError, ValueError) as error:
            raise ValueError(f"path: {self.path} exists, and is no log of {type(self).__name__}: {error!r}") from error
        raise ValueError(f"path: {self.path} exists, and is no log of {type(self).__name__}: its steps are no numbers")

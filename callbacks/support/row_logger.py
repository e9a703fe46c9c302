"""The base class of loggers that write one row per episode."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from noterl import saving
from noterl.callback import LOGGER, Callback
from noterl.history import COLUMNS, check_logs
from noterl.types import Logs
from noterl.utils.checks import check_bool, check_positive
from noterl.utils.files import user_path
from noterl.utils.tables import Row, is_complete_text, plain_row

from .claim import Claim


class RowLogger(Callback):
    """Base of the loggers that write a table: a row for each finished episode, a column for each metric.

    If a run continues, in a second `fit` or after a restore, the rows up to that point are kept. Later rows are
    removed, because these episodes are logged again. Rows that were saved with the agent but not yet written are
    restored. Therefore, no row is duplicated. `time` continues to count.

    If the file holds rows of another run after the current step, the file is renamed first: `log.csv` becomes
    `log.csv.1`. The file is also renamed if a restored run does not find the run's last rows there. With `append`,
    these rows are kept instead, and `episode`, `steps` and `updates` of new rows continue the counts of the file.

    If the file is moved or removed during training, the next rows begin a new one.

    A subclass defines `read`, `rewrite` and `append_rows`.

    Args:
        path: path of the file.
        flush_every: number of finished episodes between writes; a crash loses the episodes since the last write.
        append: continue the log of another run, such as the one whose weights were loaded.

    Raises:
        ValueError: if an argument is not one of the allowed values; when training begins, if the file is not a log of
            this kind; at an episode's end, if a callback has replaced a logged number by another value.
        OSError: when training begins, if the file cannot be written.
    """

    order = LOGGER
    takes_epochs = True
    numbers: tuple[str, ...] = ("reward", "time")  # columns with a number in each row, except `reward` of an epoch

    def __init__(self, path: str | Path, flush_every: int = 10, *, append: bool = False) -> None:
        self.path: Path = user_path(path)
        self.flush_every: int = check_positive("flush_every", flush_every)
        self.append: bool = check_bool("append", append)
        self._claim = Claim(self.path)
        self._pending: list[Row] = []
        self._offset = {"episode": 0, "steps": 0, "updates": 0}  # counts of the run that the log continues
        self._restored = False  # whether `set_state` was called since the last `fit`
        self._num_rows = 0  # the number of rows of the log, with those that are pending
        self._last: list[float] | None = None  # the values of the last written row that tell it from other rows
        self._seconds = 0.0  # training time of earlier fits

    @property
    def state_key(self) -> str:
        """The class and the file's name."""
        return f"{type(self).__name__}:{self.path.name}"

    def read(self) -> list[Row]:
        """Return the rows of the file."""
        raise NotImplementedError

    def rewrite(self, rows: list[Row]) -> None:
        """Replace the contents of the file with these rows."""
        raise NotImplementedError

    def append_rows(self, rows: list[Row]) -> None:
        """Append rows to a file that is not empty."""
        raise NotImplementedError

    def write(self, rows: list[Row]) -> None:
        """Append rows, or begin the file with them if it was removed or is empty."""
        if self.is_empty:
            self._num_rows = len(rows)
            self.rewrite(rows)
        else:
            self.append_rows(rows)

    @property
    def is_empty(self) -> bool:
        """Whether the file is missing or empty."""
        return not self.path.exists() or (self.path.is_file() and not self.path.stat().st_size)

    def complete_row(self, row: Row) -> Row:
        """Return the row with the columns that a subclass adds."""
        return row

    def on_train_begin(self, logs: Logs) -> None:
        """Keep the rows of the run before the point at which training continues, and remove or rename the others."""
        saving.check_writable(self.path)
        self._claim.take()
        written = stored = self._written_rows()
        if self._restored and self._is_own(written):
            written = written[: self._num_rows]  # episodes of the same step may have ended after the state was saved
        elif self._restored:
            # If a run was saved before its first row, rows in the file may be those that it wrote after the save.
            append = self.append and (self._num_rows > 0 or not self.agent.log_step)
            self._keep_other_run(written, append)
            written = stored = written if append else []
        elif any(map(self._is_later, written)):
            self._keep_other_run(written, self.append)
            written = stored = written if self.append else []
        self._restored = False
        kept = [row for row in written if not self._is_later(row)]
        kept_identities = {tuple(_identity(row)) for row in kept}  # epochs and episodes may have the same number
        added = [row for row in self._pending if tuple(_identity(row)) not in kept_identities]
        # A long log is not written again for each fit.
        is_whole = len(kept) == len(stored) > 0 and not added and is_complete_text(self.path)
        kept += added
        self._seconds = float(kept[-1]["time"]) if kept else 0.0
        self._pending = []
        self._num_rows = len(kept)
        if not is_whole:
            self.rewrite(kept)
        self._last = _identity(kept[-1]) if kept else None

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Add a row for a complete episode."""
        if not logs.get("complete", True):
            return
        row = {"episode": episode, **dict.fromkeys(COLUMNS), **plain_row(logs)}
        check_logs(episode, logs)
        row["time"] += self._seconds
        for name, count in self._offset.items():
            row[name] += count
        self._pending.append(self.complete_row(row))
        self._num_rows += 1
        if len(self._pending) >= self.flush_every:
            self._flush()

    def on_train_end(self, logs: Logs) -> None:
        """Write the remaining rows."""
        try:
            self._flush()
        finally:
            self._claim.release()

    def get_state(self) -> dict[str, Any]:
        """Return the rows that are not yet written, the number of all rows, the last written one, and the counts."""
        pending = [json.dumps(row) for row in self._pending]  # a list of strings is stored as one array
        return {"pending": pending, "rows": self._num_rows, "last": self._last, "offset": dict(self._offset)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._pending = [dict(json.loads(row)) for row in state["pending"]]
        self._num_rows = int(state["rows"])
        self._offset = {name: state["offset"][name] for name in self._offset}
        self._last = state["last"]
        self._restored = True

    def _is_later(self, row: Row) -> bool:
        """Return whether a row follows the steps and updates of the agent."""
        counts = {"steps": self.agent.steps, "updates": self.agent.updates}
        return any((row.get(name) or 0) > count + self._offset[name] for name, count in counts.items())

    def _is_own(self, written: list[Row]) -> bool:
        """Return whether rows of the file belong to the restored run, as far as that run has written rows."""
        if not (self._num_rows and written):
            return not written
        identities = [[] if self._last is None else self._last, *map(_identity, self._pending)]
        first = self._num_rows - len(self._pending) - 1  # the place of the last written row
        return first < len(written) and all(
            _identity(written[place]) == values
            for place, values in enumerate(identities, first)
            if 0 <= place < len(written)
        )

    def _keep_other_run(self, rows: list[Row], append: bool) -> None:
        """With `append`, continue the counts of another run's rows; otherwise rename the file of that run."""
        agent = self.agent
        if append:
            # The offset is a difference, because a restored agent does not count from 0.
            now = {"episode": agent.episodes - 1, "steps": agent.steps, "updates": agent.updates}
            self._offset = {name: max(row.get(name) or 0 for row in rows) - count for name, count in now.items()}
            return
        number = 1
        while (backup := self.path.with_name(f"{self.path.name}.{number}")).exists():
            number += 1
        os.replace(self.path, backup)
        agent.show_message(f"{self.path} holds the log of another run: renamed to {backup}")

    def _flush(self) -> None:
        if self._pending:
            self.write(self._pending)
            self._last = _identity(self._pending[-1])
            self._pending = []

    def _written_rows(self) -> list[Row]:
        """Return the rows of the file; raise a ValueError if the file is not a log of this kind."""
        if self.is_empty:
            return []
        numbers = ("episode", *self.numbers)
        try:
            rows = self.read()
            for row in rows:
                # An epoch has no reward.
                values = [0.0 if row[name] is None and "reward" in name else row[name] for name in numbers]
                counts = [row["steps"], row.get("updates") or 0]
                if not all(isinstance(count, int) for count in counts):
                    raise ValueError("steps and updates must be ints")
                if not all(isinstance(value, int | float) for value in values):
                    raise ValueError(f"{', '.join(numbers)} must be numbers")
        except (KeyError, OSError, TypeError, ValueError) as error:
            name = type(self).__name__
            raise ValueError(f"path: {self.path} exists and is not a log of {name}: {error!r}") from error
        return rows


def _identity(row: Row) -> list[float]:
    return [row["episode"], row["steps"], row["updates"] or 0 if row["reward"] is None else row["reward"]]

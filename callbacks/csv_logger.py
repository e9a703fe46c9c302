"""A callback that logs episodes to a CSV file."""

from __future__ import annotations

import csv
from pathlib import Path

from noterl.utils.files import append_text, write_bytes
from noterl.utils.tables import Row, columns_of, csv_text, read_csv

from .support.row_logger import RowLogger


class CSVLogger(RowLogger):
    """Write a row for each finished episode: the logged metrics, including metrics that callbacks add.

    A metric that appears after the first row gets a new column, which is empty in earlier rows. A resumed run
    appends rows without duplicates. The file of another run is renamed, unless `append` is set. See `RowLogger`.

    Args:
        path: path of the file.
        flush_every: number of finished episodes between writes; a crash loses the episodes since the last write.
        append: continue the log of another run, such as the one whose weights were loaded.

    Raises:
        ValueError: if an argument is not one of the allowed values; when training begins, if the file is not a log of
            this kind.
        OSError: when training begins, if the file cannot be written.

    Example:
    >>> import noterl
    >>> from pathlib import Path
    >>> from noterl.callbacks import CSVLogger
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> history = agent.fit(episodes=3, callbacks=[CSVLogger("log.csv")], verbose=0)
    >>> lines = Path("log.csv").read_text().splitlines()
    >>> lines[0], len(lines)
    ('episode,reward,length,loss,steps,updates,time', 4)
    """

    def __init__(self, path: str | Path, flush_every: int = 10, *, append: bool = False) -> None:
        super().__init__(path, flush_every, append=append)
        self._columns: list[str] = []

    def read(self) -> list[Row]:
        """Return the rows of the file, and keep the columns, because a column that was empty so far is in no row."""
        rows = read_csv(self.path)
        with self.path.open(newline="", encoding="utf-8") as file:
            self._columns = next(csv.reader(file), [])
        return rows

    def rewrite(self, rows: list[Row]) -> None:
        """Replace the contents of the file with these rows."""
        self._columns = columns_of([dict.fromkeys(self._columns), *rows]) if rows else []
        write_bytes(self.path, csv_text(rows, self._columns, header=bool(rows)).encode())

    def append_rows(self, rows: list[Row]) -> None:
        """Append rows; if they have a new column, write the whole file again."""
        if set(columns_of(rows)) <= set(self._columns):
            append_text(self.path, csv_text(rows, self._columns, header=False))
        else:
            self.rewrite([*self.read(), *rows])

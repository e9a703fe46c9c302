"""A table of episodes as comma-separated values."""

from __future__ import annotations

from pathlib import Path

from noterl.utils.files import replacing
from noterl.utils.tables import Row, columns_of, csv_text, read_csv

from .row_logger import RowLogger


class CSVLogger(RowLogger):
    """Write a row for each finished episode: what its logs hold, callbacks' additions included.

    A quantity that comes later than the first row gets a column then, empty for the rows before. A run that goes on
    appends and repeats no row, one that begins anew replaces the file; see `RowLogger`.

    Args:
        path: the file.
        flush_every: finished episodes between writes; a crash loses those since the last.

    Raises:
        ValueError: if `flush_every` is no positive int; as training begins, if the file holds something else.
        OSError: as training begins, if the file cannot be written.

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

    def __init__(self, path: str | Path, flush_every: int = 10) -> None:
        super().__init__(path, flush_every)
        self._columns: list[str] = []

    def read(self) -> list[Row]:
        """Return the rows that the file holds."""
        return read_csv(self.path)

    def rewrite(self, rows: list[Row]) -> None:
        """Write a file of these rows in the place of the old one."""
        self._columns = columns_of(rows)
        with replacing(self.path) as file:
            file.write(csv_text(rows, self._columns, header=bool(rows)).encode())

    def append(self, rows: list[Row]) -> None:
        """Write further rows; the whole file if they bring a new column."""
        if set(columns_of(rows)) <= set(self._columns):
            with self.path.open("a", newline="", encoding="utf-8") as file:
                file.write(csv_text(rows, self._columns, header=False))
        else:
            self.rewrite([*self.read(), *rows] if self._columns else rows)

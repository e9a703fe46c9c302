"""A table of episodes as JSON lines."""

from __future__ import annotations

from pathlib import Path

from noterl.utils.files import replacing
from noterl.utils.tables import Row, json_text, read_json_lines

from .row_logger import RowLogger


class JSONLogger(RowLogger):
    """Write a JSON object on a line of its own for each finished episode: what its logs hold, NaN as null.

    A run that goes on appends and repeats no row, one that begins anew replaces the file; see `RowLogger`.

    Args:
        path: the file.
        flush_every: finished episodes between writes; a crash loses those since the last.

    Raises:
        ValueError: if `flush_every` is no positive int; as training begins, if the file holds something else.
        OSError: as training begins, if the file cannot be written.

    Example:
    >>> import json, noterl
    >>> from pathlib import Path
    >>> from noterl.callbacks import JSONLogger
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> history = agent.fit(episodes=3, callbacks=[JSONLogger("log.jsonl")], verbose=0)
    >>> rows = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()]
    >>> [row["reward"] for row in rows] == history.history["reward"]
    True
    """

    def __init__(self, path: str | Path, flush_every: int = 10) -> None:
        super().__init__(path, flush_every)

    def read(self) -> list[Row]:
        """Return the rows that the file holds."""
        return read_json_lines(self.path)

    def rewrite(self, rows: list[Row]) -> None:
        """Write a file of these rows in the place of the old one."""
        with replacing(self.path) as file:
            file.write(json_text(rows).encode())

    def append(self, rows: list[Row]) -> None:
        """Write further rows."""
        with self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(json_text(rows))

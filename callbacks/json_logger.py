"""A callback that logs episodes to a file of JSON lines."""

from __future__ import annotations

from noterl.utils.files import append_text, write_bytes
from noterl.utils.tables import Row, json_text, read_json_lines

from .support.row_logger import RowLogger


class JSONLogger(RowLogger):
    """Write a JSON object for each finished episode, one per line, with the logged metrics.

    NaN and infinities become null. A resumed run appends rows without duplicates. The file of another run is renamed,
    unless `append` is set. See `RowLogger`.

    Args:
        path: path of the file.
        flush_every: number of finished episodes between writes; a crash loses the episodes since the last write.
        append: continue the log of another run, such as the one whose weights were loaded.

    Raises:
        ValueError: if an argument is not one of the allowed values; when training begins, if the file is not a log of
            this kind.
        OSError: when training begins, if the file cannot be written.

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

    def read(self) -> list[Row]:
        """Return the rows of the file."""
        return read_json_lines(self.path)

    def rewrite(self, rows: list[Row]) -> None:
        """Replace the contents of the file with these rows."""
        write_bytes(self.path, json_text(rows).encode())

    def append_rows(self, rows: list[Row]) -> None:
        """Append rows."""
        append_text(self.path, json_text(rows))

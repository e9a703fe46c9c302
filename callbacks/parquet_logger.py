"""A callback that logs episodes to a Parquet file."""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path

from noterl.utils.checks import check_positive
from noterl.utils.optional import require
from noterl.utils.tables import Row, read_parquet, write_parquet

from .support.row_logger import RowLogger


class ParquetLogger(RowLogger):
    """Write a row for each finished episode into one Parquet file, which can be read at any time.

    The columns are the metrics in the logs, and the five columns that xagents writes:

    - `mean_reward`: the mean over the last `window` episodes, including this one.
    - `best_reward`: the best such mean so far.
    - `episode_reward`, `step`, and `time` in seconds of training over all fits.

    Rows cannot be appended to a Parquet file. Each write therefore replaces the file atomically, and the default of
    `flush_every` is higher than in other loggers. A resumed run writes rows without duplicates. The file of another run
    is renamed, unless `append` is set. See `RowLogger`.

    Args:
        path: path of the file.
        flush_every: number of finished episodes between writes; a crash loses the episodes since the last write.
        window: number of finished episodes in the mean.
        append: continue the log of another run, such as the one whose weights were loaded.

    Raises:
        ValueError: if an argument is not one of the allowed values; when training begins, if the file is not a log of
            this kind.
        OSError: when training begins, if the file cannot be written.
        ImportError: if the extra `parquet` is not installed.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import ParquetLogger
    >>> from noterl.utils.tables import read_columns
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> history = agent.fit(episodes=3, callbacks=[ParquetLogger("log.parquet")], verbose=0)
    >>> read_columns("log.parquet")["episode_reward"] == history.history["reward"]
    True
    """

    def __init__(self, path: str | Path, flush_every: int = 100, *, window: int = 100, append: bool = False) -> None:
        super().__init__(path, flush_every, append=append)
        require("pyarrow.parquet", "parquet", "ParquetLogger")
        self._recent: deque[float] = deque(maxlen=check_positive("window", window))
        self._best = -math.inf
        self._rows: list[Row] = []

    numbers: tuple[str, ...] = ("reward", "time", "episode_reward", "best_reward")

    def read(self) -> list[Row]:
        """Return the rows of the file."""
        return read_parquet(self.path)

    def complete_row(self, row: Row) -> Row:
        """Return the row with the five columns of xagents, and add the reward to the mean and the best mean.

        Called once for each finished episode.
        """
        if row["reward"] is None:  # an epoch has none
            return {**dict.fromkeys(("mean_reward", "best_reward", "episode_reward")), "step": row["steps"], **row}
        self._recent.append(row["reward"])
        mean = math.fsum(self._recent) / len(self._recent)
        self._best = max(self._best, mean)
        return {
            "mean_reward": mean,
            "best_reward": self._best,
            "episode_reward": row["reward"],
            "step": row["steps"],
            "time": row["time"],
            **row,
        }

    def rewrite(self, rows: list[Row]) -> None:
        """Replace the contents of the file with these rows; take the best and the recent rewards from the rows."""
        self._rows = list(rows)
        self._recent.clear()
        # Without this, the means after a restore would start from an empty window.
        self._recent.extend(row["episode_reward"] for row in rows if row["episode_reward"] is not None)
        best = [row["best_reward"] for row in rows if row["best_reward"] is not None]
        self._best = max(best, default=-math.inf)
        write_parquet(self.path, self._rows)

    def write(self, rows: list[Row]) -> None:
        """Add rows and write the whole file again."""
        self._rows += rows
        write_parquet(self.path, self._rows)

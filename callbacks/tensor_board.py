"""A callback that logs episodes to TensorBoard."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

from noterl.callback import LOGGER, Callback
from noterl.types import Logs
from noterl.utils.checks import check_positive
from noterl.utils.optional import require
from noterl.utils.tables import plain_row


class TensorBoard(Callback):
    """Write the numeric metrics of each finished episode for TensorBoard; the step is the number of environment steps.

    The agent's `configuration` is a table in the tab "Text".

    To see the charts, `pip install tensorboard` and run `tensorboard --logdir` with the folder. A resumed run writes
    another file. The charts then hide what the interrupted run wrote after its last checkpoint.

    Args:
        folder: the folder of the run, which is created if necessary.
        flush_every: number of finished episodes between writes; a crash loses the episodes since the last write.

    Raises:
        ValueError: if `flush_every` is not a positive int.
        OSError: when training begins, if the folder cannot be written.
        ImportError: if the extra `tensorboard` is not installed.

    Example:
    >>> import os, noterl
    >>> from noterl.callbacks import TensorBoard
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> history = agent.fit(episodes=3, callbacks=[TensorBoard("runs/first")], verbose=0)
    >>> [name.split(".")[:3] for name in os.listdir("runs/first")]
    [['events', 'out', 'tfevents']]
    """

    order = LOGGER

    def __init__(self, folder: str | Path = "runs", flush_every: int = 10) -> None:
        self.folder, self.flush_every = Path(folder), check_positive("flush_every", flush_every)
        require("tensorboardX", "tensorboard", "TensorBoard")
        self._file: Any = None
        self._unwritten = 0

    @property
    def state_key(self) -> str:
        """The class and the folder's name."""
        return f"{type(self).__name__}:{self.folder.name}"

    def on_train_begin(self, logs: Logs) -> None:
        """Open a file. Its first event makes TensorBoard hide later steps in older files, which are played again."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.summary import text

        self.folder.mkdir(parents=True, exist_ok=True)
        # EventsWriter instead of SummaryWriter: its flush writes every event, and it accepts a suffix. TensorBoard
        # reads files in the order of their names, which hold seconds; the suffix orders files of the same second.
        self._file = EventsWriter(str(self.folder / "events"), f".{time.time_ns():020d}.{secrets.token_hex(4)}")
        self._file.write_event(Event(step=self.agent.steps + 1, session_log=SessionLog(status=SessionLog.START)))
        table = "\n".join(f"| {name} | {value} |" for name, value in self.agent.configuration.items())
        summary = text("configuration", f"| name | value |\n| --- | --- |\n{table}")
        self._file.write_event(Event(step=self.agent.steps + 1, wall_time=time.time(), summary=summary))
        self._flush()

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Write the numeric metrics of a complete episode."""
        if self._file is None or not logs.get("complete", True):
            return
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in plain_row(logs).items()
            if isinstance(value, int | float) and name != "complete"
        ]
        self._file.write_event(Event(step=logs["steps"], wall_time=time.time(), summary=Summary(value=values)))
        self._unwritten += 1
        if self._unwritten >= self.flush_every:
            self._flush()

    def on_train_end(self, logs: Logs) -> None:
        """Write everything and close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _flush(self) -> None:
        self._file.flush()
        self._unwritten = 0

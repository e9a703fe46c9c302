"""A callback that logs episodes to TensorBoard."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noterl.callback import LOGGER, Callback
from noterl.types import Logs
from noterl.utils.checks import check_positive
from noterl.utils.files import naming, user_path
from noterl.utils.optional import require
from noterl.utils.tables import plain_row

_EVALUATION = re.compile("^evaluation_")  # the prefix of what the callback `Evaluate` logs
_MOST_EVENTS = 1000


class TensorBoard(Callback):
    """Write the numeric metrics of each finished episode for TensorBoard; the step is the number of environment steps.

    The agent's `configuration` is a table in the tab "Text" and a row in the tab "HParams", with the rewards. The
    results of `Agent.evaluate` during training and of the callback `Evaluate` are curves under "evaluation/"; an
    `Evaluate` with another `name` keeps the names in the logs.

    To see the charts, `pip install tensorboard` and run `tensorboard --logdir` with the folder. A resumed run writes
    another file. The charts then hide what the interrupted run wrote after its last checkpoint.

    Args:
        folder: the folder of the run, which is created if necessary.
        flush_every: number of finished episodes between writes; a crash loses the episodes since the last write.

    Raises:
        ValueError: if an argument is not one of the allowed values.
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
    takes_epochs = True

    def __init__(self, folder: str | Path = "runs", flush_every: int = 10) -> None:
        self.folder: Path = user_path(folder)
        self.flush_every: int = check_positive("flush_every", flush_every)
        require("tensorboardX", "tensorboard", "TensorBoard")
        self._file: Any = None
        self._suffix = ""  # the end of the file's name
        self._events: list[Any] = []  # those that are not written yet
        self._unwritten = 0  # the number of their episodes

    @property
    def state_key(self) -> str:
        """The class and the folder's name."""
        return f"{type(self).__name__}:{self.folder.name}"

    def get_state(self) -> dict[str, Any]:
        """Write all events, because a run that resumes does not repeat their episodes, and return an empty state."""
        if self._file is not None:
            self._flush()
        return {}

    def on_train_begin(self, logs: Logs) -> None:
        """Open a file."""
        from tensorboardX.summary import hparams, text

        self._open()
        table = "\n".join(f"| {name} | {value} |" for name, value in self.agent.configuration.items())
        self._write(self.agent.log_step + 1, text("configuration", f"| name | value |\n| --- | --- |\n{table}"))
        experiment, start, self._session_end = hparams(dict(self.agent.configuration), {"reward": 0.0})
        for summary in (experiment, start):
            self._write(self.agent.log_step + 1, summary)
        self._flush()

    def _open(self) -> None:
        """Open a file. The first event makes TensorBoard hide the steps of older files that this run repeats."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self.folder.mkdir(parents=True, exist_ok=True)
        # EventsWriter instead of SummaryWriter: its flush writes every event, and it accepts a suffix. TensorBoard
        # reads files in the order of their names, which hold seconds; the suffix orders files of the same second.
        self._suffix = f".{time.time_ns():020d}.{secrets.token_hex(4)}"
        self._file = EventsWriter(str(self.folder / "events"), self._suffix)
        self._file.write_event(Event(step=self.agent.log_step + 1, session_log=SessionLog(status=SessionLog.START)))

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Write the numeric metrics of a complete episode."""
        if self._file is None or not logs.get("complete", True):
            return
        # The steps at the end of the episode, plus the updates that `log_step` counts too.
        step = logs["steps"] + self.agent.log_step - self.agent.steps
        row = {_EVALUATION.sub("evaluation/", name): value for name, value in plain_row(logs).items()}
        self._write_scalars(step, row)
        self._unwritten += 1
        if self._unwritten >= self.flush_every:
            self._flush()

    def on_evaluate_end(self, logs: Logs) -> None:
        """Write the numbers of an evaluation, unless a callback `Evaluate` adds them to the logs of an episode."""
        is_logged = any(getattr(callback, "is_evaluating", False) for callback in self.agent.callbacks)
        if self._file is not None and not is_logged:
            evaluated = {f"evaluation/{name}": value for name, value in plain_row(logs).items()}
            self._write_scalars(self.agent.log_step, evaluated)

    def on_train_end(self, logs: Logs) -> None:
        """Write everything and close the file."""
        if self._file is not None:
            self._write(self.agent.log_step, self._session_end)
            self._flush()
            self._file.close()
            self._file = None

    def _write_scalars(self, step: int, row: Mapping[str, Any]) -> None:
        """Add the numbers of a row as one event; other values are left out."""
        from tensorboardX.proto.summary_pb2 import Summary

        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        if values:
            self._write(step, Summary(value=values))

    def _write(self, step: int, summary: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._events.append(Event(step=step, wall_time=time.time(), summary=summary))
        if len(self._events) >= _MOST_EVENTS:  # evaluations in an episode that does not end
            self._flush()

    def _flush(self) -> None:
        """Write all events to the file; open another file if this one was removed."""
        events = self._events
        self._events = []
        self._unwritten = 0
        with naming(self.folder):
            if not any(self.folder.glob(f"*{self._suffix}")):  # the file was removed: what it buffers would be lost
                self._file.close()
                self._open()
            for event in events:
                self._file.write_event(event)
            self._file.flush()

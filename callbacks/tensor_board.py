"""Charts in TensorBoard."""

from __future__ import annotations

from pathlib import Path

from noterl.callback import LOGGER, Callback
from noterl.types import Logs
from noterl.utils.checks import check_positive
from noterl.utils.event_files import EventFile
from noterl.utils.tables import plain_row


class TensorBoard(Callback):
    """Write the numbers of each finished episode's logs for TensorBoard, against environment steps.

    Nothing needs to be installed to write; to look at it, `pip install tensorboard` and `tensorboard --logdir` with
    the folder. A run that goes on writes a further file, and charts show no step twice.

    Args:
        folder: of the run; made if need be.
        flush_every: finished episodes between writes; a crash loses those since the last.

    Raises:
        ValueError: if `flush_every` is no positive int.
        OSError: as training begins, if the folder cannot be written.

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
        self._file: EventFile | None = None
        self._unwritten = 0

    @property
    def state_key(self) -> str:
        """The class and the folder's name."""
        return f"{type(self).__name__}:{self.folder.name}"

    def on_train_begin(self, logs: Logs) -> None:
        """Open a file; what others of the folder say of later steps is void, for they are played again."""
        self._file, self._unwritten = EventFile(self.folder, self.agent.steps + 1), 0

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Note the episode; one that the end of training cut short is passed over."""
        if self._file is None or not logs.get("complete", True):
            return
        row = {name: value for name, value in plain_row(logs).items() if isinstance(value, int | float)}
        row.pop("complete", None)
        self._file.add(row, logs["steps"])
        self._unwritten += 1
        if self._unwritten >= self.flush_every:
            self._file.flush()
            self._unwritten = 0

    def on_train_end(self, logs: Logs) -> None:
        """Write everything and close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

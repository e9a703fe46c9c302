"""Which process writes a file: a second process that writes the same file warns."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import warnings
from pathlib import Path
from typing import BinaryIO


class Claim:
    """Holds a file for this process, in a locked file `.<name>.writer` beside the file, which names the process.

    `BackupAndRestore` and the loggers of tables take the file when training begins, and release it at the end.

    The lock ends with the process, also after kill -9 and for another process with the same number. Some network file
    systems have no such locks: nothing is reported there.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def take(self) -> None:
        """Hold the file until `release`; warn if another writer holds the file."""
        self.release()
        # A folder without write access or locks, such as some network drives, does not stop training.
        with contextlib.suppress(OSError):
            self._file = self._name().open("a+b")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._file.seek(0)
                writer = self._file.read(200).decode(errors="replace") or "another process"
                self._file.close()
                self._file = None
                warnings.warn(
                    f"{self._path} is written by {writer} too, so rows may be mixed and backups be those of the other "
                    "run. Give each run its own path.",
                    stacklevel=2,
                )
                return
            self._file.truncate(0)
            self._file.write(f"the process {os.getpid()} on {socket.gethostname()}".encode())
            self._file.flush()

    def release(self) -> None:
        """Let other processes write the file."""
        if self._file is not None:
            # The file is removed before the lock is released: afterwards, it may be the file of another process.
            with contextlib.suppress(OSError):
                self._name().unlink()
            self._file.close()
            self._file = None

    def _name(self) -> Path:
        return self._path.with_name(f".{self._path.name}.writer")

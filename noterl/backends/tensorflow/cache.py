"""XLA's persistent compilation cache in TensorFlow, in noterl's folder.

If TensorFlow cannot read or write a file of the cache, the call that compiles raises. So each process gives TensorFlow
a separate folder with copies of the files whose checksum is right, and stores what TensorFlow adds. This module is
imported before TensorFlow, which reads the variable `TF_XLA_FLAGS` once.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib.metadata
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from noterl.utils import compilation_cache

# A program takes 0.3 to 1.7 MB, and each process copies all of them.
_LIMIT = 64 * 2**20
_FLAG = "--tf_xla_persistent_cache_directory"
# More than the tensors that a process makes before the first program, or while it traces one.
_ALIGNMENT = 2**16
_PREFIX = ".tensorflow-"
_LOCK = ".lock"
# A folder without a lock is abandoned after this time: its process ended while it started.
_SECONDS = 7 * 24 * 3600
_session: Session | None = None


class Session:
    """The folder of this process, and the store that fills the folder.

    Args:
        store: the files of all processes.
    """

    def __init__(self, store: compilation_cache.Store) -> None:
        self._store = store
        self._process = os.getpid()
        self.folder: Path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=store.folder.parent))
        self._lock = open(self.folder / f"{_LOCK}.part", "wb")  # noqa: SIM115  # until the process ends
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The file gets its name when it is locked: other processes remove a folder whose lock they can take.
        os.rename(self._lock.name, self.folder / _LOCK)
        self._stored: set[str] = set()
        for key in store.names():
            content = store.get(key, used=False)
            if content is not None:
                (self.folder / key).write_bytes(content)
                self._stored.add(key)

    def publish(self) -> None:
        """Store the files that TensorFlow has written since the last call. TensorFlow renames complete files."""
        if os.getpid() != self._process:  # a forked process
            return
        with contextlib.suppress(OSError):
            for path in sorted(self.folder.glob("*.pb")):
                if path.name not in self._stored:
                    self._stored.add(path.name)
                    self._store.put(path.name, path.read_bytes())

    def discard(self) -> None:
        """Remove the files that this process was given, from the folder and the store."""
        for key in self._stored:
            (self.folder / key).unlink(missing_ok=True)
            self._store.remove(key)
        self._stored.clear()

    def close(self) -> None:
        """Store what is new, and remove the folder."""
        if os.getpid() == self._process:
            self.publish()
            self._lock.close()
            shutil.rmtree(self.folder, ignore_errors=True)


def enable() -> None:
    """Store compiled programs in noterl's folder, unless `TF_XLA_FLAGS` contains another one."""
    global _session
    inherited = os.environ.get("TF_XLA_FLAGS", "").split()
    words = [word for word in inherited if f"{os.sep}{_PREFIX}" not in word]
    if len(words) < len(inherited):  # the folder of the process that started this one, which removes it when it ends
        os.environ["TF_XLA_FLAGS"] = " ".join(words)
    if any(word.lstrip("-").startswith("tf_xla_persistent_cache") for word in words):
        return
    folder = compilation_cache.folder("tensorflow", _version(" ".join(words)))
    if folder is None:
        return
    try:
        _remove_abandoned(folder.parent)
        _session = Session(compilation_cache.Store(folder, _LIMIT))
    except OSError:  # for example a disk that is full
        return
    atexit.register(_session.close)
    os.environ["TF_XLA_FLAGS"] = " ".join([*words, f"{_FLAG}={_session.folder}"])


def publish() -> None:
    """Store what was compiled, so that a process that is killed later loses no program."""
    if _session is not None:
        _session.publish()


def first_call(make: Callable[[], Callable[[], Any]]) -> Any:
    """Return the result of the first call of a program, which compiles the program or reads the cache.

    If a stored program cannot be used, TensorFlow would raise in each process: the stored programs are removed, and the
    program is made again, because TensorFlow keeps the error of the old one.

    Args:
        make: makes the program, and returns a function that calls the program.
    """
    call = make()
    from tensorflow.errors import DataLossError

    try:
        return call()
    except DataLossError as error:
        if _session is None:
            raise
        warnings.warn(f"the stored programs of TensorFlow are damaged, and were removed: {error!s:.200}", stacklevel=2)
        _session.discard()
        return make()()


def align_names() -> None:
    """Let the names in the next program that is traced not depend on what this process has computed before.

    The key of a stored program contains the names of functions, and the names contain TensorFlow's counter of tensors
    and functions. So the counter moves on to a multiple of `_ALIGNMENT`, which takes a few milliseconds.
    """
    if _session is None:
        return
    try:
        from tensorflow.python.framework.ops import uid
    except ImportError:  # not public: programs are then found less often
        return
    while (uid() + 1) % _ALIGNMENT:
        pass


def _version(flags: str) -> str:
    """Return the version of TensorFlow, which is not imported yet, and the flags."""
    for name in ("tensorflow", "tensorflow-cpu", "tf-nightly"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(name)
            return f"{version}-{compilation_cache.digest(flags)}" if flags else version
    return "unknown"


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of processes that were killed: a lock ends with its process."""
    for folder in compilation_cache.own_folders(parent, re.escape(_PREFIX) + compilation_cache.PROCESS):
        with contextlib.suppress(OSError):
            if not (folder / _LOCK).exists():
                abandoned = time.time() - folder.stat().st_mtime > _SECONDS
            else:
                with open(folder / _LOCK, "r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while its process runs
                abandoned = True
            if abandoned:
                shutil.rmtree(folder, ignore_errors=True)

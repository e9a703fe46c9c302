"""Atomic writing and checked reading of files, with errors that name the path.

A file is written under a temporary name in the same directory and renamed, so a reader finds the old or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import struct
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

PathLike = str | os.PathLike[str]
Keys = tuple[str | int, ...]

_DAY = 24 * 3600.0
# The errors that zipfile, json, NumPy and safetensors raise for malformed bytes.
_DAMAGE = (
    ValueError,
    RuntimeError,
    LookupError,
    ArithmeticError,
    EOFError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    SafetensorError,
)


class FileError(ValueError):
    """A file is truncated, damaged, manipulated, or not written by this or an older noterl; no object was changed."""


def key_path(keys: Keys, root: str = "") -> str:
    """Return the name of a place in nested containers, for an error message.

    Example:
    >>> from noterl.utils.files import key_path
    >>> key_path(("replay", "lanes", 3)), key_path(("policy",), "tree")
    ("replay['lanes'][3]", "tree['policy']")
    """
    text = root
    for key in keys:
        text += key if isinstance(key, str) and not text else f"[{key!r}]"
    return text or "value"


def append_text(path: PathLike, text: str) -> None:
    """Append text to a file in UTF-8; if not all text can be written, the file keeps the old contents.

    Raises:
        OSError: if the file cannot be written.
    """
    remaining = memoryview(text.encode())
    with naming(path), open(path, "ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            while remaining:
                remaining = remaining[file.write(remaining) :]
        except OSError:
            file.truncate(size)
            raise


@contextlib.contextmanager
def naming(path: PathLike, result: str = "") -> Iterator[None]:
    """Let an error of the block, such as that of a full disk, name the path; the message ends in `result`."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror or error}{result}", os.fspath(path)) from error


@contextlib.contextmanager
def replacing(path: PathLike) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` atomically when the block ends.

    Missing directories are created. After any exception, also Ctrl-C, the old file is unchanged, and the temporary
    file is removed.

    Raises:
        ValueError: if `path` is not the path of a file.
        OSError: if the file cannot be written; with the `errno` of the cause and the name `path`.
    """
    with _temporary(path, "not saved, and an old file is unchanged") as (target, file):
        yield file
        file.flush()
        os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            os.chmod(file.name, stat.S_IMODE(os.stat(target).st_mode))
        os.replace(file.name, target)  # the file stays locked to the end
        _sync_directory(target)


def write_bytes(path: PathLike, content: bytes) -> None:
    """Write a file that replaces `path` atomically; see `replacing`."""
    with replacing(path) as file:
        file.write(content)


def check_writable(path: PathLike) -> None:
    """Check that a file can be written to `path`. Missing directories are created; nothing else is left.

    Raises:
        ValueError: if `path` is not the path of a file.
        OSError: if the file cannot be written; the error names `path`.
    """
    with _temporary(path, "cannot be written") as (_, file):
        file.write(b"\0")
        file.flush()


def check_writable_folder(path: PathLike) -> None:
    """Check that files can be written in a folder, which is created if missing."""
    check_writable(user_path(path) / secrets.token_hex(16))  # a name that nothing in the folder has


@contextlib.contextmanager
def reading(path: PathLike) -> Iterator[BinaryIO]:
    """Open `path` for reading. An error that the block raises for malformed bytes becomes a `FileError`.

    Raises:
        FileError: if the content of the file is malformed.
        OSError: if the file does not exist or cannot be read; the error names `path`.
    """
    text = checked_path(path)
    try:
        if os.path.exists(text) and not os.path.isfile(text) and not os.path.isdir(text):
            raise FileError("it is a device, pipe or socket")
        with open(text, "rb") as file:
            yield file
    except OSError as error:
        # A forged table of contents may point before the start of the file, where seek raises EINVAL.
        if error.errno == errno.EINVAL:
            raise FileError(f"cannot read {text!r}: an offset is outside of it") from error
        raise OSError(error.errno, error.strerror or str(error), text) from error
    except FileError as error:
        raise FileError(f"cannot read {text!r}: {error}") from error
    except _DAMAGE as error:
        reason = f"it is truncated, damaged or not a file of noterl ({error})"
        raise FileError(f"cannot read {text!r}: {reason}") from error


def _target(path: PathLike) -> str:
    """Return the absolute path without symbolic links, so that a link is followed and not replaced."""
    text = checked_path(path)
    target = os.path.realpath(text)
    if os.path.isdir(target) or text.endswith(os.sep):
        raise IsADirectoryError(errno.EISDIR, "path must name a file, this is a directory", text)
    if os.path.exists(target) and not os.path.isfile(target):
        raise ValueError(f"path must name a regular file, {text!r} is a device, pipe or socket")
    return target


def user_path(path: PathLike) -> Path:
    """Return a path that the user gave, with the home folder in place of a leading `~`.

    All paths go through here or `checked_path`: otherwise, a folder called "~" would be created.
    """
    return Path(os.path.expanduser(path))


def checked_path(path: PathLike) -> str:
    """Return the path as a str, with the home folder in place of a leading `~`.

    Raises:
        ValueError: if `path` is not the path of a file.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(f"path must be the path of a file, got {path!r}")
    return os.path.expanduser(text)


@contextlib.contextmanager
def _temporary(path: PathLike, result: str) -> Iterator[tuple[str, BinaryIO]]:
    """Open a new file in the directory of `path`, and remove the file at the end unless renamed.

    Missing directories are created. Temporary files of writers that were killed are removed; those of other targets
    only after a day without a write, because a lock does not reach other machines on each network file system.

    Yields:
        the absolute path without symbolic links, and the file.

    Raises:
        OSError: the error of the block, with the name `path` and a message that ends in `result`.
    """
    target = _target(path)
    # The name has a fixed length, because the target's name may already be as long as the file system allows.
    directory = os.path.dirname(target)
    beginning = f".noterl-{zlib.crc32(os.fsencode(target)):08x}-"
    with naming(path, f"; {result}"):
        os.makedirs(directory, exist_ok=True)
        for leftover in os.listdir(directory):
            if leftover.startswith(".noterl-") and leftover.endswith(".part"):
                _remove_if_abandoned(os.path.join(directory, leftover), 0.0 if leftover.startswith(beginning) else _DAY)
        locked = False
        while not locked:
            name = os.path.join(directory, f"{beginning}{secrets.token_hex(4)}.part")
            try:
                with open(name, "xb") as file:
                    with contextlib.suppress(OSError):  # Some network file systems have no locks.
                        fcntl.flock(file, fcntl.LOCK_EX)
                    locked = os.path.exists(name)  # Another process may have removed it before the lock.
                    if locked:
                        yield target, file
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)


def _remove_if_abandoned(name: str, age: float) -> None:
    """Remove a temporary file of at least this age in seconds, unless the writer still runs.

    A lock ends with the process, even after kill -9.
    """
    with contextlib.suppress(OSError), open(name, "r+b") as file:
        if time.time() - os.fstat(file.fileno()).st_mtime < age:
            return
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name)


def _sync_directory(target: str) -> None:
    """Make the rename durable. The file is complete without this, so an error is ignored."""

    def sync() -> None:
        """Write the directory to the disk."""
        with contextlib.suppress(OSError):
            descriptor = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    # Ctrl-C interrupts the main thread only: here, it would leave the descriptor open.
    thread = threading.Thread(target=sync, name="noterl-sync")
    with contextlib.suppress(RuntimeError):  # the interpreter is ending
        thread.start()
        thread.join()

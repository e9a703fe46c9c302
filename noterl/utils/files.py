"""Files that are either the old one or the new one, never half of one.

Owns: how bytes reach the disk and come back: writing beside the target and renaming, leftovers of processes that were
killed, and the errors that name the path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from safetensors import SafetensorError

if sys.platform != "win32":
    import fcntl

PathLike = str | os.PathLike[str]
Keys = tuple[str | int, ...]

# What the readers below us raise when the bytes are not what they should be.
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
    """A file that is truncated, foreign, damaged, hostile, or of a newer noterl; nothing was taken from it."""


def key_path(keys: Keys, root: str = "") -> str:
    """Name a place in nested containers for an error message.

    Example:
    >>> from noterl.utils.files import key_path
    >>> key_path(("replay", "lanes", 3)), key_path(("policy",), "tree")
    ("replay['lanes'][3]", "tree['policy']")
    """
    text = root
    for key in keys:
        text += key if isinstance(key, str) and not text else f"[{key!r}]"
    return text or "value"


@contextlib.contextmanager
def replacing(path: PathLike) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends, all at once.

    Directories that lack are made. Whatever goes wrong, Ctrl-C included, leaves the old file as it was and no other.

    Raises:
        ValueError: if `path` is no path.
        OSError: of the kind that went wrong (its `errno` kept), naming `path`.
    """
    target = _target(path)
    _make_parents(target, path)
    try:
        with _temporary(target) as (name, file):
            yield file
            file.flush()
            os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):
                os.chmod(name, stat.S_IMODE(os.stat(target).st_mode))
            if sys.platform == "win32":  # An open file cannot be renamed there; elsewhere the lock is kept to the end.
                file.close()
            os.replace(name, target)
            _sync_directory(target)
    except OSError as error:
        reason = f"{error.strerror or error}; not saved, and a file that was there is untouched"
        raise OSError(error.errno, reason, os.fspath(path)) from error


def check_writable(path: PathLike) -> None:
    """Find out now whether a file can be saved as `path` later; makes its directories, leaves nothing else.

    Raises:
        ValueError: if `path` is no path.
        OSError: of the kind that went wrong, naming `path`.
    """
    target = _target(path)
    _make_parents(target, path)
    try:
        with _temporary(target) as (_, file):
            file.write(b"\0")
            file.flush()
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror or error}; cannot be written", os.fspath(path)) from error


@contextlib.contextmanager
def reading(path: PathLike) -> Iterator[BinaryIO]:
    """Open `path` to read; whatever the readers inside the block make of bad bytes becomes a `FileError`.

    Raises:
        FileError: if what is read is not what it should be.
        OSError: if there is no such file or it cannot be read, naming `path`.
    """
    text = checked_path(path)
    try:
        if os.path.exists(text) and not os.path.isfile(text) and not os.path.isdir(text):
            raise FileError("it is a device, pipe or socket")
        with open(text, "rb") as file:
            yield file
    except OSError as error:
        # A table of contents may point before the start of the file, where seeking is an invalid argument.
        if error.errno == errno.EINVAL:
            raise FileError(f"cannot read {text!r}: an offset lies outside of it") from error
        raise OSError(error.errno, error.strerror or str(error), text) from error
    except FileError as error:
        raise FileError(f"cannot read {text!r}: {error}") from error
    except _DAMAGE as error:
        reason = f"it is truncated, damaged or no file of noterl ({error})"
        raise FileError(f"cannot read {text!r}: {reason}") from error


def _target(path: PathLike) -> str:
    """Return the absolute path behind symbolic links, so that a link keeps pointing where it did."""
    text = checked_path(path)
    target = os.path.realpath(text)
    if os.path.isdir(target) or text.endswith(os.sep):
        raise IsADirectoryError(errno.EISDIR, "path must name a file, this is a directory", text)
    if os.path.exists(target) and not os.path.isfile(target):
        raise ValueError(f"path must name a regular file, {text!r} is a device, pipe or socket")
    return target


def checked_path(path: PathLike) -> str:
    """Return the path as a str.

    Raises:
        ValueError: if `path` is no path.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(f"path must be the path of a file, got {path!r}")
    return text


def _make_parents(target: str, path: PathLike) -> None:
    directory = os.path.dirname(target)
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        reason = f"{error.strerror}; the directory {directory!r} cannot be made for path"
        raise OSError(error.errno, reason, os.fspath(path)) from error


@contextlib.contextmanager
def _temporary(target: str) -> Iterator[tuple[str, BinaryIO]]:
    """Open a fresh file in the target's directory that is gone at the end unless renamed; sweep out dead ones first."""
    # The name is of fixed length: the target's own may already be as long as the file system allows.
    directory, beginning = os.path.dirname(target), f".noterl-{zlib.crc32(os.fsencode(target)):08x}-"
    prefix = os.path.join(directory, beginning)
    for leftover in os.listdir(directory):
        if leftover.startswith(beginning) and leftover.endswith(".part"):
            _remove_if_dead(os.path.join(directory, leftover))
    claimed = False
    while not claimed:
        name = f"{prefix}{secrets.token_hex(4)}.part"
        try:
            with open(name, "xb") as file:
                claimed = _claim(name, file)
                if claimed:
                    yield name, file
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)


def _claim(name: str, file: BinaryIO) -> bool:
    """Lock a new file; false if another writer took it for a dead one between its making and its locking."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):  # Some network file systems know no locks.
            fcntl.flock(file, fcntl.LOCK_EX)
    return os.path.exists(name)


def _remove_if_dead(name: str) -> None:
    """Remove a temporary file unless a living writer holds it: a lock dies with its process, also by kill -9."""
    with contextlib.suppress(OSError), open(name, "r+b") as file:
        if sys.platform == "win32":  # An open file cannot be removed there, which serves as the lock.
            file.close()
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name)


def _sync_directory(target: str) -> None:
    """Make the rename itself survive a power cut; the file is complete either way, so a refusal is no error."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            descriptor = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

"""Where the large columns of a memory lie: in memory, or in files without a name.

Owns: making files that the columns are mapped onto. They lose their name as soon as they are mapped, so that nothing is
left behind however the process ends, and their blocks are reserved, since a full disk would otherwise kill the process
at a later write.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from noterl.replay.columns import Array

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], Array]


def checked_folder(memmap: Any) -> str | None:
    """Return the folder that `memmap` names; None stays None.

    Raises:
        ValueError: if it is no folder that files can be written to, nor can be made one, or the system cannot keep
            files without a name.
    """
    if memmap is None:
        return None
    if not isinstance(memmap, str | os.PathLike):
        raise ValueError(f"memmap must be None or the path of a folder, got {memmap!r}")
    folder = Path(memmap)
    there = _nearest(folder)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"memmap must be a folder that can be written to, got {str(folder)!r}")
    if os.name != "posix":
        raise ValueError(f"memmap must be None on this system, which cannot keep files without a name, got {memmap!r}")
    return str(folder)


def _nearest(folder: str | Path) -> Path:
    """Return the folder, or of those above it the nearest that there is."""
    return next(path for path in (Path(folder), *Path(folder).absolute().parents) if path.exists())


def check_disk(folder: str, capacity: int, needed: int) -> None:
    """Raise a ValueError with the figures if the disk of a folder, which may be missing yet, lacks the room."""
    free = shutil.disk_usage(_nearest(folder)).free
    if needed > free:
        raise ValueError(
            f"capacity={capacity} needs {needed} bytes ({needed / 1e9:.2f} GB) on the disk of memmap={folder!r}, but "
            f"only {free} bytes ({free / 1e9:.2f} GB) are free there"
        )


def on_disk(folder: str) -> Allocate:
    """Return what allocates arrays in files of this folder."""

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        size = int(np.prod(shape)) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        with tempfile.TemporaryFile(dir=folder, prefix="noterl-") as file:
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                return np.asarray(np.memmap(file, dtype, "w+", shape=shape))
            except OSError as error:
                raise ValueError(f"memmap={folder!r}: {size} bytes cannot be had there: {error}") from error

    return allocate

"""What a file may cost: one budget for everything that is read from files, which are not trusted.

A file of a few bytes may declare gigabytes. Therefore, a reader counts what a file declares before any memory is
allocated.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from noterl.utils.files import FileError
from noterl.utils.memory import available_bytes

# How much of each kind one file may hold.
LIMITS = {
    "bytes of JSON": 2**23,
    "bytes of TOML": 2**17,  # tomllib takes a second for them
    "values": 2**18,  # parsed values take up to 200 bytes each, and some files are refused only after parsing
    "bytes of directory": 2**22,  # the table of contents of a zip, which is parsed first: some 40,000 members
    "bytes of spaces": 2**24,  # four frames of 512 x 512 pixels with three colors take 12 MiB
    "values of a space": 2**22,  # Discrete values are one-hot, so each choice counts
    "bytes of arguments": 2**14,  # of an environment; FrozenLake makes a dozen objects of each
    "layers": 2**9,  # Keras fails beyond 900, because a function calls itself for each layer
    "arrays of weights": 2**10,  # two for each layer
    "weights": 2**28,  # 1 GiB of float32
    "outputs of layers": 2**26,  # for one observation: 256 MiB of float32
    "cells": 2**20,  # of a table, in addition to `CELLS_PER_BYTE`
    "chunks": 2**10,  # of HDF5, which takes 6 kB of memory for each, in addition to those whose entry is in the file
    "unpacked bytes": 2**26,  # in addition to `UNPACKED_PER_BYTE`
}
# How deep values may be nested.
MAX_DEPTH = 100
# A cell of a log takes at least a byte, unless most cells of its column are missing.
CELLS_PER_BYTE = 4
# Images in HDF5 or Parquet files take up to 50 times as much memory as in the file.
UNPACKED_PER_BYTE = 64
_BYTES_OF_CHUNK = 24  # of an entry in the index of an HDF5 file


class Budget:
    """What a file may still use, by kind.

    Args:
        place: what is read, for error messages.
        error: the class of the error.
        **limits: limits other than in `LIMITS`.
    """

    def __init__(self, place: str, error: type[ValueError] = FileError, **limits: int) -> None:
        self.place: str = place
        self._error = error
        self._limits = LIMITS | limits
        self._used = dict.fromkeys(self._limits, 0)

    def spend(self, kind: str, amount: int = 1) -> None:
        """Count what a file declares, before memory is allocated.

        Raises:
            ValueError: of the class `error`, if the file declares more than the limit.

        Example:
        >>> from noterl.utils.budget import Budget
        >>> Budget("it").spend("layers", 600)
        Traceback (most recent call last):
            ...
        noterl.utils.files.FileError: it: at most 512 layers, got 600 or more
        """
        self._used[kind] += amount
        if self._used[kind] > self._limits[kind]:
            limit = self._limits[kind]
            raise self._error(f"{self.place}: at most {limit:,} {kind}, got {self._used[kind]:,} or more")


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


def current() -> Budget | None:
    """Return the budget of the agent's file whose arguments are in use; None outside of `noterl.load`."""
    return _current.get()


@contextmanager
def using(budget: Budget) -> Iterator[None]:
    """Let `current` return this budget within the block."""
    token = _current.set(budget)
    try:
        yield
    finally:
        _current.reset(token)


def checked_size(file: int | Path, largest: int | None = None, *, factor: int = 1) -> int:
    """Return the bytes of a file.

    Args:
        file: the path, or the descriptor of an open file.
        largest: the most bytes; None for as many as fit in the free memory.
        factor: how many bytes of memory the reader takes for each byte of the file.

    Raises:
        FileError: if there are more: the file may be sparse.
    """
    size = os.stat(file).st_size
    limit = available_bytes() // factor if largest is None else largest
    if size > limit:
        raise FileError(f"it takes {size:,} bytes, and {limit:,} fit {'in memory' if largest is None else 'the agent'}")
    return size


def parse(content: bytes, load: Callable[[str], Any], place: str = "the text", form: str = "JSON") -> Any:
    """Return what `load`, such as `json.loads`, reads from a text in UTF-8.

    Args:
        content: the text.
        load: the parser.
        place: what is read, for error messages.
        form: "JSON" or "TOML".

    Raises:
        ValueError: if the text is too long, has too many values, is nested too deeply, or `load` refuses it.
    """
    budget = Budget(place)
    budget.spend(f"bytes of {form}", len(content))
    budget.spend("values", count_values(content))
    # tomllib's time grows with the square of the parts of a key, which stands in one line.
    too_deep = form == "TOML" and max(line.count(b".") for line in content.split(b"\n")) > MAX_DEPTH
    with suppress(RecursionError):
        if not too_deep and _depth(value := load(content.decode("utf-8"))) <= MAX_DEPTH:
            return value
    raise FileError(f"it is nested more than {MAX_DEPTH} deep")


def _depth(value: Any) -> int:
    """Return how deep lists and dicts are nested."""
    depth = 0
    level = [value]
    while level:
        depth += 1
        containers = [value for value in level if isinstance(value, list | dict)]
        level = [value for parent in containers for value in (parent.values() if isinstance(parent, dict) else parent)]
    return depth


def check_hdf5(path: Path, largest: int | None = None) -> None:
    """Check the declared sizes in an HDF5 file before a data set is read.

    Args:
        path: of the file.
        largest: the most values of a data set; None for any number.

    Raises:
        FileError: if the file or a data set is too large, or a data set lies outside of the file.
    """
    import h5py

    size = checked_size(path)
    budget = Budget("its data sets")
    # Negative amounts allow more than the limits, in proportion to the file.
    budget.spend("unpacked bytes", -min(UNPACKED_PER_BYTE * size, available_bytes()))
    budget.spend("chunks", -size // _BYTES_OF_CHUNK)

    def check(name: str, entry: Any) -> None:
        """Check one group or data set."""
        if isinstance(entry, h5py.Group):
            if not all(isinstance(entry.get(key, getlink=True), h5py.HardLink) for key in entry):
                raise FileError(f"its group {name!r:.80} has a link to another place")
            return
        if entry.external or entry.is_virtual:
            raise FileError(f"its data set {name!r:.80} lies in another file")
        if largest is not None and entry.size > largest:
            raise FileError(
                f"its data set {name!r:.80} has {entry.size:,} values, and a weight has at most {largest:,}"
            )
        budget.spend("unpacked bytes", max(entry.size, math.prod(entry.chunks or ())) * entry.dtype.itemsize)
        chunks = math.prod(-(-n // side) for n, side in zip(entry.shape, entry.chunks or (), strict=False))
        budget.spend("chunks", chunks)

    with h5py.File(path, "r") as file:
        check("/", file)
        file.visititems(check)


def count_values(text: bytes) -> int:
    """Return an upper bound of the values in a JSON text, without parsing."""
    return text.count(b",") + text.count(b"[") + text.count(b"{") + 1

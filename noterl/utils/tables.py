"""Tables in CSV, JSON lines and Parquet files, which loggers write and plots read.

A cell holds a number, a bool, a str or None. None and NaN both stand for a missing value.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from noterl.utils.budget import CELLS_PER_BYTE, UNPACKED_PER_BYTE, Budget, checked_size
from noterl.utils.checks import is_plain
from noterl.utils.files import reading, replacing, user_path
from noterl.utils.memory import available_bytes
from noterl.utils.optional import require

Row = dict[str, Any]


def plain_row(values: Mapping[str, Any]) -> Row:
    """Return the entries that fit into a cell, with scalars as Python numbers. Arrays and objects are left out.

    So is "complete": rows are of complete episodes.

    Example:
    >>> import numpy as np
    >>> from noterl.utils.tables import plain_row
    >>> plain_row({"reward": np.float32(0.5), "returns": np.zeros(3), "complete": True})
    {'reward': 0.5}
    """
    row: Row = {}
    for name, value in values.items():
        if name == "complete":
            continue
        if is_plain(value):
            row[name] = value
        elif hasattr(value, "dtype") and np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biuf":
            row[name] = np.asarray(value).item()
    return row


def columns_of(rows: Iterable[Row]) -> list[str]:
    """Return the names of all columns in the order of the first occurrence."""
    return list(dict.fromkeys(name for row in rows for name in row))


def csv_text(rows: Iterable[Row], columns: list[str], *, header: bool) -> str:
    """Return rows as CSV. The cell of a missing value is empty."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    # Only NaN differs from itself.
    cells = ({name: "" if value is None or value != value else value for name, value in row.items()} for row in rows)
    writer.writerows(cells)
    return text.getvalue()


def read_csv(path: Path) -> list[Row]:
    """Return the rows of a CSV file, without an incomplete last line; the value of an empty cell is None.

    Raises:
        ValueError: if the file is not a table.
    """
    try:
        lines = csv.reader(io.StringIO(_complete_lines(path), newline=""))
        header, *cells = [*filter(None, lines)] or [[]]  # an empty line would take 100 times its size
    except csv.Error as error:
        raise ValueError(f"{path} is not a table: {error}") from error
    if max(map(len, cells), default=0) > len(header):
        raise ValueError(f"{path} is not a table: a row has more cells than the header")
    rows = [{name: _value(cell) for name, cell in zip(header, row, strict=False)} for row in cells]
    _check_size([path], len(rows) * len(columns_of(rows)))
    return rows


def json_text(rows: Iterable[Row]) -> str:
    """Return rows as JSON lines. NaN and infinities, which JSON lacks, become null."""
    finite = ({name: None if _is_not_finite(value) else value for name, value in row.items()} for row in rows)
    return "".join(f"{json.dumps(row, allow_nan=False)}\n" for row in finite)


def read_json_lines(path: Path) -> list[Row]:
    """Return the rows of a file of JSON lines, without an incomplete last line.

    Raises:
        ValueError: if a line does not hold a JSON object.
    """
    text = _complete_lines(path)
    try:
        rows = [json.loads(line) for line in io.StringIO(text)]
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path} is not a table: {error}") from error
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"each line of {path} must hold an object")
    _check_size([path], len(rows) * len(columns_of(rows)))
    return rows


def write_parquet(path: Path, rows: list[Row]) -> None:
    """Write a Parquet file, which replaces an old one atomically.

    Raises:
        ImportError: if pyarrow is not installed; the message names the extra.
    """
    arrow = require("pyarrow", "parquet", "a .parquet file")
    parquet = require("pyarrow.parquet", "parquet", "a .parquet file")
    columns = {name: _uniform([row.get(name) for row in rows]) for name in columns_of(rows)}
    with replacing(path) as file:
        parquet.write_table(arrow.table(columns), file)


def read_parquet(path: Path) -> list[Row]:
    """Return the rows of a Parquet file, or of a folder of Parquet files such as xagents writes.

    Raises:
        ImportError: if pyarrow is not installed; the message names the extra.
        ValueError: if the file is not a table of cells.
    """
    arrow = require("pyarrow", "parquet", "a .parquet file")
    parquet = require("pyarrow.parquet", "parquet", "a .parquet file")
    try:
        # Of a folder, those that `read_table` reads, whatever their ending: xagents writes `.parquet.gz`.
        files = [Path(file) for file in parquet.ParquetDataset(path).files] if path.is_dir() else [path]
        metadata = [parquet.read_metadata(file) for file in files]
        groups = [entry.row_group(number) for entry in metadata for number in range(entry.num_row_groups)]
        unpacked = sum(group.total_byte_size for group in groups)
        _check_size(files, sum(entry.num_rows * entry.num_columns for entry in metadata), unpacked)
        schema = parquet.read_schema(files[0]) if files else []
        words = [field.name for field in schema if arrow.types.is_string(field.type)]
        table = parquet.read_table(path, read_dictionary=words)  # a word that is repeated is in memory once
        table.validate(full=True)  # such as the places of words in their dictionary
        if table.num_rows != sum(entry.num_rows for entry in metadata):  # pyarrow 15 leaves out damaged pages
            raise ValueError(f"{path} is damaged: some of its rows cannot be read")
        columns = [_python_values(column) for column in table.columns]
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if getattr(error, "errno", None):  # of the system; those of pyarrow have no number and do not name the file
            raise
        raise ValueError(f"{path} is not a Parquet file of a logger: {error}") from error
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


READERS = {".csv": read_csv, ".jsonl": read_json_lines, ".json": read_json_lines, ".parquet": read_parquet}


def read_columns(path: str | Path) -> dict[str, list[Any]]:
    """Return, by name, the columns of a table that a logger wrote; missing values are NaN.

    Args:
        path: path of a `.csv`, `.jsonl`, `.json` or `.parquet` file.

    Raises:
        ValueError: if the path has another ending, or the file does not hold a table.
        OSError: if the file cannot be read.
    """
    path = user_path(path)
    if path.suffix.lower() not in READERS:
        raise ValueError(f"path must end in {', '.join(READERS)}, got {str(path)!r}")
    rows = READERS[path.suffix.lower()](path)
    cells = {name: [row.get(name) for row in rows] for name in columns_of(rows)}
    return {name: [math.nan if value is None else value for value in values] for name, values in cells.items()}


def is_complete_text(path: Path) -> bool:
    """Return whether a file ends with a complete line."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _complete_lines(path: Path) -> str:
    """Return the text of a file, without a last line that a logger did not complete.

    Raises:
        ValueError: if a complete line is not UTF-8, or the rows do not fit in memory.
    """
    with reading(path) as file:
        content = file.read(checked_size(path, factor=16))  # a cell takes 5 to 10 bytes of text, and 100 in its row
        return content[: content.rfind(b"\n") + 1].decode()  # the incomplete line may end within a character


def _check_size(files: Sequence[Path], cells: int, unpacked: int = 0) -> None:
    """Raise a ValueError if files are too small for a table of so many cells and bytes: most cells are missing."""
    # The size of a sparse file counts only as far as its cells, of 128 bytes each, fit in memory.
    size = min(sum(file.stat().st_size for file in files), available_bytes() // (CELLS_PER_BYTE * 128))
    budget = Budget(f"the table in {', '.join(map(str, files)):.200}", ValueError)
    # What is in proportion to the files does not count.
    budget.spend("cells", cells - CELLS_PER_BYTE * size)
    budget.spend("unpacked bytes", unpacked - UNPACKED_PER_BYTE * size)


def _python_values(column: Any) -> list[Any]:
    """Return the values of a column of pyarrow; equal words of a dictionary are one str."""
    if not hasattr(column.type, "index_type"):
        return list(column.to_pylist())
    chunks = [(chunk.dictionary.to_pylist(), chunk.indices.to_pylist()) for chunk in column.chunks]
    return [None if index is None else words[index] for words, indices in chunks for index in indices]


def _uniform(values: list[Any]) -> list[Any]:
    """Return a column of one type: str if one value is a str, otherwise float if the types of the values differ."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) < 2:
        return values
    column_type = str if str in kinds else float
    return [None if value is None else column_type(value) for value in values]


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _value(cell: str) -> Any:
    """Return the value of a cell of a CSV file: None, a number, a bool or a str."""
    if not cell:
        return None
    try:
        return int(cell) if cell.removeprefix("-").isdecimal() else float(cell)
    except ValueError:  # also an int of more digits than Python converts
        return {"True": True, "False": False}.get(cell, cell)

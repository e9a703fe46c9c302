"""Tables in CSV, JSON lines and Parquet files, which loggers write and plots read.

A cell holds a number, a bool, a str or None. None and NaN both stand for a missing value.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from noterl.utils.files import replacing
from noterl.utils.optional import require

Row = dict[str, Any]


def plain_row(values: Mapping[str, Any]) -> Row:
    """Return the entries that fit into a cell, with scalars as Python numbers. Arrays and objects are left out.

    Example:
    >>> import numpy as np
    >>> from noterl.utils.tables import plain_row
    >>> plain_row({"reward": np.float32(0.5), "returns": np.zeros(3), "complete": True})
    {'reward': 0.5, 'complete': True}
    """
    row: Row = {}
    for name, value in values.items():
        if is_cell(value):
            row[name] = value
        elif hasattr(value, "dtype") and np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biuf":
            row[name] = np.asarray(value).item()
    return row


def is_cell(value: Any) -> bool:
    """Return whether a value is a str, bool, int, float or None."""
    return value is None or isinstance(value, str | bool | int | float)


def columns_of(rows: Iterable[Row]) -> list[str]:
    """Return the names of all columns in the order of their first occurrence."""
    return list(dict.fromkeys(name for row in rows for name in row))


def csv_text(rows: Iterable[Row], columns: list[str], *, header: bool) -> str:
    """Return rows as CSV. The cell of a missing value is empty."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    # Only NaN differs from itself.
    writer.writerows(
        {name: "" if value is None or value != value else value for name, value in row.items()} for row in rows
    )
    return text.getvalue()


def read_csv(path: Path) -> list[Row]:
    """Return the rows of a CSV file, without an incomplete last line."""
    rows = csv.DictReader(_complete_lines(path))
    return [{name: _number(cell) for name, cell in row.items() if cell} for row in rows]


def json_text(rows: Iterable[Row]) -> str:
    """Return rows as JSON lines. NaN and infinities, which JSON lacks, become null."""
    finite = ({name: None if _is_not_finite(value) else value for name, value in row.items()} for row in rows)
    return "".join(f"{json.dumps(row, allow_nan=False)}\n" for row in finite)


def read_json_lines(path: Path) -> list[Row]:
    """Return the rows of a file of JSON lines, without an incomplete last line."""
    return [dict(json.loads(line)) for line in _complete_lines(path)]


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
    """
    table = require("pyarrow.parquet", "parquet", "a .parquet file").read_table(path)
    return [dict(row) for row in table.to_pylist()]


READERS = {".csv": read_csv, ".jsonl": read_json_lines, ".json": read_json_lines, ".parquet": read_parquet}


def read_columns(path: str | Path) -> dict[str, list[Any]]:
    """Return, by name, the columns of a table that a logger wrote; missing values are NaN.

    Args:
        path: path of a `.csv`, `.jsonl`, `.json` or `.parquet` file.

    Raises:
        ValueError: if the path has another ending.
        OSError: if the file cannot be read.
    """
    path = Path(path)
    if path.suffix.lower() not in READERS:
        raise ValueError(f"path must end in {', '.join(READERS)}, got {str(path)!r}")
    rows = READERS[path.suffix.lower()](path)
    cells = {name: [row.get(name) for row in rows] for name in columns_of(rows)}
    return {name: [math.nan if value is None else value for value in values] for name, values in cells.items()}


def _complete_lines(path: Path) -> list[str]:
    """Return the lines of a file, without a last line that a logger did not complete."""
    lines = path.read_bytes().decode().splitlines(keepends=True)
    return lines if not lines or lines[-1].endswith("\n") else lines[:-1]


def _uniform(values: list[Any]) -> list[Any]:
    """Return a column of one type: str if one value is a str, otherwise float if the types of the values differ."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) < 2:
        return values
    kind = str if str in kinds else float
    return [None if value is None else kind(value) for value in values]


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _number(cell: str) -> Any:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return {"True": True, "False": False}.get(cell, cell)

"""`run.toml`: the options of a run, from which `noterl train --config` repeats the run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noterl.cli.errors import UsageError
from noterl.tune.toml import toml_text
from noterl.utils.budget import LIMITS, parse
from noterl.utils.files import user_path, write_bytes


def read_config(path: str | Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises:
        UsageError: if the file is not TOML, or too large; the message has the line.
        OSError: if the file cannot be read.
    """
    try:
        with user_path(path).open("rb") as file:
            # One byte more than the limit, so that `parse` notices a file that is too large.
            content = file.read(LIMITS["bytes of TOML"] + 1)
        return dict(parse(content, tomllib.loads, form="TOML"))
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error


def write_config(path: str | Path, table: Mapping[str, Any], comment: str) -> None:
    """Write a table, whose values may be tables, as a TOML file."""
    write_bytes(path, f"# {comment}\n{toml_text(table)}".encode())

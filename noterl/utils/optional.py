"""Packages that are there only where the user wanted them."""

from __future__ import annotations

import importlib
from typing import Any


def require(module: str, extra: str, what: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: its full name.
        extra: of noterl, which installs the package.
        what: needs it, for the message.

    Raises:
        ImportError: naming the extra, if the package is not installed.

    Example:
    >>> from noterl.utils.optional import require
    >>> require("no_such_package", "parquet", "ParquetLogger")
    Traceback (most recent call last):
        ...
    ImportError: ParquetLogger needs an extra: pip install "noterl[parquet]"
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f'{what} needs an extra: pip install "noterl[{extra}]"') from error

"""Imports of optional packages."""

from __future__ import annotations

import importlib
from typing import Any


def require(module: str, extra: str, what: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: the full name of the module.
        extra: the extra of noterl that installs the package.
        what: the part of noterl that needs the package, for the error message.

    Raises:
        ImportError: if the package is not installed; the message names the extra.

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

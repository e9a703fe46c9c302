"""Errors of the command line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class UsageError(ValueError):
    """The command line, or a file of options, is wrong; the exit code is 2."""


@contextlib.contextmanager
def usage_errors(prefix: str = "") -> Iterator[None]:
    """Convert a ValueError or TypeError of the block into a `UsageError`.

    Args:
        prefix: what the message begins with, such as the name of the option.
    """
    try:
        yield
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(f"{prefix}{error}") from error

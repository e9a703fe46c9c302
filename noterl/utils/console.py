"""Messages to the user on the standard error."""

from __future__ import annotations

import sys


def print_message(message: str) -> None:
    """Print a line to the standard error, above a progress bar if there is one."""
    bars = sys.modules.get("tqdm.auto")  # imported by every progress bar
    if bars is None:
        print(message, file=sys.stderr)
    else:
        bars.tqdm.write(message, file=sys.stderr)


def can_show_progress_bar() -> bool:
    """Return whether a progress bar can be redrawn: True on a terminal and in a notebook."""
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")

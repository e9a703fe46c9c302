"""Messages to the user on the standard error."""

from __future__ import annotations

import sys
from typing import Any

from noterl.utils.notebook import ReplacedLine


def print_message(message: str) -> None:
    """Print a line to the standard error, above a progress bar if there is one."""
    bars = sys.modules.get("tqdm")  # imported by every progress bar
    if bars is None:
        print(message, file=sys.stderr)
    else:
        bars.tqdm.write(message, file=sys.stderr)


def can_show_progress_bar() -> bool:
    """Return whether a progress bar can be redrawn: True on a terminal and in a notebook."""
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")


def progress_bar(**options: Any) -> Any:
    """Return a bar of tqdm, on the standard error or in the cell of a notebook."""
    from tqdm import tqdm

    ipython = sys.modules.get("IPython")
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return tqdm(dynamic_ncols=True, **options)
    # Not tqdm's widget: a saved notebook would show the bar as it was at the beginning.
    return tqdm(file=ReplacedLine(), ncols=100, **options)

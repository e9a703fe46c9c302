"""Where progress is shown."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    """Write a line of its own to the standard error, also where a progress bar is drawn in the last one."""
    bars = sys.modules.get("tqdm.auto")  # whoever draws a bar has imported it
    if bars is None:
        print(message, file=sys.stderr)
    else:
        bars.tqdm.write(message, file=sys.stderr)


def shows_bars() -> bool:
    """Whether a bar that moves can be seen: on a terminal, and in a notebook."""
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")

"""Where progress is shown."""

from __future__ import annotations

import sys


def shows_bars() -> bool:
    """Whether a bar that moves can be seen: on a terminal, and in a notebook."""
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")

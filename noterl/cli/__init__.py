"""The command `noterl`, also `python -m noterl`; it needs the extra `cli`."""

from noterl.cli.main import main

__all__ = ["main"]

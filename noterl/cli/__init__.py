"""The command `noterl`, also `python -m noterl`; in the extra `cli`."""

from noterl.cli.main import main as main

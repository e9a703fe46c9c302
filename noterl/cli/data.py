"""`noterl data`: describe, record and convert data sets."""

from __future__ import annotations

from collections.abc import Sequence

import noterl
from noterl.cli.errors import UsageError
from noterl.cli.files import run_record

_HELP = """usage: noterl data describe DATA          print what a data set holds, and what looks wrong
       noterl data convert DATA OUT       write a data set to OUT
       noterl data record FILE [OPTIONS]  store the episodes of the agent in FILE; --help shows the options

DATA is an .npz or HDF5 file with the keys of D4RL, a folder of noterl or Minari, or the id of a local Minari data set.
OUT is an .npz file or, for any other name, a folder of noterl."""


def run(arguments: Sequence[str]) -> None:
    """Run `noterl data`.

    Raises:
        UsageError: if the command line is wrong.
    """
    match list(arguments):
        case ["record", *others]:
            run_record(others)
        case ["-h" | "--help"] | ["describe" | "convert", "-h" | "--help"]:
            print(_HELP)
        case ["describe", path]:
            noterl.Dataset.load(path).describe()
        case ["convert", source, target]:
            noterl.Dataset.load(source).save(target)
        case _:
            raise UsageError(f"data: unknown arguments {' '.join(arguments)!r}\n{_HELP}")

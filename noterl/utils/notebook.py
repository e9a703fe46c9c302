"""What a notebook shows and completes of noterl's objects, without widgets and without settings."""

from __future__ import annotations

import base64
import html
import importlib
import inspect
import reprlib
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any


def table(title: str, rows: Mapping[str, Any]) -> str:
    """Return an HTML table with a row for each name; long values are cut short."""
    cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{html.escape(title)}</caption>{cells}</table>"


def completions(instance: Any, names: Set[str], hidden: Set[str]) -> list[str]:
    """Return names for completion: `names`, public members of a class of the user, and arguments of the constructor.

    Args:
        instance: of the class.
        names: always in the result.
        hidden: names of noterl, which are left out unless they are arguments of the constructor.
    """
    mro = type(instance).__mro__
    of_user = {name for base in mro if base.__module__.partition(".")[0] != "noterl" for name in vars(base)}
    arguments = inspect.signature(type(instance)).parameters.keys() & vars(instance).keys()
    added = ({*of_user, *vars(instance)} - hidden) | arguments
    return sorted({*names, *(name for name in added if not name.startswith("_"))})


def animation(path: Path) -> str | None:
    """Return an HTML element that holds a `.gif` or `.mp4` file; None if the file is gone."""
    if not path.is_file():
        return None
    content = base64.b64encode(path.read_bytes()).decode()
    if path.suffix.lower() == ".gif":
        return f'<img src="data:image/gif;base64,{content}">'
    return f'<video controls loop src="data:video/mp4;base64,{content}"></video>'


class ReplacedLine:
    """A file for a progress bar: the cell shows the last line that was written, and so does the saved notebook."""

    encoding = "utf-8"  # for tqdm, which would draw a bar of ASCII otherwise

    def __init__(self) -> None:
        self._display: Any = None

    def write(self, text: str) -> None:
        """Show the text instead of the one before."""
        display: Any = importlib.import_module("IPython.display").display
        line = {"text/plain": text.strip()}
        if not line["text/plain"]:
            return
        if self._display is None:
            self._display = display(line, raw=True, display_id=True)
        else:
            self._display.update(line, raw=True)

    def flush(self) -> None:
        """Do nothing, because `write` shows everything at once."""


def _text(value: Any) -> str:
    return html.escape(f"{value:.6g}" if isinstance(value, float) else reprlib.repr(value))

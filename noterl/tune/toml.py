"""Writing TOML, which the standard library only reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml_text(table: Mapping[str, Any]) -> str:
    """Return a table as TOML; its values are str, int, float, bool, lists of these, or tables of such values.

    Example:
    >>> from noterl.tune.toml import toml_text
    >>> print(toml_text({"agent": "dqn", "csv": {"path": "a.csv"}, "hidden": [64, 64]}), end="")
    agent = "dqn"
    hidden = [64, 64]
    <BLANKLINE>
    [csv]
    path = "a.csv"
    """
    # Plain values come before tables, because a line after the name of a table belongs to that table.
    lines = [f"{name} = {_value(value)}" for name, value in table.items() if not isinstance(value, Mapping)]
    for name, values in table.items():
        if isinstance(values, Mapping):
            lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """Return a value as TOML; a table inside of a list or table is written in one line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{json.dumps(key)} = {_value(entry)}' for key, entry in value.items())} }}"
    # The escapes of JSON strings are those of TOML, except for the delete character.
    return json.dumps(value).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)

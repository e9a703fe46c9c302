"""The tables of README.md: every callback is in them, and every name on their right-hand side exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import noterl
import noterl.callbacks
import noterl.finders

pytestmark = pytest.mark.backend_free

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("## Compose your run")[2].partition("\n## ")[0]


def table(heading: str) -> list[list[str]]:
    """Return the rows of the table with this heading, by cells."""
    rows = SECTION.partition(f"| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def listed(heading: str) -> list[str]:
    return [name for row in table(heading) for name in re.findall(r"`(\w+)", row[0])]


def test_every_callback_has_a_line() -> None:
    assert sorted(listed("callback")) == sorted(set(noterl.callbacks.__all__) - {"Callback"})


def test_every_finder_has_a_line() -> None:
    assert [re.findall(r"\w+", row[0])[0] for row in table("finder")] == sorted(
        set(noterl.finders.__all__) - {"FinderLogger"}
    )


def test_the_lines_say_something() -> None:
    for row in table("callback") + table("finder"):
        assert len(row) == 2
        assert len(row[1]) > 15


def known_names() -> set[str]:
    """Return every public class of the library, read from its source: nothing is imported that needs a backend."""
    root = Path(__file__).parents[1]
    files = [*(root / "noterl").rglob("*.py"), *(root / "callbacks").glob("*.py")]
    return {name for file in files for name in re.findall(r"^class ([A-Z]\w+)", file.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("origin", ["Note_rl", "xagents", "Keras", "Stable-Baselines3"])
def test_the_counterparts_exist(origin: str) -> None:
    rows = table(origin)
    assert len(rows) > 5
    for row in rows:
        assert len(row) == 2, row
        code = " ".join(re.findall(r"`([^`]+)`", row[1])).replace("keras.optimizers.Adam", "")
        names = set(re.findall(r"(?<![.\w\"])([A-Z][a-z]\w+|[A-Z]{3,}[a-z]?\w*)", code)) - {"True"}
        assert names <= known_names(), (row, names - known_names())

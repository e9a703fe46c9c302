"""Rates of names, packed assignments and pronouns that make code hard to read, for each package.

The rates are measured over a whole package, because a single `kind` or `it` may be right.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.backend_free

ROOT = Path(__file__).parents[1]
PLACEHOLDERS = {"found", "each", "own", "parts", "kind", "rest", "given", "made", "known", "one", "both"}
FILLERS = {"x", "y", "v", "tmp", "data", "item", "thing", "stuff", "obj", "elem"}
PRONOUNS = re.compile(r"\b(it|its|they|them|their)\b", re.IGNORECASE)
POINTERS = re.compile(r"\b(those of|that of|those that)\b", re.IGNORECASE)
# The largest rates, per 1,000 stored names, stored names, statements, words and words.
LIMITS = {"placeholders": 10.0, "fillers": 8.0, "packed": 6.0, "pronouns": 10.0, "those of": 0.5}
# The packages that keep all of them. The others follow, one at a time; "noterl" is the modules directly in the package.
PACKAGES = (
    *("callbacks", "noterl", "noterl/acting", "noterl/agents", "noterl/backends", "noterl/cli"),
    *(
        "noterl/collect",
        "noterl/data",
        "noterl/distribute",
        "noterl/envs",
        "noterl/export",
        "noterl/finders",
        "noterl/heads",
    ),
    *("noterl/imitation", "noterl/learning", "noterl/migration", "noterl/networks", "noterl/presets", "noterl/replay"),
    *("noterl/saving", "noterl/training", "noterl/tune", "noterl/utils"),
)


def docstrings(tree: ast.AST) -> Iterator[str]:
    """Yield the docstrings of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def is_packed(node: ast.AST) -> bool:
    """Return whether a statement assigns several values to as many targets."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    count = len(node.value.elts)
    return any(isinstance(target, ast.Tuple) and len(target.elts) == count for target in node.targets)


def rates(texts: list[str]) -> dict[str, float]:
    """Return the rates of `LIMITS` over the texts of some modules."""
    trees = [ast.parse(text) for text in texts]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    words = " ".join(text for tree in trees for text in docstrings(tree))
    num_names = max(len(names), 1)
    num_words = max(len(words.split()), 1)
    num_statements = max(sum(isinstance(node, ast.stmt) for node in nodes), 1)
    return {
        "placeholders": 1_000 * sum(name in PLACEHOLDERS for name in names) / num_names,
        "fillers": 1_000 * sum(name in FILLERS for name in names) / num_names,
        "packed": 1_000 * sum(map(is_packed, nodes)) / num_statements,
        "pronouns": 1_000 * len(PRONOUNS.findall(words)) / num_words,
        "those of": 1_000 * len(POINTERS.findall(words)) / num_words,
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_easy_to_read(package: str) -> None:
    paths = (ROOT / package).glob("*.py" if package == "noterl" else "**/*.py")
    measured = rates([path.read_text(encoding="utf-8") for path in paths])
    assert {name: rate for name, rate in measured.items() if rate > LIMITS[name]} == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("placeholders", "found = 1\nweights = 2"),
        ("fillers", "x = 1"),
        ("packed", "rows, width = 3, 4"),
        ("pronouns", '"""If the agent receives it, they stop."""'),
        ("those of", '"""The values are those of the agent."""'),
    ],
)
def test_each_rate_can_exceed_its_limit(name: str, text: str) -> None:
    assert rates([text])[name] > LIMITS[name]


def test_plain_code_has_no_rate() -> None:
    text = 'def width(rows: list) -> int:\n    """Return the number of columns."""\n    low, high = bounds(rows)\n'
    assert set(rates([text]).values()) == {0.0}

"""The README is short, its figures match benchmarks/results/, and its links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import report

pytestmark = pytest.mark.backend_free

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_has_at_most_250_lines() -> None:
    assert len(README.splitlines()) <= 250


def test_readme_tables_match_the_results() -> None:
    """`python -m benchmarks.report --readme` prints the tables."""
    for table in report.readme_tables().strip().split("\n\n"):
        assert table in README, f"README.md differs from benchmarks/results/; this table should be in it:\n{table}"


def imports(text: str, name: str) -> list[int]:
    """Return the positions where the Python blocks of a page import a module."""
    blocks = re.finditer(r"```python\n.*?```", text, re.DOTALL)
    pattern = re.compile(rf"^ *(import|from) {name}\b", re.MULTILINE)
    return [block.start() + match.start() for block in blocks for match in pattern.finditer(block[0])]


def test_noterl_is_imported_before_keras() -> None:
    """`import keras` first fails in an environment with JAX or PyTorch alone, unless KERAS_BACKEND is set."""
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if keras := imports(text, "keras"):
            assert min(imports(text, "noterl"), default=len(text)) < keras[0], page


def test_links_and_images_exist() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(targets) > 10
    assert not [target for target in targets if "://" not in target and not (ROOT / target).exists()]

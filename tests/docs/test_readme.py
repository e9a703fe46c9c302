"""The README is short, its figures are those of benchmarks/results/, and its links lead somewhere."""

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
    """`python -m benchmarks.report --readme` prints the tables as they should be."""
    for table in report.readme_tables().strip().split("\n\n"):
        assert table in README, f"README.md differs from benchmarks/results/; this table should be in it:\n{table}"


def test_noterl_is_imported_before_keras() -> None:
    """`import keras` first would fail in an environment with JAX or torch alone."""
    assert README.index("import noterl") < README.index("import keras")
    for page in (ROOT / "docs").rglob("*.md"):
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            keras_line = re.search(r"^(import keras|from keras)", block, re.MULTILINE)
            noterl_line = re.search(r"^(import noterl|from noterl)", block, re.MULTILINE)
            if keras_line and noterl_line:
                assert noterl_line.start() < keras_line.start(), page


def test_links_and_images_exist() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(targets) > 10
    assert not [target for target in targets if "://" not in target and not (ROOT / target).exists()]

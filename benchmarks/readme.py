"""The tables of the project's README, made from what lies in results/: `python -m benchmarks.readme`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.report import tables
from benchmarks.tasks import TASKS

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
SECTION = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- /results -->)", re.DOTALL)


def rendered(results: Path = RESULTS) -> str:
    """Return what the README says of the results that are kept."""
    kept = [json.loads(path.read_text()) for path in sorted(results.glob("*.json")) if path.stem in TASKS]
    return "\n\n".join(map(tables, kept)) + "\n" if kept else "No run is recorded yet.\n"


def update(readme: Path = README, results: Path = RESULTS) -> None:
    """Write the tables of the results into the README, between the comments that mark their place.

    Raises:
        ValueError: if the README has no such place.
    """
    text, places = SECTION.subn(lambda match: rendered(results), readme.read_text())
    if places != 1:
        raise ValueError(f"{readme} must have one place between <!-- results --> and <!-- /results -->, has {places}")
    readme.write_text(text)


if __name__ == "__main__":
    update()

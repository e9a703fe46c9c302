"""The tables of the project's README, made from what lies in results/: `python -m benchmarks.readme`.

Each stands between two comments that mark its place: "results" is what `compare.py` found, "learning" what
`learning.py` did.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks import report, training
from benchmarks.tasks import TASKS

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
SECTIONS = {
    name: re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL) for name in ("results", "learning")
}


def rendered(section: str, results: Path = RESULTS) -> str:
    """Return what the README says of the results that are kept."""
    if section == "learning":
        kept = _kept(results / "learning")
        return f"{training.table(kept)}\n" if kept else "No run is recorded yet.\n"
    kept = _kept(results)
    return "\n\n".join(map(report.tables, kept)) + "\n" if kept else "No run is recorded yet.\n"


def _kept(folder: Path) -> list[dict[str, Any]]:
    """Return the kept results of tasks that are known, in their order."""
    paths = [folder / f"{name}.json" for name in TASKS]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def update(readme: Path = README, results: Path = RESULTS) -> None:
    """Write the tables of the results into the README, between the comments that mark their place.

    Raises:
        ValueError: if the README has no such places.
    """
    text = readme.read_text()
    for section, place in SECTIONS.items():
        said = rendered(section, results)
        text, places = place.subn(lambda match, said=said: said, text)
        if places != 1:
            raise ValueError(
                f"{readme} must have one place between <!-- {section} --> and <!-- /{section} -->, has {places}"
            )
    readme.write_text(text)


if __name__ == "__main__":
    update()

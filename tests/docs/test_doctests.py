"""The examples in docstrings run.

The collector of pytest would import the catalogue as `callbacks`, which it refuses, so modules are imported here under
their public names.
"""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BACKENDS = ("tensorflow", "jax", "torch")


def module_names() -> list[str]:
    """Return the import names of all modules of the library."""
    names = []
    for path in sorted([*(ROOT / "noterl").rglob("*.py"), *(ROOT / "callbacks").rglob("*.py")]):
        relative = path.relative_to(ROOT).with_suffix("")
        parts = relative.parts if relative.parts[0] == "noterl" else ("noterl", *relative.parts)
        names.append(".".join(parts).removesuffix(".__init__"))
    return names


@pytest.mark.parametrize("name", module_names())
def test_examples_in_docstrings_run(name: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in set(BACKENDS) - {backend}:
        if name.startswith(f"noterl.backends.{other}"):
            pytest.skip(f"runs on {other}")
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)

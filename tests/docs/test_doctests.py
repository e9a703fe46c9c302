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


def backend_of(name: str) -> str:
    """Return the backend of a module: its own, or torch for a module that runs on all."""
    return next((each for each in BACKENDS if name.startswith(f"noterl.backends.{each}")), "torch")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.backends(backend_of(name))) for name in module_names()]
)
def test_examples_in_docstrings_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)

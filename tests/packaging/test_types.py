"""Type checkers read the installed package: pyright, as editors do, and mypy."""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.packaging.commands import run

pytestmark = [pytest.mark.backend_free, pytest.mark.slow]

PROGRAMS = Path(__file__).parent / "user_programs"
# A file name in the output of both checkers and the line, such as "program.py:7".
MARKED = {
    f"mistakes.py:{number}"
    for number, line in enumerate((PROGRAMS / "mistakes.py").read_text().splitlines(), start=1)
    if line.endswith("# wrong")
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the programs of the user."""
    for program in PROGRAMS.glob("*.py"):
        shutil.copyfile(program, tmp_path / program.name)
    # The mode of pyright, which Pylance has too; basedpyright's own reports matters of taste.
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    return tmp_path


def pyright(*arguments: str, site: Path, cwd: Path) -> dict:
    """Return what basedpyright reports."""
    command = (sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable)
    # --verifytypes takes the first interpreter of the path, whatever --pythonpath says.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = run(*command, *arguments, cwd=cwd, PYTHONPATH=str(site), PATH=path)
    assert result.stdout, result.stderr
    return json.loads(result.stdout)


def test_pyright_reports_the_mistakes_of_a_user_and_nothing_else(site: Path, folder: Path) -> None:
    report = pyright("--level", "error", site=site, cwd=folder)
    assert report["summary"]["filesAnalyzed"] == 2
    lines = {f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}" for each in report["generalDiagnostics"]}
    assert lines == MARKED


def test_mypy_reports_the_mistakes_of_a_user_and_nothing_else(site: Path, folder: Path) -> None:
    # Without the frameworks, which do not matter here, mypy takes 12 s of a core instead of 28.
    packages = ",".join(f"{name}.*" for name in ("jax", "jaxlib", "matplotlib", "optuna", "ray", "tensorflow", "torch"))
    (folder / "mypy.ini").write_text(f"[mypy]\nstrict = True\n[mypy-{packages}]\nfollow_imports = skip\n")
    options = ("--no-incremental", "--config-file=mypy.ini", "--no-pretty", "--hide-error-context")
    result = run(sys.executable, "-m", "mypy", *options, ".", cwd=folder, PYTHONPATH=str(site))
    lines = {line.rpartition(": error:")[0] for line in result.stdout.splitlines() if ": error:" in line}
    assert lines == MARKED, result.stdout + result.stderr


@pytest.mark.skipif(
    tuple(map(int, version("numpy").split(".")[:2])) < (2, 2), reason="a plain np.ndarray has no types before NumPy 2.2"
)
def test_types_of_the_public_interface_are_complete(site: Path, folder: Path) -> None:
    report = pyright("--verifytypes", "noterl", "--ignoreexternal", site=site, cwd=folder)
    assert report["typeCompleteness"]["completenessScore"] >= 0.95

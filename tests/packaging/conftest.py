"""A clone of the repository, its wheel, and a folder in which the wheel is installed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.packaging.commands import ROOT, run

# As .gitignore has them.
WRITTEN = shutil.ignore_patterns(
    *(".venv*", ".*_cache", "__pycache__", "*.egg-info", "build", "dist", "runs"),
    *("_build", "_generated", ".benchmarks", ".hypothesis"),
)


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the files that git tracks, or, in a source archive, of all that no program has written."""
    home = tmp_path_factory.mktemp("clone")
    if not (ROOT / ".git").exists():
        return shutil.copytree(ROOT, home, ignore=WRITTEN, dirs_exist_ok=True)
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    assert listed.returncode == 0, listed.stderr
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, home / name)
    return home


@pytest.fixture(scope="session")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # setuptools writes its build folder into the source, so the wheel is built from a copy of the clone.
    source = shutil.copytree(clone, folder / "source")
    build = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    result = run(sys.executable, "-m", "pip", *build, cwd=folder)
    assert result.returncode == 0, result.stderr
    (built,) = folder.glob("noterl-*.whl")
    return built


@pytest.fixture(scope="session")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for `PYTHONPATH` in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("site")
    result = run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", folder, wheel, cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder

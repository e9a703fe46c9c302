"""A bare clone, an editable install and a wheel; and the cost of `import noterl`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.packaging import first_program
from tests.packaging.commands import ROOT, run

pytestmark = [pytest.mark.backend_free, pytest.mark.slow]

# Importing the catalogue must not need a backend. The script prints where the packages were imported from.
PROBE = """
import noterl, noterl.callback, noterl.callbacks
assert noterl.callbacks.Callback is noterl.callback.Callback
assert noterl.callbacks.EarlyStopping.__module__ == "noterl.callbacks.early_stopping"
assert noterl.replay.Uniform.__module__ == "noterl.replay.samplers"
print(noterl.__file__)
print(noterl.callbacks.__file__)
"""


def imported_from(result: subprocess.CompletedProcess[str]) -> list[Path]:
    assert result.returncode == 0, result.stderr
    return [Path(line).parent for line in result.stdout.split()]


def test_sdist_holds_what_the_description_links_to(clone: Path, tmp_path: Path) -> None:
    source = shutil.copytree(clone, tmp_path / "source")
    call = "import setuptools.build_meta as backend; print(backend.build_sdist('..'))"
    result = run(sys.executable, "-c", call, cwd=source)
    assert result.returncode == 0, result.stderr
    (built,) = tmp_path.glob("noterl-*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    links = {target for target in relative_links() if (ROOT / target).is_file()}
    assert links <= names
    assert {"CHANGELOG.md", "examples/demo.py", "docs/conf.py", "tests/test_style.py", "conftest.py"} <= names
    assert not any("__pycache__" in name or (name.startswith("docs/_") and "static" not in name) for name in names)


def relative_links() -> set[str]:
    """Return the links and images of the README that are no addresses."""
    targets = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    return {target for target in targets if "://" not in target}


def test_links_of_the_description_follow_the_address_of_the_project() -> None:
    """The public address is in `[project.urls]` only; with an address there are no relative links, which PyPI lacks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    urls = tuple(project.get("urls", {}).values())
    absolute = re.findall(r"\]\((https?://[^)#]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert all(link.startswith(urls) for link in absolute)
    if urls:
        assert not relative_links()
    assert all((ROOT / target).exists() for target in relative_links())


def test_classifiers_name_the_versions_of_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [int(minor) for minor in re.findall(r"Python :: 3\.(\d+)", " ".join(project["classifiers"]))]
    assert f">=3.{min(versions)}" == project["requires-python"]
    assert not any(
        classifier.startswith("License") for classifier in project["classifiers"]
    )  # `license` is an SPDX name


def test_bare_clone_imports_the_catalogue(clone: Path) -> None:
    assert imported_from(run(sys.executable, "-c", PROBE, cwd=clone)) == [clone / "noterl", clone / "callbacks"]


def test_importing_the_catalogue_under_another_name_raises(clone: Path) -> None:
    result = run(sys.executable, "-c", "import callbacks", cwd=clone)
    assert result.returncode != 0
    assert "ImportError" in result.stderr
    assert "from noterl.callbacks import" in result.stderr


@pytest.mark.parametrize("start", ["elsewhere", "root"])
def test_editable_install_imports_the_catalogue(clone: Path, tmp_path: Path, start: str) -> None:
    source = shutil.copytree(clone, tmp_path / "source")
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    # The packages that noterl needs come from the running Python. A plain path runs none of the .pth files there, so
    # an editable noterl of this environment is not imported.
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "parent.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    install = ("install", "--no-deps", "--no-build-isolation", "--editable", source)
    result = run(sys.executable, "-m", "pip", "--python", python, *install, cwd=tmp_path)
    assert result.returncode == 0, result.stderr

    result = run(python, "-c", PROBE, cwd=source if start == "root" else tmp_path)
    assert imported_from(result) == [source / "noterl", source / "callbacks"]


def test_wheel_holds_the_catalogue(site: Path, tmp_path: Path) -> None:
    result = run(sys.executable, "-c", PROBE, cwd=tmp_path, PYTHONPATH=str(site))
    assert imported_from(result) == [site / "noterl", site / "noterl" / "callbacks"]


def test_wheel_holds_only_the_library(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "noterl/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"noterl", f"noterl-{wheel.name.split('-')[1]}.dist-info"}
    modules = {name for name in names if name.endswith(".py")}
    assert modules == {
        *(path.relative_to(ROOT).as_posix() for path in (ROOT / "noterl").rglob("*.py")),
        *(f"noterl/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "callbacks").rglob("*.py")),
    }


def test_wheel_has_the_version_of_the_package(wheel: Path, clone: Path) -> None:
    result = run(sys.executable, "-c", "import noterl; print(noterl.__version__)", cwd=clone)
    assert result.stdout.strip() == wheel.name.split("-")[1]


def test_first_program_of_the_readme_is_found_and_run(capfd: pytest.CaptureFixture[str]) -> None:
    program = first_program.first_block((ROOT / "README.md").read_text())
    assert program.startswith("import noterl\n") and "noterl.load" in program
    code = "import os; print(os.listdir('.'), os.environ.get('KERAS_BACKEND'))"
    assert first_program.run(code) == 0
    assert capfd.readouterr().out.strip() == "['program.py'] None"
    assert first_program.run("raise SystemExit(3)") == 3


def test_import_loads_no_framework(clone: Path) -> None:
    code = "import sys, noterl; print({'keras', 'tensorflow', 'jax', 'jaxlib', 'torch'} & set(sys.modules))"
    result = run(sys.executable, "-c", code, cwd=clone)
    assert (result.returncode, result.stdout.strip()) == (0, "set()"), result.stderr


def test_import_loads_few_modules_on_top_of_numpy(clone: Path) -> None:
    """Numpy itself loads about 180; `benchmarks/start.py` measures the seconds."""
    code = "import sys, numpy; before = {*sys.modules}; import noterl; print(len({*sys.modules} - before))"
    assert 0 < int(run(sys.executable, "-c", code, cwd=clone).stdout) <= 60

"""mypy compares each backend with the contract, and checks each call of a backend.

Faults are planted in a copy of the files of the backends, without the rest of the library.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("backends", "migration", "utils", "random.py", "types.py")
CORES = {name: f"noterl/backends/{name}/core.py" for name in ("tensorflow", "jax", "torch")}
CALLER = "noterl/caller.py"
CALLS = """
from noterl.backends import current

backend = current()
backend.fetch()
backend.fetch(value=None)
backend.device_nam()
backend.compile_updates(lambda batch, index: ({}, {}), [], on_trase=print)
backend.compile_call(print, [], acting="yes")
backend.capabilities["module"]
backend.capabilities["modules"].build(("sequential", []))
backend.capabilities["device_programs"].DeviceProgram(reset=print)
backend.capabilities["device_programs"].ReplayProgram(reset=print)
backend.capabilities["tables"].take_rows(None)
backend.capabilities["scopes"]([])
"""

pytestmark = [pytest.mark.backend_free, pytest.mark.slow]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Copy:
    """A copy without errors."""
    folder = tmp_path_factory.mktemp("copy")
    package = folder / "noterl"
    package.mkdir()
    (package / "__init__.py").touch()  # that of the library imports all of it
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in COPIED:
        source = ROOT / "noterl" / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, package / name)
    cache = getattr(request.config, "cache", None)  # of what mypy knows about NumPy; missing with "-p no:cacheprovider"
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    copied = Copy(folder, cache.mkdir(f"mypy{worker}") if cache else folder / "cache")
    assert copied.errors() == []
    return copied


class Copy:
    """A copy of the files of the backends.

    Args:
        folder: of the copy.
        cache: the folder in which mypy keeps what it knows.
    """

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.cache = folder, cache

    def errors(self, changed: Mapping[str, str] | None = None) -> list[tuple[str, int, str]]:
        """Return file, line and text of each error that mypy reports for other contents of files, with its notes."""
        before = {file: (self.folder / file).read_text() for file in changed or () if (self.folder / file).exists()}
        for file, text in (changed or {}).items():
            (self.folder / file).write_text(text)
        command = [sys.executable, "-m", "mypy", "--no-pretty", "--cache-dir", str(self.cache), "noterl"]
        run = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        for file in changed or ():
            (self.folder / file).unlink()
        for file, text in before.items():
            (self.folder / file).write_text(text)
        assert run.returncode in (0, 1), run.stdout + run.stderr
        errors: list[tuple[str, int, str]] = []
        for file, line, severity, text in re.findall(r"^(\S+?):(\d+): (error|note): (.*)$", run.stdout, re.MULTILINE):
            if severity == "error":
                errors.append((file, int(line), text))
            else:
                errors[-1] = (*errors[-1][:2], f"{errors[-1][2]}\n{text}")
        return errors

    def replaced(self, files: Iterable[str], old: str, new: str) -> dict[str, str]:
        """Return the files with one text in place of another, which each of them has once."""
        sources = {file: (self.folder / file).read_text() for file in files}
        assert all(source.count(old) == 1 for source in sources.values())
        return {file: source.replace(old, new) for file, source in sources.items()}


@pytest.mark.parametrize(
    ("old", "new", "member"),
    [
        ("def weights_reader(", "def read_weights(", "weights_reader"),
        ("targets: Sequence[keras.Variable], tau: Any)", "targets: Sequence[keras.Variable])", "copy_variables"),
        ("targets: Sequence[keras.Variable], tau: Any)", "targets: int, tau: Any)", "copy_variables"),
        ("Callable[[], list[np.ndarray]]:", "Callable[[], list[str]]:", "weights_reader"),
        ("capabilities: Capabilities =", "capabilities: dict[str, object] =", "capabilities"),
    ],
)
def test_backend_that_breaks_the_contract_is_an_error(copy: Copy, old: str, new: str, member: str) -> None:
    errors = copy.errors(copy.replaced(CORES.values(), old, new))
    for file in CORES.values():
        assert [text for where, _, text in errors if where == file and '"Backend"' in text and member in text], errors


def test_capability_that_lacks_a_function_is_an_error(copy: Copy) -> None:
    changed = copy.replaced(["noterl/backends/torch/modules.py"], "def in_bfloat16(", "def renamed(")
    changed |= copy.replaced(["noterl/backends/jax/tables.py"], "def take_rows_of_two(", "def renamed(")
    errors = copy.errors(changed)
    for name, function in (("torch", "in_bfloat16"), ("jax", "take_rows_of_two")):
        assert [text for where, _, text in errors if where == CORES[name] and function in text], errors


def test_wrong_calls_are_errors(copy: Copy) -> None:
    lines = {line for file, line, _ in copy.errors({CALLER: CALLS}) if file == CALLER}
    assert lines == {number for number, line in enumerate(CALLS.splitlines(), 1) if line.startswith("backend.")}

"""Imports that import-linter does not see: the catalogue under its run-time name, and names of modules in strings.

`pyproject.toml` holds the floors (`[tool.importlinter]`), and `make lint` runs import-linter.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.backend_free

ROOT = Path(__file__).parents[1]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
LAYERS = [layer.split(" | ") for layer in CONFIG["contracts"][0]["layers"]]
FLOOR = {module: -height for height, layer in enumerate(LAYERS) for module in layer}
FLOOR["noterl.callbacks"] = FLOOR.pop("callbacks")


def module_of(path: Path) -> str:
    """Return the import name of a file; `callbacks/` is imported as `noterl.callbacks`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "noterl" else ("noterl", *parts))


def floor_of(module: str) -> int | None:
    """Return the height of a module's floor; None for `noterl` itself and for modules of other packages."""
    return FLOOR.get(".".join(module.split(".")[:2]))


def is_module_name(value: object) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"noterl\.[\w.]+", value)) and floor_of(value) is not None


def targets(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and target of each import of the catalogue, and of each string that names a module of noterl."""
    tree = ast.parse(text)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) and node.body
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.startswith("noterl.callbacks"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("noterl"):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from ((node.lineno, name) for name in names if name.startswith("noterl.callbacks"))
        elif isinstance(node, ast.Constant) and id(node) not in docstrings and is_module_name(node.value):
            yield node.lineno, node.value


def violations(module: str, text: str) -> list[str]:
    """Return the imports of a module that run upwards or sideways."""
    own, package = floor_of(module), module.split(".")[:2]
    if own is None:
        return []
    return [
        f"{module}:{line}: {target}"
        for line, target in targets(text)
        if target.split(".")[:2] != package and (floor_of(target) or 0) >= own
    ]


def library() -> list[Path]:
    return sorted([*(ROOT / "noterl").rglob("*.py"), *(ROOT / "callbacks").rglob("*.py")])


def test_every_module_lies_on_a_floor() -> None:
    outside = {module_of(path) for path in library() if floor_of(module_of(path)) is None}
    assert outside <= {"noterl", "noterl.__main__"}


def test_lazy_imports_run_down_the_floors() -> None:
    found = [one for path in library() for one in violations(module_of(path), path.read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "from noterl.callbacks import EarlyStopping",
        "def f():\n    import noterl.callbacks.checkpoint",
        'HOMES = {"PPO": "noterl.agents.ppo"}',
        'import_module("noterl.training.loop")',
    ],
)
def test_planted_upward_import_is_found(text: str) -> None:
    assert violations("noterl.replay.replay", text)


@pytest.mark.parametrize("text", ['"""See noterl.agents.ppo."""', 'NAME = "noterl.utils.files"', "import noterl"])
def test_other_text_is_ignored(text: str) -> None:
    assert not violations("noterl.replay.replay", text)


def test_at_most_19_modules_lie_directly_in_noterl() -> None:
    modules = {path.stem for path in (ROOT / "noterl").glob("*.py")} - {"__init__", "__main__"}
    assert len(modules) <= 19

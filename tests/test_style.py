"""Checks of the coding rules in CONTRIBUTING.md, over every Python file of the project.

Each check is a function that receives a file and returns complaints. `PLANTED` shows that each check can fail: it holds
files that break the rule and similar files that keep it.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

pytestmark = pytest.mark.backend_free

ROOT = Path(__file__).parents[1]
FOLDERS = ("noterl", "callbacks", "tests", "benchmarks", "examples")

EVENTS = re.compile(r"on_(train|episode|batch|evaluate)_(begin|end)|on_exception")
FRAMEWORKS = {"tensorflow", "jax", "jaxlib", "torch"}
BANNED_NAMES = re.compile(r"(nb_|n_obs|obs_|done_).*|.*_(obs|done)|obs|done|dones|s_|s_next|ob|acs?|rew")
DISPATCHERS = (
    "noterl/training/loop.py",
    "noterl/learning/runner.py",
    "noterl/callback.py",
    "noterl/training/keras_adapter.py",
    "callbacks/adapt.py",
)
# Files that handle losses and other results of updates.
DEVICE_VALUES = (
    "noterl/training/loop.py",
    "noterl/learning/runner.py",
    "noterl/history.py",
    "noterl/losses.py",
    "noterl/agents/",
    "callbacks/",
)
# These may take more than eight arguments: the hyperparameters of an algorithm, the settings of all algorithms, and the
# options of a command.
WIDE_SIGNATURES = ("__init__", "compile", "compile_updates", "fit", "play", "animate", "tune")


@dataclass(frozen=True)
class File:
    """A Python file: its path from the root, with slashes, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    @property
    def library(self) -> bool:
        return self.path.startswith(("noterl/", "callbacks/"))

    @property
    def algorithm(self) -> bool:
        return self.path.startswith("noterl/agents/") and not self.path.endswith(("__init__.py", "actor_critic.py"))

    @property
    def backend(self) -> bool:
        return self.path.startswith("noterl/backends/")


def _import_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run when the module is imported, so no bodies of functions and no `TYPE_CHECKING` blocks."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _import_time_nodes(child)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _calls(file: File, match: Callable[[ast.expr], bool]) -> list[int]:
    return [node.lineno for node in ast.walk(file.tree) if isinstance(node, ast.Call) and match(node.func)]


def one_dispatcher(file: File) -> list[str]:
    """Only the files in `DISPATCHERS` fire events; a callback may also call the event of its base class."""

    def fires(function: ast.expr) -> bool:
        if not isinstance(function, ast.Attribute) or not EVENTS.fullmatch(function.attr):
            return False
        return not ast.unparse(function.value).startswith("super()")

    if not file.library or file.path in DISPATCHERS:
        return []
    return [f"{line}: fires an event outside {', '.join(DISPATCHERS)}" for line in _calls(file, fires)]


def bound_once(file: File) -> list[str]:
    """The training loop calls neither `hasattr` nor `locals`."""
    if file.path != "noterl/training/loop.py":
        return []
    lines = _calls(file, lambda function: isinstance(function, ast.Name) and function.id in ("hasattr", "locals"))
    return [f"{line}: hasattr or locals in the loop" for line in lines]


def scalars_cross_once(file: File) -> list[str]:
    """Results of an update leave the device through the backend's `fetch`.

    Only tensors of the frameworks have `.numpy()`, so no file outside the backends may call it. NumPy arrays have
    `.item()` too, so it is banned only in files that handle results of updates.
    """
    if not file.library or file.backend:
        return []
    refused = {"numpy", "item"} if file.path.startswith(DEVICE_VALUES) else {"numpy"}
    lines = _calls(file, lambda function: isinstance(function, ast.Attribute) and function.attr in refused)
    return [f"{line}: .item() or .numpy() outside noterl/backends" for line in lines]


def frameworks_are_leaves(file: File) -> list[str]:
    """Only the backends import a framework; a callback that needs one imports it inside a function."""
    if not file.library or file.backend:
        return []
    nodes = ast.walk(file.tree) if file.path.startswith("noterl/") else _import_time_nodes(file.tree)
    return [
        f"{node.lineno}: imports {name} outside noterl/backends"
        for node in nodes
        for name in _imported(node)
        if name.split(".")[0] in FRAMEWORKS
    ]


def skipped_without_framework(file: File) -> list[str]:
    """A test that imports a framework or its backend calls `pytest.importorskip` first: CI tests with one framework."""
    if not file.path.startswith("tests/") or "pytest.importorskip(" in file.text:
        return []
    return [
        f"{node.lineno}: imports {name} without pytest.importorskip"
        for node in _import_time_nodes(file.tree)
        for name in _imported(node)
        if name.removeprefix("noterl.backends.").split(".")[0] in FRAMEWORKS
    ]


def algorithms_read_as_papers(file: File) -> list[str]:
    """An algorithm's file names its paper and the differences from it, and has at most 250 lines."""
    if not file.algorithm:
        return []
    docstring = ast.get_docstring(file.tree) or ""
    complaints = [f"1: module docstring without {word}" for word in ("Paper:", "Differs:") if word not in docstring]
    lines = file.text.count("\n")
    return complaints + [f"{lines}: {lines} lines, at most 250 for an algorithm"] * (lines > 250)


def narrow_signatures(file: File) -> list[str]:
    """Hyperparameters are keyword-only, and only the functions of `WIDE_SIGNATURES` take more than eight arguments."""
    if not file.library:
        return []
    complaints = []
    for function in file.functions:
        arguments = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
        if function.name == "__init__" and file.algorithm and len(arguments) > 1:
            complaints.append(f"{function.lineno}: positional arguments after the environment")
        count = len(arguments) + len(function.args.kwonlyargs)
        if count > 8 and function.name not in WIDE_SIGNATURES:
            complaints.append(f"{function.lineno}: {function.name} takes {count} arguments, at most 8")
    return complaints


def short(file: File) -> list[str]:
    """Functions have at most 50 lines without their docstring."""
    complaints = []
    for function in file.functions:
        body = function.body[1:] if ast.get_docstring(function) else function.body
        size = body[-1].end_lineno - body[0].lineno + 1 if body else 0
        if size > 50:
            complaints.append(f"{function.lineno}: {function.name} has {size} lines, at most 50")
    return complaints


def full_words(file: File) -> list[str]:
    """Names in the library use the words observation, reward, terminated, truncated and num_, not abbreviations."""
    if not file.library:
        return []
    complaints = []
    for node in ast.walk(file.tree):
        names = {
            ast.arg: lambda node: node.arg,
            ast.Name: lambda node: node.id if isinstance(node.ctx, ast.Store) else "",
            ast.Attribute: lambda node: node.attr if isinstance(node.ctx, ast.Store) else "",
            ast.FunctionDef: lambda node: node.name,
            ast.ClassDef: lambda node: node.name,
        }
        name = names[type(node)](node) if type(node) in names else ""
        if BANNED_NAMES.fullmatch(name.lower().lstrip("_")):
            complaints.append(f"{node.lineno}: the name {name}")
    return complaints


def no_banners(file: File) -> list[str]:
    """No comment is a section banner."""
    lines = enumerate(file.text.splitlines(), 1)
    return [f"{number}: a section banner" for number, line in lines if re.match(r"\s*#\s*[-=#*~]{3,}", line)]


def no_global_state(file: File) -> list[str]:
    """No mutable default, and no call of NumPy's global generator."""
    complaints = []
    for function in file.functions:
        defaults = [*function.args.defaults, *filter(None, function.args.kw_defaults)]
        if any(isinstance(default, ast.List | ast.Dict | ast.Set | ast.ListComp) for default in defaults):
            complaints.append(f"{function.lineno}: {function.name} has a mutable default")
    allowed = r"(default_rng|Generator|BitGenerator|SeedSequence|PCG64\w*|Philox|MT19937|RandomState|get_state)"
    pattern = re.compile(rf"(np|numpy)\.random\.(?!{allowed}$)\w+")
    lines = _calls(file, lambda function: bool(pattern.fullmatch(ast.unparse(function))))
    return complaints + [f"{line}: draws from NumPy's global generator" for line in lines]


CHECKS = (
    one_dispatcher,
    bound_once,
    scalars_cross_once,
    frameworks_are_leaves,
    skipped_without_framework,
    algorithms_read_as_papers,
    narrow_signatures,
    short,
    full_words,
    no_banners,
    no_global_state,
)

PAPER = '"""DQN.\n\nPaper: one.\nDiffers: nowhere.\n"""\n'
FUNCTION = "def long():\n" + "    x = 1\n"
DOCUMENTED = 'def long():\n    """' + "Say.\n\n    " * 40 + '"""\n'
EIGHT = "one, two, three, four, five, six, seven, eight"

# For each check: files that break the rule, and files that do not.
PLANTED: dict[Callable[[File], list[str]], tuple[list[tuple[str, str]], list[tuple[str, str]]]] = {
    one_dispatcher: (
        [("noterl/agent.py", "callback.on_train_begin({})"), ("callbacks/a.py", "self.other.on_exception(e)")],
        [("noterl/training/loop.py", "callback.on_train_begin({})"), ("callbacks/a.py", "super().on_train_end(logs)")],
    ),
    bound_once: (
        [("noterl/training/loop.py", "hasattr(x, 'y')"), ("noterl/training/loop.py", "print(locals())")],
        [("noterl/agent.py", "hasattr(x, 'y')")],
    ),
    scalars_cross_once: (
        [("noterl/agents/a.py", "loss.item()"), ("noterl/training/evaluation.py", "loss.numpy()")],
        [("noterl/backends/torch/core.py", "loss.item()"), ("noterl/training/evaluation.py", "action.item()")],
    ),
    frameworks_are_leaves: (
        [
            ("noterl/a.py", "def f():\n    import torch"),
            ("noterl/a.py", "from jax import numpy"),
            ("callbacks/a.py", "import tensorflow.summary"),
        ],
        [("noterl/backends/jax/core.py", "import jax"), ("callbacks/a.py", "def f():\n    import torch")],
    ),
    skipped_without_framework: (
        [
            ("tests/a.py", "import torch"),
            ("tests/a.py", "from noterl.backends.torch.updates import EAGER_UPDATES"),
        ],
        [
            ("tests/a.py", "torch = pytest.importorskip('torch')\nfrom noterl.backends.torch import updates"),
            ("tests/a.py", "def f():\n    import torch"),
            ("noterl/backends/jax/core.py", "import jax"),
        ],
    ),
    algorithms_read_as_papers: (
        [
            ("noterl/agents/a.py", '"""Paper: one."""'),
            ("noterl/agents/a.py", '"""Differs: nowhere."""'),
            ("noterl/agents/a.py", PAPER + "x = 1\n" * 246),
        ],
        [("noterl/agents/a.py", PAPER + "x = 1\n" * 245), ("noterl/agents/__init__.py", "")],
    ),
    narrow_signatures: (
        [
            ("noterl/agents/a.py", "class A:\n    def __init__(self, env, gamma=0.99): ..."),
            ("noterl/a.py", f"def f({EIGHT}, *, nine=9): ..."),
        ],
        [
            ("noterl/agents/a.py", "class A:\n    def __init__(self, env, *, gamma=0.99): ..."),
            ("noterl/a.py", f"class A:\n    def f(self, {EIGHT}): ..."),
            ("noterl/a.py", f"class A:\n    def fit(self, {EIGHT}, nine): ..."),
        ],
    ),
    short: (
        [("tests/a.py", FUNCTION + "    x = 1\n" * 50)],
        [("noterl/a.py", DOCUMENTED + "    x = 1\n" * 49 + "    return 1\n")],
    ),
    full_words: (
        [
            ("noterl/a.py", "def f(done): ..."),
            ("noterl/a.py", "next_obs = 1"),
            ("noterl/a.py", "self.nb_steps = 1"),
            ("callbacks/a.py", "for s_ in x: ..."),
        ],
        [("noterl/a.py", "observation = env.nb_steps; condone = obscure = 1"), ("tests/a.py", "done = 1")],
    ),
    no_banners: ([("noterl/a.py", "x = 1\n# ---- parts ----\n")], [("noterl/a.py", "# a - b --- c\nx = 1\n")]),
    no_global_state: (
        [
            ("tests/a.py", "def f(*, x={}): ..."),
            ("noterl/a.py", "def f(x=[]): ..."),
            ("benchmarks/a.py", "np.random.uniform(3)"),
            ("noterl/a.py", "numpy.random.seed(3)"),
        ],
        [("noterl/a.py", "def f(x=()): ...\nnp.random.default_rng(3).uniform(3)")],
    ),
}


def tree_files() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_file_keeps_the_rule(check: Callable[[File], list[str]]) -> None:
    complaints = []
    for path in tree_files():
        file = File(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        complaints += [f"{file.path}:{complaint}" for complaint in check(file)]
    assert not complaints, f"{check.__doc__}\n" + "\n".join(complaints)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_check_complains_of_broken_files_only(check: Callable[[File], list[str]]) -> None:
    broken, kept = PLANTED[check]
    for path, text in broken:
        assert check(File(path, text)), f"{check.__name__} passes over {path}: {text[:80]!r}"
    for path, text in kept:
        assert not check(File(path, text)), f"{check.__name__} complains of {path}: {text[:80]!r}"


def test_checks_read_the_whole_tree() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in tree_files()}
    assert {"noterl/__init__.py", "callbacks/__init__.py", "tests/test_style.py"} <= found


def packages_in(root: Path) -> set[str]:
    """Return the import names of the packages under `root`; the folder `callbacks` is `noterl.callbacks`."""
    homes = [path.parent.relative_to(root) for path in (root / "noterl").rglob("__init__.py")]
    homes += [Path("noterl") / path.parent.relative_to(root) for path in (root / "callbacks").rglob("__init__.py")]
    return {".".join(home.parts) for home in homes}


def test_setuptools_lists_every_package() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert setuptools["packages"] == sorted(packages_in(ROOT))
    mapped = {name.removeprefix("noterl."): path for name, path in setuptools["package-dir"].items()}
    assert mapped == {"callbacks": "callbacks", "callbacks.support": "callbacks/support"}


def test_unlisted_package_is_found(tmp_path: Path) -> None:
    for home in ("noterl", "noterl/new", "callbacks", "callbacks/new", "noterl/data"):
        (tmp_path / home).mkdir()
        if home != "noterl/data":
            (tmp_path / home / "__init__.py").touch()
    assert packages_in(tmp_path) == {"noterl", "noterl.new", "noterl.callbacks", "noterl.callbacks.new"}


def test_every_python_folder_of_the_library_is_a_package() -> None:
    homes = {path.parent for folder in ("noterl", "callbacks") for path in (ROOT / folder).rglob("*.py")}
    assert [home for home in sorted(homes) if not (home / "__init__.py").exists()] == []

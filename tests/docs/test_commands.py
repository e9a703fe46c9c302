"""The `noterl` commands in README.md and docs/ run as they are written, with short budgets.

The commands of a page run in order, in one empty folder. Other commands in the blocks, such as `pip`, do not run.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from noterl.cli import main

pytestmark = [
    pytest.mark.backends("jax"),
    pytest.mark.filterwarnings("ignore:fit ended without a gradient update"),
    pytest.mark.filterwarnings("ignore:more than half of the machine's memory"),
]

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/command_line.md", "docs/migration/xagents.md")
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Options that replace those of a line, by command.
SHORT = {"train": ["--steps", "40", "--verbose", "0"], "play": ["--max-steps", "3"], "evaluate": ["--episodes", "2"]}
# Packages that environments and other arguments need.
NEEDS = {
    "ale_py": "ale_py",
    "AtariPreprocessing": "cv2",
    "BipedalWalker": "Box2D",
    "parquet": "pyarrow",
    ".mp4": "imageio_ffmpeg",
}


def commands(page: str) -> list[list[str]]:
    """Return the arguments of each `noterl` command of a page."""
    blocks = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("noterl ")]


def shortened(arguments: list[str]) -> list[str]:
    """Return the arguments with a short budget; each pattern of logs becomes that of the first run's."""
    if arguments[0] == "compare":
        arguments = [argument.replace("runs/*/", "runs/first*/") for argument in arguments]
    return arguments if "--help" in arguments else [*arguments, *SHORT.get(arguments[0], [])]


def is_supported(arguments: list[str], missing: set[str]) -> bool:
    return not any(word in argument for argument in arguments for word in missing)


@pytest.mark.parametrize("page", PAGES)
def test_commands_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    missing = {word for word, package in NEEDS.items() if not is_installed(package)}
    found = commands(page)
    assert len(found) >= 2
    for arguments in found:
        if is_supported(arguments, missing) and not (missing and arguments[0] == "play"):
            assert main(shortened(arguments)) == 0, shlex.join(arguments)
    assert os.listdir(tmp_path)


def is_installed(package: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(package) is not None


def test_each_line_of_xagents_has_one_of_noterl() -> None:
    text = (ROOT / "docs/migration/xagents.md").read_text(encoding="utf-8")
    section = text.partition("## The commands of its README")[2].partition("\n## ")[0]
    pairs = re.findall(r"# xagents (\w+) (\w+).*?\nnoterl (\w+) (\S+)", section, re.DOTALL)
    assert len(pairs) == section.count("# xagents") >= 10
    for command, agent, ours, argument in pairs:
        assert command == ours and agent in argument

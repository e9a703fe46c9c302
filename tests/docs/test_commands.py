"""The `noterl` commands in README.md and docs/ run as they are written, with short budgets.

The commands of a page run in order, in an empty folder. All pages run in one process, apart from other tests: the
emulator of Atari games crashes in a process that has imported some of their packages. Other commands in the blocks,
such as `pip`, do not run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.backends("torch"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
# Pages with Atari games come first.
PAGES = ("docs/atari.md", "docs/migration/xagents.md", "README.md", "docs/command_line.md", "docs/tuning.md")
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Options that replace those of a line, by command.
SHORT = {"train": ["--steps", "200", "--verbose", "0"], "play": ["--max-steps", "3"], "evaluate": ["--episodes", "2"]}
SHORT["tune"] = ["--steps", "20", "--trials", "1", "--jobs", "1", "--seeds-per-trial", "1", "--evaluations", "1"]
SHORT["tune"] += ["--episodes", "1", "--verbose", "0"]
SHORT["publish"] = SHORT["evaluate"]
# Packages that environments and other arguments need.
NEEDS = {
    "atari:": "ale_py",
    "BipedalWalker": "Box2D",
    "parquet": "pyarrow",
    ".mp4": "imageio_ffmpeg",
}


# Runs the commands of each page up to the first that fails, and writes the failures by page. A trial of `tune` runs in
# a thread: the tests of `noterl.tune` start its processes, each of which imports everything again.
PROGRAM = """
import json, multiprocessing, os, sys, threading, traceback
from pathlib import Path
from types import SimpleNamespace
from noterl.cli import main
from noterl.tune import search

def start_thread(target, *arguments, name):
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=target, args=(theirs, *arguments), name=name, daemon=True)
    thread.start()
    running = {"pid": os.getpid(), "kill": lambda: None, "join": thread.join, "is_alive": thread.is_alive}
    return SimpleNamespace(**running), ours

def failure(arguments):
    try:
        return f"exit code {code}" if (code := main(arguments)) != 0 else ""
    except (Exception, SystemExit):
        return traceback.format_exc()

search.spawn = start_thread
root, failures = Path.cwd(), {}
for page, commands in json.loads(sys.argv[1]).items():
    folder = root / page.replace("/", "-")
    folder.mkdir()
    os.chdir(folder)
    found = (f"noterl {' '.join(each)}: {error}" for each in commands if (error := failure(each)))
    failures[page] = next(found, "")
(root / "failures.json").write_text(json.dumps(failures))
"""


def commands(page: str) -> list[list[str]]:
    """Return the arguments of each `noterl` command of a page."""
    blocks = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("noterl ")]


def shortened(arguments: list[str]) -> list[str]:
    """Return the arguments with a short budget."""
    arguments = list(arguments)
    if arguments[0] == "compare":  # the logs of the other runs may hold no complete episode
        arguments = [argument.replace("runs/*/", "runs/first*/") for argument in arguments]
    if arguments[0] == "tune" and "atari:" in str(arguments):  # an evaluation would play a whole game of Pong
        arguments[arguments.index("--env") + 1] = "CartPole-v1"
    return arguments if "--help" in arguments else [*arguments, *SHORT.get(arguments[0], [])]


def is_supported(arguments: list[str], missing: set[str]) -> bool:
    """Return whether a command needs no missing package, and no run of a command that does."""
    return not missing or not (arguments[0] == "play" or any(word in each for each in arguments for word in missing))


@pytest.mark.parametrize("page", PAGES)
def test_training_has_a_budget(page: str) -> None:
    budgets = {"--steps", "--episodes", "--config", "--help", "--early-stopping.criterion"}
    trained = [each for each in commands(page) if each[0] == "train"]
    assert [each for each in trained if not budgets & {word.partition("=")[0] for word in each}] == []


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run the commands of all pages and return the failures by page."""
    missing = {word for word, package in NEEDS.items() if importlib.util.find_spec(package) is None}
    runnable = {page: [shortened(each) for each in commands(page) if is_supported(each, missing)] for page in PAGES}
    folder = tmp_path_factory.mktemp("commands")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SDL_VIDEODRIVER": "dummy"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(runnable)]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2_000:]
    found: dict[str, str] = json.loads((folder / "failures.json").read_text())
    return found


@pytest.mark.parametrize("page", PAGES)
def test_commands_run(page: str, failures: dict[str, str]) -> None:
    assert len(commands(page)) >= 2
    assert not failures[page], failures[page]


def test_each_line_of_xagents_has_one_of_noterl() -> None:
    text = (ROOT / "docs/migration/xagents.md").read_text(encoding="utf-8")
    section = text.partition("## The commands of its README")[2].partition("\n## ")[0]
    pairs = re.findall(r"# xagents (\w+) (\w+).*?\nnoterl (\w+) (\S+)", section, re.DOTALL)
    assert len(pairs) == section.count("# xagents") >= 10
    for command, agent, ours, argument in pairs:
        assert command == ours and agent in argument

"""Agents of the user on the command line: `module:Class`, `--import`, and `best.toml` of a search."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import noterl
from noterl.cli import main
from noterl.tune.search import Result, write_best

pytestmark = [pytest.mark.backends("torch"), pytest.mark.filterwarnings("ignore:fit ended without a gradient update")]

# The annotations are classes and not text, and one argument has none.
MODULE = '''
import noterl

class Small{number}(noterl.DQN):
    """A small agent for the command line."""

    def __init__(self, env, *, width: int = 8, sizes=(8, 8), fast=True, **options):
        super().__init__(env, hidden=(width,), **options)
        self.width = width

@noterl.register
class Fixed{number}(noterl.policies.GreedyQPolicy):
    """A policy of the user."""

NUMBER = 3
'''
NUMBERS = itertools.count()
RUN = ["--env", "CartPole-v1", "--steps", "60", "--verbose", "0", "--seed", "1", "--quiet"]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module in the working folder; each test has another one."""
    number = next(NUMBERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / f"own_agents_{number}.py").write_text(MODULE.format(number=number))
    return f"own_agents_{number}"


def agent_of(module: str) -> str:
    return f"{module}:Small{module.rpartition('_')[2]}"


def test_own_agent_trains_and_its_run_is_repeated(module: str) -> None:
    name = agent_of(module)
    assert main(["train", name, *RUN, "--width", "4", "--no-fast", "--out", "first"]) == 0
    table = tomllib.loads(Path("first/run.toml").read_text())
    assert (table["agent"], table["width"], table["fast"]) == (name, 4, False)
    assert main(["train", "--config", "first/run.toml", "--out", "second", "--quiet"]) == 0
    agents = [
        noterl.load(f"{folder}/agent.noterl", custom_objects=vars(sys.modules[module]))
        for folder in ("first", "second")
    ]
    assert [agent.width for agent in agents] == [4, 4] and agents[0].steps == agents[1].steps == 60


def test_folder_of_a_run_has_the_name_of_the_class(module: str) -> None:
    assert main(["train", agent_of(module), *RUN]) == 0
    assert Path("runs", f"{agent_of(module).partition(':')[2]}-CartPole-v1-1", "agent.noterl").exists()


def test_evaluate_and_play_import_the_module_of_a_class(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", agent_of(module), *RUN, "--out", "run"]) == 0
    assert main(["evaluate", "run", "--episodes", "1", "--json"]) == 1
    assert "--import MODULE" in capsys.readouterr().err
    assert main(["evaluate", "run", "--import", module, "--episodes", "1", "--json"]) == 0
    assert "reward_mean" in capsys.readouterr().out
    pytest.importorskip("pygame")
    assert main(["play", "run", f"--import={module}", "--max-steps", "2", "--video", "a.gif", "--quiet"]) == 0
    assert Path("a.gif").exists()


def test_values_of_options_are_classes_of_imported_modules(module: str) -> None:
    policy = f"Fixed{module.rpartition('_')[2]}()"
    options = ["--hidden", "4", "--policy", policy, "--import", module, "--out", "first"]
    from noterl.cli.values import known_classes

    known_classes.cache_clear()  # a process of the command imports the module before
    assert main(["train", "dqn", *RUN, *options]) == 0
    table = tomllib.loads(Path("first/run.toml").read_text())
    assert (table["import"], table["policy"]) == ([module], policy)
    assert main(["train", "--config", "first/run.toml", "--out", "second", "--quiet"]) == 0


def test_best_options_of_a_search_train_an_own_agent(module: str) -> None:
    sys.path.append(str(Path.cwd()))
    importlib.import_module(module)
    agent = getattr(sys.modules[module], agent_of(module).partition(":")[2])
    policy = getattr(sys.modules[module], f"Fixed{module.rpartition('_')[2]}")()
    best = {"width": 4, "sizes": (3, 4), "policy": policy}
    write_best(Result(best=best, value=1.0, default=0.5, folder=Path(), study=None), agent, "CartPole-v1", 60, 1)
    table = tomllib.loads(Path("best.toml").read_text())
    assert table["agent"] == agent_of(module) and table["import"] == [module]
    from noterl.cli.values import known_classes

    known_classes.cache_clear()  # a process of the command imports the module before
    assert main(["train", "--config", "best.toml", "--out", "run", "--quiet"]) == 0


def test_search_takes_an_own_agent(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", agent_of(module), "--help"]) == 0
    assert "--width" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nowhere_at_all:Agent", *RUN], "no module 'nowhere_at_all'"),
        (["train", "{module}:Smal", *RUN], "did you mean 'Small"),
        (["train", "{module}:NUMBER", *RUN], "no subclass of noterl.Agent 'NUMBER'"),
        (["train", "dqn", *RUN, "--import", "nowhere_at_all"], "--import: there is no module 'nowhere_at_all'"),
        (["train", "dqn", *RUN, "--import"], "--import must be followed by the name of a module"),
        (["train", *RUN], "module:Class"),
    ],
)
def test_wrong_names_are_errors(
    module: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([each.format(module=module) for each in arguments]) == 2
    assert message in capsys.readouterr().err


def test_installed_command_finds_modules_of_the_working_folder(module: str) -> None:
    """Its own folder is the first in the path of the installed command, not the working folder."""
    script = "import sys; sys.path[0] = '/'; from noterl.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", script, "train", agent_of(module), "--help"]
    root = Path(__file__).parents[2]
    result = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(root)})
    assert result.returncode == 0 and "--width" in result.stdout, result.stderr

"""`noterl --help`, `agents`, `environments`, `callbacks`; unknown names; TOML files."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import noterl
from noterl.cli import config, main
from noterl.cli.errors import UsageError
from noterl.cli.options import cli_name
from noterl.tune.toml import toml_text

pytestmark = pytest.mark.backend_free

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run([sys.executable, "-m", "noterl", *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"]])
def test_help_fits_a_screen(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80


def test_commands_run_in_a_process() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout.strip()) == (0, f"noterl {noterl.__version__}")
    result = run()
    assert (result.returncode, result.stdout) == (2, "") and "usage: noterl" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["trian"], "'train'"), (["train", "pppo"], "'ppo'"), (["train"], "dqn"), (["train", "--config"], "--config"),
        (["environments", "CartPoll"], "CartPoll"), (["agents", "dqn"], "train"),
    ],
)  # fmt: skip
def test_wrong_command_line_gives_code_2(
    arguments: list[str], suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("noterl: error: ") and suggestion in captured.err and captured.out == ""


@pytest.mark.parametrize("command", ["tune", "agents", "presets", "environments"])
def test_each_command_has_a_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out


def test_agents_lists_all_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agents"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name.replace('_', '-')}" in text for name in noterl._AGENTS)
    assert "Proximal policy optimization" in text


def test_environments_are_filtered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["environments", "cartpole", "v1"]) == 0
    assert "CartPole-v1" in (text := capsys.readouterr().out) and "CartPole-v0" not in text
    assert main(["environments", "bitflip"]) == 0
    assert "noterl.envs:BitFlip" in capsys.readouterr().out


def test_names_of_callbacks() -> None:
    names = {"ReduceLROnPlateau": "reduce-lr-on-plateau", "ESSAdapt": "ess-adapt", "MLflowLogger": "mlflow"}
    assert {name: cli_name(name) for name in names} == names


def test_toml_is_read_back(tmp_path: Path) -> None:
    table = {
        "text": 'quotes " and \\ and \n \x7f ü', "number": 1e-05, "count": 3, "flag": True, "list": [64, 64],
        "far": float("inf"), "inline": ["a", "b"], "csv": {"path": "a.csv", "append": False}, "evaluate": {},
    }  # fmt: skip
    config.write_config(tmp_path / "run.toml", table, "a comment")
    assert config.read_config(tmp_path / "run.toml") == table
    assert tomllib.loads(toml_text(table)) == table


def test_damaged_toml_raises_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("a = 1\nb = \n")
    with pytest.raises(UsageError, match=r"run\.toml.*line 2"):
        config.read_config(tmp_path / "run.toml")


@pytest.mark.parametrize(
    "text", ["a=" + "[" * 60_000, "a=" + "[" * 150 + "]" * 150, "a" + ".a" * 200 + "=1", "#\n" * 10**5]
)
def test_config_that_is_nested_or_long_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(UsageError, match=r"run\.toml"):
        config.read_config(tmp_path / "run.toml")

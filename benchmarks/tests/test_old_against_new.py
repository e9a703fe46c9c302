"""benchmarks/old_against_new.py: versions, the runs of a pair, the ratio and a real pair."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from benchmarks import old_against_new
from benchmarks.processes import ROOT

pytestmark = pytest.mark.backend_free

FOLDERS = {"old": Path("/old"), "new": Path("/new")}


class FakeProcesses:
    """Replaces the processes. The new version is 1.5 times as fast, and its episodes differ in pair 2."""

    def __init__(self, steady: bool = True) -> None:
        self.sides: list[tuple[str, str]] = []
        self.steady = steady

    def __call__(self, words: list[str], variables: dict[str, str]) -> dict[str, Any]:
        side, pair = variables["PYTHONPATH"].removeprefix("/"), int(words[-2])
        self.sides.append((side, words[-3]))
        speed = 1000.0 * (pair + 1) * (1.5 if side == "new" else 1.0)
        return {
            "steps": int(words[-1]),
            "steps_per_second": speed,
            "steady_steps_per_second": 2 * speed if self.steady else None,
            "returns": side if pair == 2 else "same",
            "files": [f"/{side}/callbacks/log.py", f"/{side}/noterl/__init__.py"],
        }


def test_runs_of_a_pair_take_place_at_the_same_time() -> None:
    processes = FakeProcesses()
    both_run = threading.Barrier(2, timeout=60)

    def run(words: list[str], variables: dict[str, str]) -> dict[str, Any]:
        both_run.wait()
        return processes(words, variables)

    arguments = old_against_new.parse(["old", "--pairs", "3", "--tasks", "cartpole-ppo", "pendulum-sac"])
    result = old_against_new.compare(arguments, FOLDERS, run)
    pairs = [(task, pair) for task in ("cartpole-ppo", "pendulum-sac") for pair in range(3)]
    expected = [(task, pair, side) for task, pair in pairs for side in ("old", "new")]
    assert [(run["task"], run["pair"], run["side"]) for run in result["runs"]] == expected
    assert sorted(processes.sides) == sorted((side, task) for task, _, side in expected)


def test_result_holds_ratios_and_the_pairs_with_the_same_episodes() -> None:
    arguments = old_against_new.parse(["old", "--pairs", "5", "--tasks", "pendulum-sac", "--backend", "torch"])
    result = old_against_new.compare(arguments, FOLDERS, FakeProcesses())
    expected = {"ratio": 1.5, "low": 1.5, "high": 1.5}
    assert result["summary"]["pendulum-sac"] == {
        "speeds": {
            "whole run": {"old": 3000, "new": 4500, **expected},
            "after 10 %": {"old": 6000, "new": 9000, **expected},
        },
        "pairs": 5,
        "same_episodes": 4,
    }
    lines = old_against_new.table(result).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[-2:]]
    ratio = "1.50 (1.50 to 1.50)"
    assert cells[0] == ["pendulum-sac", "whole run", "3,000", "4,500", ratio, "4 of 5"]
    assert cells[1] == ["pendulum-sac", "after 10 %", "6,000", "9,000", ratio, "4 of 5"]


def test_run_that_is_too_short_has_no_steady_speed() -> None:
    arguments = old_against_new.parse(["old", "--pairs", "1", "--tasks", "pendulum-sac"])
    result = old_against_new.compare(arguments, FOLDERS, FakeProcesses(steady=False))
    assert list(result["summary"]["pendulum-sac"]["speeds"]) == ["whole run"]


def test_run_with_another_noterl_is_refused() -> None:
    def run(words: list[str], variables: dict[str, str]) -> dict[str, Any]:
        return {**FakeProcesses()(words, variables), "files": ["/old/noterl/__init__.py", "/new/callbacks/log.py"]}

    with pytest.raises(RuntimeError, match="old run did not import all of noterl"):
        old_against_new.compare(old_against_new.parse(["old", "--pairs", "1"]), FOLDERS, run)


def test_command_runs_the_noterl_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "noterl").mkdir()
    (tmp_path / "noterl" / "__init__.py").write_text("raise SystemExit('imported')")
    with pytest.raises(RuntimeError, match="imported"):
        old_against_new.execute(*old_against_new.command(tmp_path, "jax", "pendulum-sac", 0, 1))


def test_folder_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "noterl").mkdir()
    (tmp_path / "noterl" / "__init__.py").touch()
    with old_against_new.checkout(str(tmp_path)) as folder:
        assert folder == tmp_path.resolve()
    assert (tmp_path / "noterl").exists()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the git repository")
def test_revision_is_checked_out_and_removed() -> None:
    with old_against_new.checkout("HEAD") as folder:
        assert (folder / "noterl" / "__init__.py").exists()
        assert str(folder) in old_against_new.git("worktree", "list")
    assert not folder.exists()
    assert str(folder) not in old_against_new.git("worktree", "list")


def test_unknown_version_is_refused() -> None:
    with (
        pytest.raises(ValueError, match="version must be a folder"),
        old_against_new.checkout("neither-folder-nor-revision"),
    ):
        pass


@pytest.mark.parametrize("words", [["old", "--pairs", "0"], ["old", "--steps", "0"], ["old", "--tasks", "bitflip"], []])
def test_bad_arguments_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        old_against_new.parse(words)
    assert "error" in capsys.readouterr().err


def test_result_is_stored_only_with_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(words: list[str], variables: dict[str, str]) -> dict[str, Any]:
        run = FakeProcesses()(words, {**variables, "PYTHONPATH": "/old"})
        return {**run, "files": [f"{variables['PYTHONPATH']}/noterl/__init__.py"]}

    monkeypatch.setattr(old_against_new.compare, "__defaults__", (run,))
    words = [str(ROOT), "--pairs", "1", "--tasks", "cartpole-dqn", "--backend", "jax"]
    old_against_new.main(words)
    assert "stored" not in capsys.readouterr().out
    old_against_new.main([*words, "--out", str(tmp_path / "result.json")])
    assert json.loads((tmp_path / "result.json").read_text())["runs"][0]["task"] == "cartpole-dqn"
    assert str(sys.executable) in old_against_new.command(ROOT, "jax", "cartpole-dqn", 0, 1)[0]

"""benchmarks/first_programs.py: which seeds it runs, when stored runs count, goals, and the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import first_programs, report
from benchmarks.first_programs import PROGRAMS, Program
from benchmarks.tests.equal_json import assert_equal_json

pytestmark = pytest.mark.backends("torch")

STORED = sorted(first_programs.FOLDER.glob("*.json"))


class FakeProcesses:
    """Replaces the processes; the return of a run is 440 plus its seed."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.settings = {"compile": {"batch_size": 64}}

    def __call__(self, words: list[str], variables: dict[str, str]) -> dict[str, Any]:
        assert variables["KERAS_BACKEND"] == "jax"
        if "--settings" in words:
            return self.settings
        self.seeds.append(int(words[words.index("--seed") + 1]))
        return {"returns": 2 * [440.0 + self.seeds[-1]], "updates": 7, "versions": {}}


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> FakeProcesses:
    processes = FakeProcesses()
    monkeypatch.setattr(first_programs, "execute", processes)
    return processes


@pytest.mark.backend_free
def test_only_missing_seeds_are_run(processes: FakeProcesses, tmp_path: Path) -> None:
    first_programs.run("cartpole-dqn", 2, "jax", tmp_path)
    assert processes.seeds == [0, 1]
    result = first_programs.run("cartpole-dqn", 4, "jax", tmp_path)
    assert processes.seeds == [0, 1, 2, 3]
    assert [one["seed"] for one in result["runs"]] == [0, 1, 2, 3]
    assert_equal_json(json.loads((tmp_path / "cartpole-dqn.json").read_text()), json.loads(json.dumps(result)))
    assert first_programs.run("cartpole-dqn", 3, "jax", tmp_path)["runs"] == json.loads(json.dumps(result["runs"]))


@pytest.mark.backend_free
def test_runs_with_other_defaults_are_replaced(processes: FakeProcesses, tmp_path: Path) -> None:
    first_programs.run("cartpole-dqn", 2, "jax", tmp_path)
    processes.settings = {"compile": {"batch_size": 32}}
    result = first_programs.run("cartpole-dqn", 1, "jax", tmp_path)
    assert processes.seeds == [0, 1, 0]
    assert (result["settings"], result["summary"]["seeds"]) == (processes.settings, 1)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("scores", "reached", "met"),
    [
        ([450.0] * 8 + [9.0] * 2, 8, True),
        ([450.0] * 7 + [449.0] * 3, 7, False),
        ([500.0] * 9, 9, None),
    ],
)
def test_goal_is_met_if_eight_of_ten_seeds_reach_it(scores: list[float], reached: int, met: bool | None) -> None:
    runs = [{"seed": seed, "returns": [score]} for seed, score in enumerate(scores)]
    summary = first_programs.summarize(PROGRAMS["cartpole-dqn"], runs)
    assert (summary["reached"], summary["met"]) == (reached, met)
    assert first_programs.summarize(Program("DQN", "CartPole-v1", 1), runs)["met"] is None


@pytest.mark.backend_free
def test_table_shows_missing_seeds(processes: FakeProcesses, tmp_path: Path) -> None:
    first_programs.main(["cartpole-dqn", "mountaincar-dqn", "--seeds", "3", "--output", str(tmp_path)])
    results = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("cartpole-dqn", "mountaincar-dqn")]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in report.first_programs_table(results).splitlines()[2:]
    ]
    goal = "450 in 80% of the seeds: seeds missing (0 of 3)"
    assert rows[0][:5] == ['`DQN("CartPole-v1")`', "50,000", "jax", "3 of 10", "441.0"]
    assert (rows[0][-1], rows[1][-1]) == (goal, "")
    first_programs.main(["cartpole-dqn", "--seeds", "10", "--output", str(tmp_path)])
    result = json.loads((tmp_path / "cartpole-dqn.json").read_text())
    assert "450 in 80% of the seeds: missed (0 of 10)" in report.first_programs_table([result])


@pytest.mark.backend_free
@pytest.mark.parametrize(("words", "message"), [(["cartpole"], "program"), (["--seeds", "0"], "--seeds")])
def test_bad_argument_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        first_programs.main(words)
    assert message in capsys.readouterr().err


@pytest.mark.backend_free
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_summary_follows_from_the_stored_runs(path: Path) -> None:
    result = json.loads(path.read_text())
    assert_equal_json(first_programs.summarize(PROGRAMS[path.stem], result["runs"]), result["summary"])
    assert len(result["runs"]) == len({one["seed"] for one in result["runs"]}) > 0


@pytest.mark.backends("jax")
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_runs_have_todays_defaults(path: Path) -> None:
    result = json.loads(path.read_text())
    assert result["settings"] == first_programs.settings(PROGRAMS[path.stem])


@pytest.mark.backends("jax")
def test_run_uses_nothing_but_defaults() -> None:
    program = Program("A2C", "CartPole-v1", 64)
    run = first_programs.train(program, 3)
    assert len(run["returns"]) == first_programs.EPISODES and run["updates"] > 0
    found = first_programs.settings(program)
    assert found["arguments"]["hidden"] == [64, 64], "arguments of the base class are included"
    assert found["compile"]["optimizer"]["class"] == "RMSprop"

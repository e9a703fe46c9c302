"""benchmarks/distribute.py: a file for each part and strategy, the tables, and the model of several processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import distribute, report, scaling_model

pytestmark = pytest.mark.backend_free

CONSTANTS = {"collect": 4e-4, "update": 5e-4, "latency": 5e-5, "bandwidth": 1e9, "bytes": 2e5}


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace the processes; the seed 1 of `learning` fails."""
    commands: list[list[str]] = []

    def execute(
        name: str, arguments: Sequence[str], *, added: dict[str, str] | None = None, launched: bool | None = None
    ) -> str:
        commands.append([name, *arguments])
        program = Path(arguments[0]).name
        if program == "learning.py":
            if arguments[2] == "1":
                raise RuntimeError("interrupted")
            result: Any = {"reached": True, "best": 500.0, "steps": 20_000, "seconds": 9.0}
        elif program == "model.py":
            units, ranks, workers, updates = map(int, arguments[2:])
            assert launched == (ranks > 1)
            own = {**CONSTANTS, "bytes": CONSTANTS["bytes"] * units / scaling_model.UNITS}
            speed = scaling_model.steps_per_second(ranks, workers, own) if updates else 1 / CONSTANTS["collect"]
            result = {"speed": speed, "bytes": own["bytes"]}
        elif program == "replica_equivalence.py":
            return "float64 {'DQN': 1e-16, 'DQN loss': 1e-7}\n"
        else:
            result = {"DQN": {"ours": [1.1] * 5, "theirs": [1.0] * 5}}
        return f"RESULT {json.dumps(result)}\n"

    monkeypatch.setattr(distribute, "execute", execute)
    return commands


def read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def test_an_interrupted_run_keeps_what_it_has(processes: list[list[str]], tmp_path: Path) -> None:
    folder = tmp_path / "distribute"
    with pytest.raises(RuntimeError, match="interrupted"):
        distribute.main(["--strategies", "ddp", "--output", str(folder)])
    assert sorted(path.stem for path in folder.iterdir()) == [
        *("equivalence-ddp", "learning-ddp", "model-ddp", "overhead-ddp"),
    ]
    assert [run["seed"] for run in read(folder / "learning-ddp.json")["runs"]] == [0]
    tables = report.distribute_tables(tmp_path)
    assert "| ddp" in tables and "1 of 1" in tables and "1.3: met" in tables and "1.0e-16" in tables


def test_a_later_run_adds_its_seeds(processes: list[list[str]], tmp_path: Path) -> None:
    arguments = ["--strategies", "ddp", "--parts", "learning", "--output", str(tmp_path)]
    distribute.main([*arguments, "--seeds", "1"])
    path = tmp_path / "learning-ddp.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 2'))
    distribute.main([*arguments, "--seeds", "1"])
    assert [run["seed"] for run in read(path)["runs"]] == [0, 2]


def test_short_budgets_are_not_stored(
    processes: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distribute, "FOLDER", tmp_path)
    distribute.main(["--strategies", "mirrored", "--parts", "learning", "--seeds", "1", "--steps", "100"])
    assert not list(tmp_path.iterdir()) and processes[0][-1] == "100"


def test_model_finds_the_constants_of_its_own_speeds(processes: list[list[str]], tmp_path: Path) -> None:
    folder = tmp_path / "distribute"
    distribute.main(["--strategies", "ddp", "--parts", "model", "--output", str(folder)])
    assert read(folder / "model-ddp.json")["constants"] == pytest.approx(CONSTANTS)
    rows = [[cell.strip() for cell in line.split("|")] for line in report.scaling_model_tables(tmp_path).splitlines()]
    assert [row[-2] for row in rows if row[1:2] == ["ddp"]][1:] == [
        *("no updates: gives c", "gives u", "check: +0%", "check: +0%", *["gives l and w"] * 4),
        *("**prediction**", "**prediction**"),
    ]


def test_reductions_take_longer_with_more_ranks_and_bytes() -> None:
    assert scaling_model.reduction_seconds(1, CONSTANTS) == 0.0
    assert scaling_model.reduction_seconds(2, CONSTANTS) == pytest.approx(2 * 5e-5 + 2e5 / 1e9)
    assert scaling_model.reduction_seconds(64, CONSTANTS) == pytest.approx(126 * (5e-5 + 2e5 / 64 / 1e9))
    assert scaling_model.steps_per_second(1, 2, CONSTANTS) == pytest.approx(1 / (2e-4 + 5e-4))


def test_stored_results_are_in_the_tables() -> None:
    for path in distribute.FOLDER.glob("*.json"):
        result = read(path)
        assert path.stem == f"{result['part']}-{result['strategy']}"
        tables = report.scaling_model_tables() if result["part"] == "model" else report.distribute_tables()
        assert f"| {result['strategy']} " in tables

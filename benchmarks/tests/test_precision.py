"""benchmarks/precision.py: the cases, the stored result and the table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import precision, report
from benchmarks.limit import CASES

pytestmark = pytest.mark.backend_free
STORED = sorted(precision.FOLDER.glob("*.json"))


def test_both_precisions_are_measured_and_stored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(precision, "prepare", lambda case: (made.append(case), None))
    monkeypatch.setattr(precision, "make_ours", lambda case, agent: case)
    seconds = {"bfloat16": 1e-6, "float32": 2e-6}
    monkeypatch.setattr(
        precision, "alternate", lambda sides, *_: [[case.updates * seconds[case.precision]] * 7 for case in sides]
    )
    monkeypatch.setattr(os, "environ", dict(os.environ))
    precision.main(["--backend", "torch", "--results", str(tmp_path)])
    assert [case.precision for case in made] == ["bfloat16", "float32"] * 4
    assert [case.hidden[0] for case in made[::2]] == [256, 1_024, 256, 1_024]
    rows = json.loads((tmp_path / "torch.json").read_text())["runs"]
    assert [row["case"] for row in rows] == list(precision.SIZED)
    assert rows[0]["bfloat16"] == pytest.approx(1) and rows[0]["ratio"]["ratio"] == pytest.approx(0.5)
    assert "sac-1024" in capsys.readouterr().out


def test_cases_of_limit_are_in_float32() -> None:
    assert {case.precision for case in CASES.values()} == {"float32"}


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_result_is_in_the_tables(path: Path) -> None:
    result = json.loads(path.read_text())
    assert report.precision_table(result) in report.precision_tables()

"""benchmarks/pool.py: each part with small sizes, what is stored, and its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pool, report
from benchmarks.summaries import summarize_rates

SMALL = ["--pairs", "1", "--seconds", "0.05", "--publications", "500", "--return-steps", "20"]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


@pytest.mark.backend_free
def test_bar_is_met_if_the_lower_end_of_the_interval_meets_it() -> None:
    rates = [20.0, 22.0, 18.0, 21.0, 19.0]
    assert summarize_rates(rates, [10.0] * 5, 1.8)["met"] is True
    assert summarize_rates(rates, [10.0] * 5, 1.9)["met"] is False
    assert summarize_rates(rates[:4], [10.0] * 4, 1.0)["met"] is None


@pytest.mark.backend_free
def test_clock_starts_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now, made = [0.0], []

    def advance() -> int:
        now[0] += 10.0 if sum(made) < 100 else 0.5  # the first 100 steps are slow
        made.append(50)
        return 50

    monkeypatch.setattr(pool.time, "perf_counter", lambda: now[0])
    assert pool.steady_rate(advance, 4.0, warm_up=100) == 100.0
    assert sum(made) == 100 + 400


@pytest.mark.backend_free
def test_tables_show_rates_values_and_verdicts(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    folder.mkdir()
    rates = {"ours": [1000.0] * 5, "theirs": [500.0] * 5}
    walker = {"name": "walker", "runs": rates, **summarize_rates(**rates, bar=1.7)}
    overlap = {**walker, "c": 0.0004, "u": 0.0005, "speedup": 1.7, "bound": 1.8, "bar": 2.5, "met": False}
    ring = {"name": "rows/s", "value": 1_234_567.0, "bar": 500_000.0, "met": True}
    about: dict[str, Any] = {"pairs": 5, "date": "2026-11-22", "machine": {"processor": "P", "cores": 2}}
    for part, rows in (("ring", [ring]), ("scaling", [walker]), ("overlap", [overlap])):
        (folder / f"{part}.json").write_text(json.dumps({"part": part, "runs": rows, **about}))
    sections = report.pool_tables(tmp_path).split("**")[1:]
    assert sections[::2] == [report.POOL_PARTS[part] for part in ("scaling", "overlap", "ring")]
    lines = [section.strip().splitlines() for section in sections[1::2]]
    assert lines[0][0] == "(5 pairs, 2026-11-22, P, 2 cores)"
    assert cells(lines[0][-1]) == ["walker", "1,000", "500", "2.00 (2.00 to 2.00)", "1.7: met"]
    assert cells(lines[1][-1])[3:7] == ["0.400", "0.500", "1.70", "1.80"]
    assert cells(lines[1][2])[3:5] == ["c (ms)", "u (ms)"] and cells(lines[1][-1])[-1] == "2.5: missed"
    assert cells(lines[2][-1]) == ["rows/s", "1,234,567", "500,000: met"]


@pytest.mark.backend_free
def test_every_part_has_a_title() -> None:
    assert list(pool.PARTS) == list(report.POOL_PARTS)


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_parts_run_and_incomplete_results_are_not_stored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pool, "FOLDER", tmp_path)
    pool.main([*SMALL, "--tasks", "CartPole-v1", "--parts", "scaling", "weights", "returns"])
    assert not list(tmp_path.iterdir())
    printed = capsys.readouterr().out
    for name in ("2 workers / 1 worker", "2 processes / 1", "0 torn", "3 seeds"):
        assert name in printed


@pytest.mark.backends("torch")
def test_complete_result_is_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pool, "FOLDER", tmp_path)
    pool.main(["--parts", "ring", "--rows", "5000"])
    result = json.loads((tmp_path / "ring.json").read_text())
    assert result["part"] == "ring" and result["machine"]["cores"] and len(result["runs"]) == 1
    assert "rows/s" in report.pool_table(result)

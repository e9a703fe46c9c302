"""benchmarks/report.py and benchmarks/summaries.py: the tables, and that they follow from the stored runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import atari, report, stats, summaries
from benchmarks.processes import RESULTS, ROOT
from benchmarks.tasks import TASKS
from benchmarks.tests.equal_json import assert_equal_json

pytestmark = pytest.mark.backend_free

STORED = [
    *((path, summaries.summarize_speed) for path in sorted((RESULTS / "compare").glob("*.json")) if path.stem in TASKS),
    *(
        (path, summaries.summarize_learning)
        for path in sorted((RESULTS / "learning").glob("*-*.json"))
        if path.stem in TASKS  # tests of memory_tasks.py compare the others, which need a backend
    ),
]


@pytest.mark.parametrize(("path", "summarize"), STORED, ids=[str(path.relative_to(RESULTS)) for path, _ in STORED])
def test_stored_summary_follows_from_the_stored_runs(path: Path, summarize: Any) -> None:
    result = json.loads(path.read_text())
    assert_equal_json(summarize(TASKS[result["task"]], result["runs"]), result["summary"])


def test_stored_ratios_follow_from_the_stored_times() -> None:
    result = json.loads((RESULTS / "replay" / "replay.json").read_text())
    rows = [row for row in result["runs"] if row["theirs"] is not None]
    assert len(rows) > 5
    for row in rows:
        assert_equal_json({**row, **summaries.summarize_pairs(**row["runs"], bar=row["bar"])}, row)


def test_stored_ratios_on_atari_follow_from_the_stored_runs() -> None:
    result = json.loads((RESULTS / "atari" / "atari.json").read_text())
    assert result["summary"] == atari.summarize(result["runs"])
    assert report.atari_table(result) in report.speed_tables()


def test_stored_ratios_of_workers_follow_from_the_stored_rates() -> None:
    for path in sorted((RESULTS / "pool").glob("*.json")):
        result = json.loads(path.read_text())
        assert result["part"] == path.stem and path.stem in report.POOL_PARTS
        for row in result["runs"]:
            if "runs" in row:
                assert_equal_json({**row, **summaries.summarize_rates(**row["runs"], bar=row["bar"])}, row)


def test_stored_ratios_beside_d3rlpy_follow_from_the_stored_speeds() -> None:
    table = report.offline_speed_tables()
    paths = sorted((RESULTS / "offline_speed").glob("*.json"))
    assert len(paths) == 4
    for path in paths:
        result = json.loads(path.read_text())
        runs = result["runs"]
        speeds = ([run[who] for run in runs] for who in ("noterl", "d3rlpy"))
        assert_equal_json(stats.paired_ratio(*speeds), result["ratio"])
        assert f"{result['ratio']['ratio']:.2f}" in table


def test_stored_limits_follow_from_the_stored_times() -> None:
    for path in (RESULTS / "limit").glob("*.json"):
        result = json.loads(path.read_text())
        assert result["runs"] and report.limit_table(result) in report.limit_tables()
        for row in result["runs"]:
            assert_equal_json({**row, **summaries.summarize_pairs(**row["runs"], bar=row["bar"])}, row)


def test_tables_hold_every_stored_result() -> None:
    speed, learning = report.speed_tables(), report.learning_tables()
    for path in (RESULTS / "compare").glob("*.json"):
        assert f"### {path.stem}\n" in speed
    assert speed.count("### Replay memory") == 1
    for path in (RESULTS / "learning").glob("*.json"):
        assert f"| {path.stem} " in learning or f"### {path.stem}\n" in learning


def test_row_shows_the_difference_from_the_stored_task_beside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def result(name: str, mean: float) -> dict[str, Any]:
        runs = [
            {"who": "noterl-jax", "seed": seed, "returns": [mean + seed], "seconds": 1.0, "success": None}
            for seed in range(5)
        ]
        summary = summaries.summarize_learning(TASKS[name], runs)
        return {"task": name, "settings": {"steps": 100_000}, "summary": summary}

    monkeypatch.setattr(report, "RESULTS", tmp_path)
    crossq = [result("walker2d-crossq", 3_000.0)]
    assert "walker2d-sac" not in report.learning_table(crossq)
    (tmp_path / "learning").mkdir()
    (tmp_path / "learning" / "walker2d-sac.json").write_text(json.dumps(result("walker2d-sac", 1_000.0)))
    assert re.search(r"walker2d-sac \+2000\.0 \(\+199\d\.\d to \+200\d\.\d\): better \|", report.learning_table(crossq))


def test_page_of_an_algorithm_holds_its_other_stored_results() -> None:
    for algorithm, names in report.OTHER_RESULTS.items():
        rows = report.algorithm_tables(algorithm).splitlines()
        for name in names:
            result = json.loads((RESULTS / f"{name}.json").read_text())
            assert set(result.get("table", ())) <= set(rows)
            for who, one in result["summary"].get("participants", {}).items():
                shown = [f"{one['returns']['worst']:.1f}" in row for row in rows if row.startswith(f"| {who} ")]
                assert shown == ([] if who.endswith("-warm") else [True])


def test_results_on_the_pages_of_algorithms_are_generated() -> None:
    for path in (ROOT / "docs" / "algorithms").glob("*.md"):
        results = path.read_text().partition("## Our results")[2]
        assert "\n|" not in results and (not results or f"_generated/learning_{path.stem}.md" in results), path


def test_readme_tables_are_short() -> None:
    speed, learning = (table.splitlines()[2:] for table in report.readme_tables().strip().split("\n\n"))
    compared = {path.stem for path in (RESULTS / "compare").glob("*.json")}
    assert [line.split()[1] for line in speed] == [name for name in TASKS if name in compared]
    learned = [name for name in TASKS if name in report.README_TASKS]
    assert [line.split()[1] for line in learning] == [*learned, report.README_MEMORY, "hopper-medium-iql"]
    assert set(report.README_TASKS) <= set(TASKS)
    assert all(" to " in line for line in (*speed, *learning))


def test_readme_shows_the_fastest_backend_and_a_ratio_for_each_peer() -> None:
    ratio, steady = {"ratio": 5.0, "low": 4.0, "high": 6.0}, {"ratio": 7.0, "low": None, "high": None}
    speeds = {"noterl-torch": 10.0, "noterl-jax": 1200.0, "sb3": 9000.0}
    comparisons = [
        {"ours": "noterl-jax", "peer": "sbx", "speed": ratio, "steady_speed": steady},
        {"ours": "noterl-torch", "peer": "sb3", "speed": steady, "steady_speed": steady},
    ]
    summary = {
        "participants": {who: {"steps_per_second": speed} for who, speed in speeds.items()},
        "comparisons": comparisons,
    }
    line = report.short_speed_table([{"task": "cartpole-dqn", "summary": summary}]).splitlines()[-1]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells == ["cartpole-dqn", "JAX", "1,200", "", "5.00 (4.00 to 6.00)", "", "7.00"]


def test_folder_without_results_gives_a_sentence(tmp_path: Path) -> None:
    for tables in (
        report.speed_tables,
        report.pool_tables,
        report.learning_tables,
        report.first_programs_tables,
        report.readme_tables,
    ):
        assert tables(tmp_path) == "No results are recorded yet.\n"


def test_report_imports_the_standard_library_alone() -> None:
    script = (
        "import sys; before = set(sys.modules); from benchmarks import report; report.main(['--readme'])\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "assert new <= {*sys.stdlib_module_names, 'benchmarks', 'numpy'}, new"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == report.readme_tables()


def test_command_prints_all_tables(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report.main([])
    assert capsys.readouterr().out == "\n".join(table() for table in report.TABLES)
    report.main(["--results", str(tmp_path)])
    assert capsys.readouterr().out == "\n".join(len(report.TABLES) * ["No results are recorded yet.\n"])


def test_table_columns_are_aligned() -> None:
    assert report.markdown_table(("a", "long"), [("wider", "1")]).splitlines() == [
        "| a     | long |",
        "| ----- | ---- |",
        "| wider | 1    |",
    ]

"""benchmarks/threads.py: the order of the processes, the variables, the bar and the table."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report, threads

pytestmark = pytest.mark.backend_free
STORED = sorted(threads.FOLDER.glob("*.json"))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None, bool]]:
    """Replace the processes: an update takes 100 us on one thread; on all 80, and 400 beside the busy program."""
    found: list[tuple[str, str | None, bool]] = []
    beside: list[bool] = []

    class Busy(nullcontext):
        def __enter__(self) -> None:
            beside.append(True)

        def __exit__(self, *_: object) -> None:
            beside.clear()

    def execute(words: list[str], variables: dict[str, str]) -> dict[str, Any]:
        number = variables.get(threads.VARIABLE[variables["KERAS_BACKEND"]])
        found.append((words[-1], number, bool(beside)))
        return {"microseconds": 100.0 if number == "1" else 400.0 if beside else 80.0}

    monkeypatch.setattr(threads, "execute", execute)
    monkeypatch.setattr(threads, "busy_core", Busy)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 2)
    for name in threads.THREADS:
        monkeypatch.delenv(name, raising=False)
    return found


def test_each_number_of_threads_is_measured_alone_and_beside(calls: list[Any], tmp_path: Path) -> None:
    threads.main(["--backends", "torch", "--cases", "dqn", "--repeats", "3", "--output", str(tmp_path)])
    assert calls == 3 * [("dqn", number, beside) for number in (None, "1", "2") for beside in (False, True)]
    result = json.loads((tmp_path / "torch.json").read_text())
    (row,) = result["summary"]
    assert row["beside"] == {"default": 400.0, "one": 100.0, "all": 400.0}
    assert (row["kept"], row["met"]) == (0.2, False)
    table = report.threads_tables(tmp_path.parent / "nothing")
    assert table.strip() == report.NO_RESULTS
    cells = [cell.strip() for cell in report.threads_table(result).splitlines()[-1].split("|")[1:-1]]
    assert cells == ["dqn", "80", "100", "80", "400", "100", "400", "20%", "50%: missed"]


def test_backends_without_a_choice_have_no_bar(calls: list[Any], tmp_path: Path) -> None:
    threads.main(["--backends", "jax", "--cases", "ppo", "--repeats", "2", "--output", str(tmp_path)])
    assert {number for _, number, _ in calls} == {None, "1"}
    assert not list(tmp_path.iterdir()), "two repeats are not stored"


def test_variables_of_threads_are_refused(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with pytest.raises(SystemExit):
        threads.main(["--backends", "torch"])
    assert calls == []


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_summary_and_table_follow_from_the_stored_runs(path: Path) -> None:
    result = json.loads(path.read_text())
    assert result["summary"] == threads.summarize(result["backend"], result["runs"])
    assert report.threads_table(result) in report.threads_tables()


def test_busy_program_ends_with_the_context() -> None:
    with threads.busy_core():
        pass

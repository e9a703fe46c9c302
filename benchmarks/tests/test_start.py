"""benchmarks/start.py: the order of the processes, their caches, the bars and the table."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import report, start
from benchmarks.tests.equal_json import assert_equal_json

STORED = sorted(start.FOLDER.glob("*.json"))


class FakeProcesses:
    """Replaces the processes: a run with an empty cache takes 3 seconds, and another one half a second."""

    def __init__(self) -> None:
        self.tasks: list[tuple[str, str]] = []

    def __call__(self, words: list[str], variables: dict[str, str]) -> dict[str, Any]:
        task = words[-1] if "--task" in words else "imports"
        self.tasks.append((task, variables["NOTERL_CACHE"]))
        if task == "imports":
            assert variables["NOTERL_CACHE"] == "0"
            return {"noterl": 0.1, "keras": 2.0, "agents": 0.4}
        programs = Path(variables["NOTERL_CACHE"]) / "programs"
        seconds = 0.5 if programs.exists() else 3.0
        programs.touch()
        return {"seconds": seconds}


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> FakeProcesses:
    processes = FakeProcesses()
    monkeypatch.setattr(start, "execute", processes)
    for name in start.CACHE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return processes


@pytest.mark.backend_free
def test_each_pair_begins_with_an_empty_cache(processes: FakeProcesses, tmp_path: Path) -> None:
    start.main(["jax", "--repeats", "2", "--output", str(tmp_path)])
    names = [task for task, _ in processes.tasks]
    assert names == 2 * ["imports", "demo", "demo", "ppo", "ppo", "dqn", "dqn"]
    folders = [cache for _, cache in processes.tasks if cache != "0"]
    assert folders[::2] == folders[1::2] and len(set(folders)) == 6
    assert not any(Path(folder).exists() for folder in folders)
    summary = json.loads((tmp_path / "jax.json").read_text())["summary"]
    assert summary["ppo"] == {"cold": 3.0, "warm": 0.5, "bar": 0.7, "met": True}
    assert (summary["import noterl"]["met"], summary["import agents"]["met"]) == (True, False)
    table = report.start_table([{"backend": "jax", "summary": summary}])
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert cells[0] == ["JAX", "demo", "3.00", "0.50", "", "0.7: met"]
    assert cells[-1] == ["JAX", "import agents", "", "0.40", "", "0.3: missed"]


@pytest.mark.backend_free
def test_time_of_tracing_is_shown_on_torch() -> None:
    runs = [{"task": "imports", "noterl": 0.1, "agents": 0.2}]
    runs += [
        {"task": task, "cache": cache, "seconds": 0.3, "later": 0.4} for task in start.TASKS for cache in start.CACHES
    ]
    summary = start.summarize("torch", runs)
    assert summary["ppo"] == {"cold": 0.3, "warm": 0.3, "later": 0.4, "bar": 0.5, "met": True}
    table = report.start_table([{"backend": "torch", "summary": summary}])
    assert [cell.strip() for cell in table.splitlines()[3].split("|")[1:-1]][1:5] == ["ppo", "0.30", "0.30", "0.40"]


@pytest.mark.backend_free
def test_variables_that_replace_the_cache_are_refused(
    processes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/somewhere")
    with pytest.raises(SystemExit, match="JAX_COMPILATION_CACHE_DIR"):
        start.main(["jax"])
    assert processes.tasks == []


@pytest.mark.backend_free
@pytest.mark.parametrize(("words", "message"), [(["numpy"], "backend"), (["--repeats", "0"], "--repeats")])
def test_bad_argument_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        start.main(words)
    assert message in capsys.readouterr().err


@pytest.mark.backend_free
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_summary_follows_from_the_stored_runs(path: Path) -> None:
    result = json.loads(path.read_text())
    assert_equal_json(start.summarize(result["backend"], result["runs"]), result["summary"])


@pytest.mark.backend_free
@pytest.mark.parametrize("path", sorted((start.FOLDER / "load").glob("*.json")), ids=lambda path: path.stem)
def test_stored_summary_of_loads_follows_from_the_stored_runs(path: Path) -> None:
    result = json.loads(path.read_text())
    assert_equal_json(start.summarize_load(result["runs"]), result["summary"])
    assert result["summary"]["after"]["allocated"] == 0 < result["summary"]["before"]["allocated"]


@pytest.mark.backend_free
def test_checkouts_load_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[str, bool]] = []

    def load(words: list[str], variables: dict[str, str]) -> dict[str, Any]:
        calls.append((variables["PYTHONPATH"], words[3] == start.LOAD))
        return {"seconds": 0.5 * len(calls), "peak": 80.0, "allocated": 0.0, "file": 72.0}

    monkeypatch.setattr(start, "execute", load)
    for name in start.CACHE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "noterl").mkdir()
    (tmp_path / "noterl" / "__init__.py").touch()
    words = ["torch", "--load", "--before", str(tmp_path), "--repeats", "2", "--output", str(tmp_path)]
    start.main(words)
    here, there = str(start.ROOT), str(tmp_path.resolve())
    assert calls == [(here, False), *2 * [(here, True), (there, True)]]
    result = json.loads((tmp_path / "load" / "torch.json").read_text())
    assert {name: one["seconds"] for name, one in result["summary"].items()} == {"before": 2.0, "after": 1.5}
    cells = report.load_table([result]).splitlines()[2].split("|")[1:4]
    assert [cell.strip() for cell in cells] == ["PyTorch", "before", "2.00"]


@pytest.mark.backend_free
def test_whole_processes_of_two_commits_alternate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths: list[str] = []
    clock = iter(range(0, 1_000, 5))
    monkeypatch.setattr(start, "execute", lambda words, variables: paths.append(variables["PYTHONPATH"]))
    monkeypatch.setattr(start, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    for name in start.CACHE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "noterl").mkdir()
    (tmp_path / "noterl" / "__init__.py").touch()
    start.main(["jax", "--whole", "--before", str(tmp_path), "--repeats", "5", "--output", str(tmp_path)])
    assert paths == 6 * [str(tmp_path.resolve()), str(start.ROOT)]
    result = json.loads((tmp_path / "whole" / "jax.json").read_text())
    assert [run["seconds"] for run in result["runs"]] == 10 * [5.0]
    assert result["summary"]["before"] == result["summary"]["after"] == 5.0
    assert result["summary"]["ratio"] == result["summary"]["high"] == 1.0
    assert not result["summary"]["met"]
    assert "1.00 (1.00 to 1.00)" in report.whole_table([result])


@pytest.mark.backend_free
def test_whole_processes_need_another_commit() -> None:
    with pytest.raises(SystemExit):
        start.main(["--whole"])


@pytest.mark.backends("torch")
@pytest.mark.parametrize("task", start.TASKS)
def test_fit_ends_with_the_second_call(task: str) -> None:
    agent = start.make_agent(task)
    found = start.first_update(agent)
    assert found["seconds"] > 0 and "later" in found
    assert 0 < agent.updates <= 800 and agent.steps < 100_000

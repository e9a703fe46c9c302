"""benchmarks/adapting_defaults.py: which runs it does, and what is stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import adapting_defaults, report
from benchmarks.adapting_defaults import BASELINE, TASKS, Task, summarize
from benchmarks.tests.equal_json import assert_equal_json

STORED = sorted(adapting_defaults.FOLDER.glob("*.json"))


@pytest.mark.backends("torch")
def test_only_missing_runs_are_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done: list[tuple[str, int]] = []

    def execute(words: list[str], variables: dict[str, str]) -> dict[str, Any]:
        variant, seed = words[-2:]
        done.append((variant, int(seed)))
        return {"returns": [400.0 + int(seed)], "in_training": 100.0, "last": {}, "versions": {}}

    monkeypatch.setattr(adapting_defaults, "execute", execute)
    names = list(adapting_defaults.variants())
    adapting_defaults.run("cartpole-dqn", 1, tmp_path)
    assert done == [(name, 0) for name in names]
    result = adapting_defaults.run("cartpole-dqn", 2, tmp_path)
    assert done[len(names) :] == [(name, 1) for name in names]
    assert_equal_json(json.loads((tmp_path / "cartpole-dqn.json").read_text()), json.loads(json.dumps(result)))
    rows = report.adapting_defaults_table([result]).splitlines()[2:]
    assert [row.split("|")[3].strip() for row in rows] == names


@pytest.mark.backend_free
def test_variants_are_compared_with_the_baseline() -> None:
    runs = [
        {"variant": variant, "seed": seed, "returns": [score - seed]}
        for variant, score in ((BASELINE, 400.0), ("ESSWindow()", 300.0))
        for seed in range(5)
    ]
    found = summarize(TASKS["cartpole-dqn"], runs)
    assert "difference" not in found[BASELINE]
    assert found["ESSWindow()"]["difference"]["difference"] == pytest.approx(-100.0)
    assert found["ESSWindow()"]["difference"]["outcome"] == "worse"


@pytest.mark.backend_free
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_summary_follows_from_the_stored_runs(path: Path) -> None:
    result = json.loads(path.read_text())
    assert_equal_json(summarize(TASKS[path.stem], result["runs"]), result["summary"])


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", TASKS)
def test_run_trains_with_each_callback(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = TASKS[name]
    monkeypatch.setitem(TASKS, name, Task(task.environment, 300, task.span, task.agent))
    for variant in adapting_defaults.variants():
        run = adapting_defaults.train(name, variant, 0)
        assert len(run["returns"]) == adapting_defaults.EPISODES


@pytest.mark.backend_free
@pytest.mark.parametrize(("words", "message"), [(["pong"], "task"), (["--seeds", "0"], "--seeds")])
def test_bad_argument_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        adapting_defaults.main(words)
    assert message in capsys.readouterr().err

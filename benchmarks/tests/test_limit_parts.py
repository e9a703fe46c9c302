"""The parts of `benchmarks/limit.py` that need no framework."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import limit, report

pytestmark = pytest.mark.backend_free


def test_sides_alternate_and_the_first_calls_are_not_measured() -> None:
    calls: list[str] = []
    now = [0.0]

    def side(name: str, seconds: float) -> None:
        calls.append(name)
        now[0] += seconds

    sides = [lambda: side("a", 1.0), lambda: side("b", 3.0)]
    found = limit.alternate(sides, 2, 2.0, clock=lambda: now[0])
    assert found == [[1.0, 1.0], [3.0, 3.0]]
    assert "".join(calls) == "aabb" + "a" + "aabb" + "bbaa"


def test_flops_of_dense_layers() -> None:
    batch, first, rest = 64, 4 * 256, 256 * 256 + 256 * 2
    forward = 2 * batch * (first + rest)
    # Two forward passes, the gradients of all weights, and those of the inputs of all layers but the first.
    assert limit.update_flops(limit.CASES["dqn"]) == 3 * forward + 2 * batch * rest
    forward, last = 2 * 256 * (4 * 64 + 64 * 64 + 64 * 2), 2 * 256 * (64 * 64 + 64 * 2)
    value, value_last = 2 * 256 * (4 * 64 + 64 * 64 + 64), 2 * 256 * (64 * 64 + 64)
    assert limit.update_flops(limit.CASES["ppo"]) == 2 * forward + last + 2 * value + value_last


def test_flops_of_two_critics() -> None:
    batch, first, rest = 256, 4 * 256, 256 * 256 + 256
    critic, critic_rest = 2 * batch * (first + rest), 2 * batch * rest
    actor = {name: 2 * batch * (3 * 256 + 256 * 256 + 256 * width) for name, width in (("sac", 2), ("td3", 1))}
    actor_rest = {name: 2 * batch * (256 * 256 + 256 * width) for name, width in (("sac", 2), ("td3", 1))}
    critics = 2 * critic + 2 * (2 * critic + critic_rest)
    expected = actor["sac"] + critics + 2 * actor["sac"] + actor_rest["sac"] + 4 * critic
    assert limit.update_flops(limit.CASES["sac"]) == expected
    expected = actor["td3"] + critics + 0.5 * (2 * actor["td3"] + actor_rest["td3"] + 2 * critic)
    assert limit.update_flops(limit.CASES["td3"]) == expected


def test_layers_of_the_nature_network_hold_its_weights() -> None:
    weights = sum(layer.inputs * layer.outputs for layer in limit.NATURE)
    assert weights == 8 * 8 * 4 * 32 + 4 * 4 * 32 * 64 + 3 * 3 * 64 * 64 + 7 * 7 * 64 * 512
    assert [layer.positions for layer in limit.NATURE] == [20 * 20, 9 * 9, 7 * 7, 1]


def test_batches_hold_transitions_of_the_arrays() -> None:
    case = limit.CASES["td3"]
    arrays = limit.make_arrays(case)
    rows = limit.gather(case, arrays, np.random.default_rng(0))
    assert rows["observation"].shape == (16, 256, 3) and rows["target_noise"].shape == (16, 256, 1)
    for k, row in ((0, 0), (15, 255)):
        (index,) = np.flatnonzero((arrays["observation"][:-1] == rows["observation"][k, row]).all(-1))
        np.testing.assert_array_equal(rows["next_observation"][k, row], arrays["observation"][index + 1])
        assert rows["action"][k, row] == arrays["action"][index] and rows["reward"][k, row] == arrays["reward"][index]


def test_permutations_visit_each_row_once_per_epoch() -> None:
    case = limit.CASES["ppo"]
    found = limit.permutations(case, np.random.default_rng(0))
    assert found.shape == (case.updates, case.batch_size) and found.dtype == np.int32
    assert (np.bincount(found.ravel()) == 4).all()


def make_result(names: list[str], ratio: float, blocks: int = 15) -> dict[str, Any]:
    times = [[16e-6 * ratio] * blocks, [16e-6] * blocks]
    rows = [limit.make_row(name, limit.CASES[name], times, peak=50.0) for name in names]
    machine = {"processor": "CPU", "cores": 2}
    return {"task": "limit", "backend": "jax", "date": "2026-11-22", "machine": machine, "runs": rows}


def test_row_holds_the_ratio_and_whether_it_meets_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    row = make_result(["sac"], 1.05)["runs"][0]
    assert row["ours"] == pytest.approx(1.05) and row["theirs"] == pytest.approx(1.0)
    assert row["ratio"]["ratio"] == pytest.approx(1.05) and row["met"] and row["threads"]["OMP_NUM_THREADS"] == "1"
    assert make_result(["sac"], 1.2)["runs"][0]["met"] is False
    assert make_result(["sac"], 1.05, blocks=2)["runs"][0]["met"] is None


def test_stored_cases_are_replaced_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "limit" / "jax.json"
    limit.merge(make_result(["td3", "dqn"], 1.0), path)
    limit.merge(make_result(["td3"], 1.5), path)
    stored = json.loads(path.read_text())
    assert [row["case"] for row in stored["runs"]] == ["dqn", "td3"]
    assert [round(row["ratio"]["ratio"], 3) for row in stored["runs"]] == [1.0, 1.5]
    text = report.limit_tables(tmp_path)
    assert "### JAX" in text and "| dqn " in text and "1.50 (1.50 to 1.50)" in text and "1.1: missed" in text


def test_tables_without_results_say_so(tmp_path: Path) -> None:
    assert report.limit_tables(tmp_path).strip() == report.NO_RESULTS


def test_table_shows_the_share_of_the_peak() -> None:
    result = make_result(["sac"], 1.0)
    result["runs"][0].update(flops=1e6, ours=40.0)
    assert [cell.strip() for cell in report.limit_table(result).splitlines()[-1].split("|")[-4:-1]] == [
        "25.0",
        "50.0",
        "50%",
    ]


@pytest.mark.parametrize(
    "words", [[], ["--backend", "numpy"], ["--backend", "jax", "--blocks", "0"], ["--backend", "jax", "--seconds", "0"]]
)
def test_bad_arguments_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        limit.parse(words)
    assert "error" in capsys.readouterr().err

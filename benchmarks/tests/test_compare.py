"""What benchmarks/compare.py concludes from runs, and that it gives everybody the same chances."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from benchmarks import compare, figures, readme, report
from benchmarks.evaluation import FIRST_SEED, Clock, evaluate
from benchmarks.tasks import TASKS

pytestmark = pytest.mark.backend_free

TASK = TASKS["cartpole-dqn"]
# Two of our backends and two peers; who is how many times as fast as the slowest.
SPEEDS = {"noterl-jax": 6.0, "noterl-torch": 1.2, "sb3": 1.0, "sbx": 2.0}


def arguments(*more: str) -> Any:
    words = ["cartpole-dqn", "--backends", "jax", "torch", "--peer-python", sys.executable, *more]
    return compare.parse(words)


class Stage:
    """Stands in for the processes: everybody has their speed, times a drift that both runs of a pair share."""

    def __init__(self, drift: float = 1.0) -> None:
        self.commands: list[list[str]] = []
        self.drift = drift

    def __call__(self, words: list[str], variables: dict[str, str]) -> dict[str, Any]:
        self.commands.append(words)
        peer = "benchmarks.peers.run" in words
        who = words[words.index("benchmarks.peers.run") + 1] if peer else f"noterl-{variables['KERAS_BACKEND']}"
        seed, steps = int(words[-2]), int(words[-1])
        speed = 1000 * SPEEDS[who] * self.drift**seed * (1.01 if (seed + peer) % 2 else 1.0)
        run = {
            "steps": steps,
            "seconds": steps / speed,
            "steps_per_second": speed,
            "steady_steps_per_second": 1.1 * speed,
            "updates": 7,
            "returns": [500.0] * 99 + [400.0] if who != "sbx" else [100.0] * 100,
            "versions": {"python": "3", "who": who},
        }
        return (
            run if peer else {**run, "time_split": {"environment": 0.25 * steps / speed, "learn": 0.5 * steps / speed}}
        )


def test_ratio_is_the_geometric_mean_with_a_t_interval() -> None:
    result = figures.ratio([1.0, math.e**2], [1.0, 1.0])
    assert result["ratio"] == pytest.approx(math.e)
    # One degree of freedom: half a width is t * std / sqrt(2), and the std of 0 and 2 is sqrt(2).
    assert math.log(result["high"]) == pytest.approx(1 + 6.3138)
    assert math.log(result["low"]) == pytest.approx(1 - 6.3138)
    assert figures.ratio([6.0], [2.0]) == {"ratio": pytest.approx(3.0), "low": None, "high": None}


def test_ratio_interval_holds_the_truth_nine_times_in_ten() -> None:
    draws = np.random.default_rng(0).normal(np.log(3.0), 0.2, size=(4000, 5))
    held = [result["low"] <= 3.0 <= result["high"] for result in (figures.ratio(np.exp(d), np.ones(5)) for d in draws)]
    assert np.mean(held) == pytest.approx(0.9, abs=0.015)


def test_ratio_of_paired_runs_does_not_see_what_slows_both() -> None:
    ours, theirs = np.array([6.0, 6.1, 5.9, 6.0, 6.0]), np.ones(5)
    drift = np.array([1.0, 0.5, 0.25, 2.0, 1.0])
    assert figures.ratio(ours * drift, theirs * drift) == pytest.approx(figures.ratio(ours, theirs))


def test_interquartile_mean_drops_a_quarter_at_each_end() -> None:
    assert figures.interquartile_mean([100, 0, 1, 2, 3, 4, 5, 6]) == 3.5
    assert figures.interquartile_mean([7]) == 7


def test_returns_name_the_worst_seed() -> None:
    summary = figures.returns([[500, 500], [300, 400], [500, 480]])
    assert (summary["median"], summary["worst"], summary["seed_means"]) == (490, 350, [500, 350, 490])


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [([500] * 5, "better"), ([480] * 5, "equal"), ([450] * 5, "not shown"), ([500, 500, 500, 500, 100], "not shown")],
)
def test_difference_is_judged_by_its_lower_end(ours: list[float], verdict: str) -> None:
    result = figures.difference(ours, [481, 482, 480, 480, 481], span=500)
    assert result["verdict"] == verdict
    assert result["low"] <= result["difference"] <= result["high"]


def test_runs_alternate_and_everybody_starts_in_turn() -> None:
    seeds = [compare.order(["tensorflow", "jax", "torch"], ["sb3", "sbx"], seed) for seed in range(5)]
    assert seeds[0] == ["noterl-tensorflow", "sb3", "noterl-jax", "sbx", "noterl-torch"]
    assert {tuple(sorted(turns)) for turns in seeds} == {tuple(sorted(seeds[0]))}
    assert sorted(turns[0] for turns in seeds) == sorted(seeds[0])


def test_a_comparison_pairs_by_seed_and_judges_the_bars() -> None:
    stage = Stage(drift=0.7)
    result = compare.compare(arguments("--seeds", "5"), stage)
    assert len(stage.commands) == len(result["runs"]) == 20
    found = {(one["ours"], one["peer"]): one for one in result["summary"]["comparisons"]}
    assert len(found) == 4
    fast = found["noterl-jax", "sb3"]
    assert fast["speed"]["ratio"] == pytest.approx(6, rel=0.01)
    assert 5.9 < fast["speed"]["low"] < 6 < fast["speed"]["high"] < 6.1
    assert (fast["bar"], fast["met"], fast["returns"]["verdict"]) == (5, True, "equal")
    assert (found["noterl-torch", "sb3"]["bar"], found["noterl-torch", "sb3"]["met"]) == (1.5, False)
    assert found["noterl-torch", "sbx"]["met"] is None
    assert found["noterl-torch", "sbx"]["returns"]["verdict"] == "better"
    assert result["versions"]["sbx"]["who"] == "sbx"
    assert result["summary"]["participants"]["noterl-jax"]["time_split"] == {"environment": 0.25, "learn": 0.5}


@pytest.mark.parametrize("seeds", ["1", "4"])
def test_nothing_is_judged_on_fewer_than_five_pairs(seeds: str) -> None:
    result = compare.compare(arguments("--seeds", seeds), Stage())
    assert {(one["met"], one["returns"]["verdict"]) for one in result["summary"]["comparisons"]} == {
        (None, "not judged")
    }
    assert "not judged" in report.tables(result)


def test_fewer_steps_reach_everybody() -> None:
    stage = Stage()
    compare.compare(arguments("--seeds", "1", "--steps", "123"), stage)
    assert {words[-1] for words in stage.commands} == {"123"}


def test_a_result_is_kept_and_said_in_the_readme(tmp_path: Path) -> None:
    result = compare.compare(arguments("--seeds", "5"), Stage())
    compare.store(result, tmp_path / "results" / "cartpole-dqn.json")
    assert json.loads((tmp_path / "results" / "cartpole-dqn.json").read_text()) == json.loads(json.dumps(result))

    text = report.tables(result)
    assert "noterl-jax / sb3: 5.99" in text
    assert "5: met" in text
    assert "1.5: missed" in text
    assert "| noterl-jax        | 25 %        | 50 %  |" in text

    learned = "<!-- learning -->\n{}\n<!-- /learning -->\n"
    (tmp_path / "README.md").write_text(f"a\n<!-- results -->\nold\n<!-- /results -->\n{learned.format('old')}b\n")
    readme.update(tmp_path / "README.md", tmp_path / "results")
    learned = learned.format("No run is recorded yet.")
    assert (tmp_path / "README.md").read_text() == f"a\n<!-- results -->\n{text}\n<!-- /results -->\n{learned}b\n"
    (tmp_path / "README.md").write_text("nothing marked")
    with pytest.raises(ValueError, match="must have one place"):
        readme.update(tmp_path / "README.md", tmp_path / "results")


@pytest.mark.parametrize("section", readme.SECTIONS)
def test_the_readme_says_what_the_results_say(section: str) -> None:
    (said,) = readme.SECTIONS[section].findall(readme.README.read_text())
    assert said == readme.rendered(section), "run `python -m benchmarks.readme`"


def test_evaluation_resets_every_episode_with_its_own_seed() -> None:
    def act(observations: np.ndarray) -> np.ndarray:
        return (observations[:, 2] > 0).astype(int)

    expected = []
    for i in range(4):
        environment = gymnasium.make("CartPole-v1")
        observation, _ = environment.reset(seed=FIRST_SEED + i)
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = environment.step(int(act(observation[None])[0]))
            total, over = total + float(reward), terminated or truncated
        expected.append(total)
    assert evaluate(act, "CartPole-v1", episodes=4) == expected
    assert len(set(expected)) > 1


def test_the_clock_leaves_the_first_tenth_out(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 5.0, 6.0, 15.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    clock = Clock(100)
    clock.tick(9)
    clock.tick(10)
    clock.tick(20)
    assert next(times) == 6.0
    assert clock.stop(100) == {
        "steps": 100,
        "seconds": 15.0,
        "steps_per_second": 100 / 15,
        "steady_steps_per_second": 9.0,
    }


def test_a_run_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="no memory left"):
        compare.execute([sys.executable, "-c", "raise SystemExit('no memory left')"], {})
    with pytest.raises(RuntimeError, match="ended with 0"):
        compare.execute([sys.executable, "-c", ""], {})
    assert compare.execute([sys.executable, "-c", "import os; print('x'); print(os.environ['N'])"], {"N": "[1]"}) == [1]


@pytest.mark.parametrize(
    "words",
    [["--seeds", "0"], ["--steps", "0"], ["--peer-python", "missing"], ["--peers", "rllib"], ["--backends", "--peers"]],
)
def test_bad_arguments_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(*words)
    assert words[0] in capsys.readouterr().err


def test_the_script_runs_from_anywhere(tmp_path: Path) -> None:
    words = [sys.executable, str(compare.ROOT / "benchmarks" / "compare.py"), "--help"]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "cartpole-dqn" in result.stdout

"""benchmarks/compare.py: the order of runs, pairing by seed, bars, stored results and the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from benchmarks import compare, report
from benchmarks.evaluation import FIRST_SEED, Clock, evaluate

pytestmark = pytest.mark.backend_free

# The speed of each participant as a multiple of the slowest.
SPEEDS = {"noterl-jax": 6.0, "noterl-torch": 1.2, "sb3": 1.0, "sbx": 2.0}


def arguments(*more: str) -> Any:
    words = ["cartpole-dqn", "--backends", "jax", "torch", "--peer-python", sys.executable, *more]
    return compare.parse(words)


class FakeProcesses:
    """Replaces the processes. The speed of a run is its participant's times a drift that both runs of a pair share."""

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
        split = {"environment": 0.25 * steps / speed, "learn": 0.5 * steps / speed}
        return run if peer else {**run, "time_split": split}


def test_runs_alternate_and_each_participant_starts_once() -> None:
    seeds = [compare.run_order(["tensorflow", "jax", "torch"], ["sb3", "sbx"], seed) for seed in range(5)]
    assert seeds[0] == ["noterl-tensorflow", "sb3", "noterl-jax", "sbx", "noterl-torch"]
    assert {tuple(sorted(turns)) for turns in seeds} == {tuple(sorted(seeds[0]))}
    assert sorted(turns[0] for turns in seeds) == sorted(seeds[0])


def test_comparison_pairs_runs_by_seed_and_judges_bars() -> None:
    processes = FakeProcesses(drift=0.7)
    result = compare.compare(arguments("--seeds", "5"), processes)
    assert len(processes.commands) == len(result["runs"]) == 20
    found = {(one["ours"], one["peer"]): one for one in result["summary"]["comparisons"]}
    assert len(found) == 4
    fast = found["noterl-jax", "sb3"]
    assert fast["speed"]["ratio"] == pytest.approx(6, rel=0.01)
    assert 5.9 < fast["speed"]["low"] < 6 < fast["speed"]["high"] < 6.1
    assert (fast["bar"], fast["met"], fast["returns"]["outcome"]) == (5, True, "equal")
    assert (found["noterl-torch", "sb3"]["bar"], found["noterl-torch", "sb3"]["met"]) == (1.5, False)
    assert found["noterl-torch", "sbx"]["met"] is None
    assert found["noterl-torch", "sbx"]["returns"]["outcome"] == "better"
    assert result["versions"]["sbx"]["who"] == "sbx"
    assert result["summary"]["participants"]["noterl-jax"]["time_split"] == {"environment": 0.25, "learn": 0.5}


@pytest.mark.parametrize("seeds", ["1", "4"])
def test_fewer_than_five_pairs_are_not_judged(seeds: str) -> None:
    result = compare.compare(arguments("--seeds", seeds), FakeProcesses())
    assert {(one["met"], one["returns"]["outcome"]) for one in result["summary"]["comparisons"]} == {
        (None, "undecided")
    }
    text = report.speed_section(result)
    assert "5: too few pairs" in text
    assert "met" not in text


def test_runs_with_a_warm_cache_share_a_folder_that_another_run_fills() -> None:
    caches: list[str] = []

    def execute(words: list[str], variables: dict[str, str]) -> dict[str, Any]:
        caches.append(variables["NOTERL_CACHE"])
        assert caches[-1] == "0" or Path(caches[-1]).is_dir()
        return FakeProcesses()(words, variables)

    words = [
        "cartpole-ppo",
        "--backends",
        "jax",
        "jax-warm",
        "--peers",
        "--seeds",
        "2",
        "--peer-python",
        sys.executable,
    ]
    result = compare.compare(compare.parse(words), execute)
    folder = caches[0]
    assert caches == [folder, "0", folder, folder, "0"] and not Path(folder).exists()
    assert [run["who"] for run in result["runs"]] == ["noterl-jax", "noterl-jax-warm", "noterl-jax-warm", "noterl-jax"]


def test_steps_are_passed_to_all_participants() -> None:
    processes = FakeProcesses()
    compare.compare(arguments("--seeds", "1", "--steps", "123"), processes)
    assert {words[-1] for words in processes.commands} == {"123"}


def test_result_is_stored_and_reported(tmp_path: Path) -> None:
    result = compare.compare(arguments("--seeds", "5"), FakeProcesses())
    path = tmp_path / "compare" / "cartpole-dqn.json"
    compare.store(result, path)
    assert json.loads(path.read_text()) == json.loads(json.dumps(result))

    text = report.speed_tables(tmp_path)
    assert f"### cartpole-dqn\n\n{report.speed_section(result)}\n" == text
    assert "| noterl-jax / sb3   | 5.94 (5.94 to 6.06) | 5: met      |" in text
    assert "1.5: missed" in text
    assert "| noterl-jax        | 25 %        | 50 %  |" in text


def test_evaluation_resets_each_episode_with_its_own_seed() -> None:
    def act(observations: np.ndarray) -> np.ndarray:
        return (observations[:, 2] > 0).astype(int)

    expected = []
    for i in range(4):
        environment = gymnasium.make("CartPole-v1")
        observation, _ = environment.reset(seed=FIRST_SEED + i)
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = environment.step(int(act(observation[None])[0]))
            total, ended = total + float(reward), terminated or truncated
        expected.append(total)
    assert evaluate(act, "CartPole-v1", episodes=4) == expected
    assert len(set(expected)) > 1


def test_clock_excludes_the_first_tenth() -> None:
    times = iter([0.0, 5.0, 6.0, 15.0])
    clock = Clock(100, lambda: next(times))
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


def test_failing_run_raises_its_error_output() -> None:
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


def test_module_runs_from_the_root_of_the_checkout() -> None:
    words = [sys.executable, "-m", "benchmarks.compare", "--help"]
    result = subprocess.run(words, cwd=compare.ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "cartpole-dqn" in result.stdout

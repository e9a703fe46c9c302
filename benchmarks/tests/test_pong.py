"""benchmarks/pong.py: the agents have xagents' settings, and a run that was stopped goes on."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import noterl
from benchmarks import pong, report
from noterl.callbacks import BackupAndRestore

pytestmark = pytest.mark.backends("torch")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replace the game by CartPole, whose episodes are short, and back up after each episode."""

    def make(seed: int) -> Any:
        agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=seed)
        agent.compile(learning_starts=50, batch_size=8)
        return agent

    def backup(path: Path) -> BackupAndRestore:
        return BackupAndRestore(path, 1, unit="episodes")

    monkeypatch.setattr(pong, "AGENTS", {"dqn": pong.Pong(make, "", num_envs=1)})
    monkeypatch.setattr(pong, "BackupAndRestore", backup)
    monkeypatch.setattr(pong, "UNFINISHED", tmp_path / "unfinished")
    monkeypatch.setattr(pong, "FOLDER", tmp_path / "pong")


@pytest.mark.usefixtures("small")
def test_stopped_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = pong.train("dqn", 3, 400)

    class Stop(noterl.Callback):
        """Interrupts the program at the fifth episode."""

        def on_episode_end(self, episode: int, logs: dict[str, Any]) -> None:
            if episode == 5:
                signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(pong, "EarlyStopping", lambda *_: Stop())
        with pytest.raises(KeyboardInterrupt):
            pong.train("dqn", 3, 400)
    assert [path.name for path in pong.UNFINISHED.iterdir() if path.suffix == ".noterl"] == ["pong-dqn-3.noterl"]
    run = json.loads(json.dumps(pong.train("dqn", 3, 400)))
    for name in ("steps", "reward"):
        assert run["curve"][name] == expected["curve"][name]
    assert run["evaluation"] == expected["evaluation"]
    assert not list(pong.UNFINISHED.glob("*.noterl"))


@pytest.mark.usefixtures("small")
def test_only_a_run_that_reached_the_goal_is_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pong.main(["dqn", "--steps", "100"])
    result = json.loads((tmp_path / "pong" / "dqn.json").read_text())  # each step of CartPole earns 1
    (run,) = result["runs"]
    assert f"| {run['mean_return']:.1f} " in report.pong_tables(tmp_path)
    single, mean, goal = pong.draw(result).axes[0].lines
    np.testing.assert_array_equal(single.get_ydata(), run["curve"]["reward"])
    assert mean.get_ydata()[-1] == pytest.approx(run["mean_return"])
    assert set(goal.get_ydata()) == {pong.GOAL}
    (tmp_path / "pong" / "dqn.json").unlink()
    monkeypatch.setattr(pong, "GOAL", 1_000.0)
    pong.main(["dqn", "--steps", "100"])
    assert not (tmp_path / "pong" / "dqn.json").exists()
    assert (pong.UNFINISHED / "pong-dqn-0.noterl").exists()  # more steps can follow


@pytest.mark.parametrize("name", pong.AGENTS)
def test_agents_play_xagents_images(name: str) -> None:
    agent = pong.AGENTS[name].make(0)
    assert agent.observation_space.shape == (1, 84, 84)
    assert agent.action_space.n == 6
    assert agent.act(agent.observation_space.sample()) in range(6)

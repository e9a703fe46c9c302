"""`Agent.env_call` and `Agent.env_get` in callbacks, and runs that resume after them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import noterl
from tests.support.states import assert_same_state
from tests.support.worker_envs import LevelEnv, SavedLevelEnv

pytestmark = pytest.mark.backends("torch")


class Curriculum(noterl.Callback):
    """Raises the level at the end of every second episode, and repeats it at the start of a `fit`."""

    def __init__(self, *, repeats: bool = True) -> None:
        self.repeats, self.level, self.levels = repeats, 0, []

    def on_train_begin(self, logs: Any) -> None:
        if self.repeats and self.level:
            self.agent.env_call("set_level", self.level)

    def on_episode_end(self, episode: int, logs: Any) -> None:
        self.levels.append((self.agent.env_get("level"), logs["reward"]))
        if self.agent.episodes % 2 == 0 and logs["complete"]:
            self.level += 1
            results = self.agent.env_call("set_level", self.level)
            assert [level for level, _ in results] == [self.level] * len(results)

    def get_state(self) -> dict[str, Any]:
        return {"level": self.level}

    def set_state(self, state: dict[str, Any]) -> None:
        self.level = state["level"]


def dqn(env: Any, seed: int | None = 3) -> noterl.DQN:
    agent = noterl.DQN(env, hidden=(8,), seed=seed)
    agent.compile(replay=200, batch_size=8, learning_starts=10, update_every=6, jit_compile=False)
    return agent


@pytest.mark.parametrize("workers", [0, 2])
def test_levels_rise_in_all_environments(workers: int) -> None:
    runs = []
    for _ in range(2):
        agent, curriculum = dqn(LevelEnv), Curriculum()
        agent.fit(episodes=10, num_envs=3, workers=workers, callbacks=[curriculum], verbose=0)
        complete = curriculum.levels[:10]
        assert [level for level, _ in complete] == [[k // 2] * 3 for k in range(10)]
        assert complete[0][1] == 0.0 and complete[-1][1] > 0.0
        runs.append(curriculum.levels)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_run_resumes_exactly(workers: int, tmp_path: Path) -> None:
    whole, parts = dqn(SavedLevelEnv), dqn(SavedLevelEnv)
    whole.fit(steps=90, num_envs=2, workers=workers, callbacks=[Curriculum(repeats=False)], verbose=0)
    parts.fit(steps=50, num_envs=2, workers=workers, callbacks=[Curriculum(repeats=False)], verbose=0)
    parts.save(tmp_path / "agent.noterl")
    resumed = dqn(SavedLevelEnv, seed=None)
    resumed.restore(tmp_path / "agent.noterl")
    resumed.fit(steps=40, workers=workers, callbacks=[Curriculum(repeats=False)], verbose=0)
    assert whole.updates > 5
    assert_same_state(whole, resumed)


@pytest.mark.parametrize("workers", [0, 2])
def test_other_environments_restart_and_the_callback_repeats_the_call(workers: int, tmp_path: Path) -> None:
    agent = dqn(LevelEnv)
    agent.fit(episodes=4, num_envs=2, workers=workers, callbacks=[Curriculum()], verbose=0)
    agent.save(tmp_path / "agent.noterl")
    resumed, curriculum = dqn(LevelEnv, seed=None), Curriculum()
    resumed.restore(tmp_path / "agent.noterl")
    with pytest.warns(RuntimeWarning, match="env_call"):
        resumed.fit(episodes=1, workers=workers, callbacks=[curriculum], verbose=0)
    assert curriculum.levels[0][0] == [2, 2]


def test_call_outside_of_fit_raises() -> None:
    agent = dqn(LevelEnv)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"env_call\('set_level'\).*fit"):
            agent.env_call("set_level", 1)
        with pytest.raises(RuntimeError, match="env_get"):
            agent.env_get("level")
        agent.fit(steps=2, verbose=0)


@pytest.mark.parametrize("workers", [0, 1])
def test_unknown_name_raises_in_the_callback(workers: int) -> None:
    class Misspelled(noterl.Callback):
        def on_step_end(self) -> None:
            with pytest.raises(ValueError, match=r"set_levle.*set_level"):
                self.agent.env_call("set_levle", 1)

    agent = dqn(LevelEnv)
    agent.fit(steps=3, workers=workers, callbacks=[Misspelled()], verbose=0)
    assert agent.steps == 3

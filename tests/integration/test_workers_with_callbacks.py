"""Callbacks and finders with worker processes: results, exact files, and what workers import."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import noterl
from noterl.callback import Every
from noterl.callbacks import BackupAndRestore, Checkpoint, Evaluate, RecordVideo
from noterl.collect import Workers
from noterl.collect.workers import lanes as pool_module
from noterl.finders import LRFinder, ParallelFinder
from tests.integration.test_workers import dqn, ppo, td3
from tests.support.doubles import RandomWalkEnv
from tests.support.pools import children
from tests.support.states import assert_same_state
from tests.support.worker_envs import CountEnv, DiscreteWalkEnv, WithModules

pytestmark = pytest.mark.backends("torch")


class Interrupt(noterl.Callback):
    """Raises KeyboardInterrupt after some steps."""

    def __init__(self, steps: int) -> None:
        self.every, self.steps = Every(1, "steps"), steps

    def on_due(self, logs: Any) -> None:
        if self.agent.steps == self.steps:
            raise KeyboardInterrupt


def test_evaluation_in_the_background_changes_nothing() -> None:
    found = []
    for background in (False, True):
        agent = dqn("CartPole-v1")
        evaluate = Evaluate(every=3, episodes=2, background=background)
        agent.fit(episodes=7, num_envs=2, workers=2, callbacks=[evaluate], verbose=0)
        found.append((evaluate.results, {**agent.get_state(), "callbacks": {}}))
    assert found[0][0] == found[1][0] and found[0][0]["episodes"] == [3, 6]
    assert_same_state(found[0][1], found[1][1])
    assert not children()


def test_learning_rate_finder_trains_with_workers_and_restores_the_agent() -> None:
    agents = [dqn(), dqn()]
    for agent in agents:
        agent.fit(steps=20, num_envs=2, workers=2, verbose=0)
    finder = LRFinder(agents[0])
    finder.find(episodes=16, window_size=2, num_envs=2, workers=2)
    assert len(finder.results) > 2 and not children()
    for agent in agents:
        agent.fit(steps=20, workers=2, verbose=0)
    assert_same_state(*agents)


def test_parallel_finder_trains_with_workers() -> None:
    finder = ParallelFinder([dqn("CartPole-v1"), dqn("CartPole-v1", seed=4)], processes=1)
    finder.find(episodes=2, num_envs=2, workers=2)
    assert len(finder.results) == 2 and all(np.isfinite(row["mean"]) for row in finder.results)
    assert not children()


@pytest.mark.parametrize("steps", [25, 38])
def test_backup_continues_exactly(tmp_path: Path, steps: int) -> None:
    agents = {name: td3() for name in ("whole", "interrupted", "resumed")}
    backups = {name: BackupAndRestore(tmp_path / f"{name == 'whole'}.noterl", 7, unit="steps") for name in agents}
    agents["whole"].fit(steps=60, num_envs=3, workers=2, callbacks=[backups["whole"]], verbose=0)
    with pytest.raises(KeyboardInterrupt):
        both = [backups["interrupted"], Interrupt(steps)]
        agents["interrupted"].fit(steps=60, num_envs=3, workers=2, callbacks=both, verbose=0)
    agents["resumed"].fit(steps=60, num_envs=3, workers=2, callbacks=[backups["resumed"]], verbose=0)
    assert_same_state(*({**agents[name].get_state(), "callbacks": {}} for name in ("whole", "resumed")))
    assert not children()


@pytest.mark.parametrize("workers", [1, 2])
def test_checkpoint_in_a_phase_longer_than_the_ring_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: int
) -> None:
    monkeypatch.setattr(pool_module, "RING_ROUNDS", 3)
    plain, saving = ppo(), ppo()
    plain.fit(steps=100, num_envs=4, workers=workers, verbose=0)
    checkpoint = Checkpoint(tmp_path, save_freq=7, unit="steps", max_save_files=None)
    saving.fit(steps=100, num_envs=4, workers=workers, callbacks=[checkpoint], verbose=0)
    assert_same_state(*({**agent.get_state(), "callbacks": {}} for agent in (plain, saving)))
    for steps in (21, 70):
        resumed = ppo(seed=None)
        resumed.restore(next(tmp_path.glob(f"*step-{steps:08}-*.noterl")))
        resumed.fit(steps=100 - steps, workers=workers, verbose=0)
        assert_same_state(*({**agent.get_state(), "callbacks": {}} for agent in (plain, resumed)))


def test_rows_are_right_when_a_callback_calls_environments_in_a_long_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "RING_ROUNDS", 3)

    class Look(noterl.Callback):
        every = Every(1, "steps")

        def on_due(self, logs: Any) -> None:
            assert self.agent.env_get("length") == [0] * 3

    agent = noterl.DQN(CountEnv, hidden=(4,), seed=3)
    agent.compile(replay=500, batch_size=4, learning_starts=10_000)
    agent.fit(steps=240, num_envs=3, workers=Workers(2, collect=40), callbacks=[Look()], verbose=0)
    storage = agent.replay._storage
    indices = storage.stored_indices()
    observations, following = storage.observations(indices), storage.next_observations(indices)
    assert np.array_equal(observations[:, 0], np.arange(240) // 3) and np.array_equal(following, observations + 1)


def test_videos_are_recorded_with_workers(tmp_path: Path) -> None:
    agent = dqn("CartPole-v1")
    agent.fit(episodes=4, num_envs=2, workers=2, callbacks=[RecordVideo(tmp_path, every=2)], verbose=0)
    assert list(tmp_path.iterdir()) and not children()


@pytest.mark.parametrize(("make", "env"), [(dqn, DiscreteWalkEnv), (td3, RandomWalkEnv)])
def test_workers_import_no_framework(make: Any, env: Any) -> None:
    found: list[set[str]] = []

    class Look(noterl.Callback):
        def on_episode_end(self, episode: int, logs: Any) -> None:
            found.extend(map(set, self.agent.env_call("modules")))

    make(partial(WithModules, env)).fit(episodes=2, num_envs=2, workers=2, callbacks=[Look()], verbose=0)
    assert len(found) >= 4 and not set.union(*found) & {"keras", "torch", "tensorflow", "jax"}

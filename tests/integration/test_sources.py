"""`fit` with workers whose numbers of transitions differ: windows of workers, and exact resuming."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import noterl
from noterl.callbacks import ESSWindow, LambdaCallback, Window
from noterl.collect import Workers
from noterl.replay import Prioritized
from tests.support.replay_invariants import check_replay
from tests.support.states import assert_same_state
from tests.support.worker_envs import DiscreteWalkEnv, UnequalEnv

pytestmark = pytest.mark.backends("torch")


def dqn(env: Any = DiscreteWalkEnv, seed: int | None = 3, **replay: Any) -> noterl.DQN:
    agent = noterl.DQN(env, hidden=(8,), seed=seed)
    agent.compile(replay=noterl.Replay(90, **replay), batch_size=8, learning_starts=10, update_every=3)
    return agent


def counts(agent: noterl.DQN) -> list[int]:
    assert agent.replay.sources is not None
    return agent.replay.sources.counts()


def test_long_episodes_do_not_dominate() -> None:
    """Workers deliver whole rounds, so each environment has the same share of the memory."""
    agent = dqn(UnequalEnv, seed=5)
    history = agent.fit(steps=300, num_envs=2, workers=Workers(2, collect="episode"), verbose=0).history
    lengths = {(int(worker), int(n)) for worker, n in zip(history["worker"], history["length"], strict=True)}
    assert lengths == {(0, 4), (1, 30)} or lengths == {(0, 30), (1, 4)}
    assert max(counts(agent)) - min(counts(agent)) <= 1


def test_memory_with_uneven_shares_resumes_exactly(tmp_path: Path) -> None:
    agents = [dqn(), dqn(), dqn()]
    for agent in agents[:2]:
        agent.fit(steps=60, num_envs=1, verbose=0)
    agents[0].fit(steps=70, num_envs=2, workers=2, verbose=0)
    agents[1].fit(steps=31, num_envs=2, workers=2, verbose=0)
    agents[1].save(tmp_path / "agent.noterl")
    agents[2].restore(tmp_path / "agent.noterl")
    agents[2].fit(steps=39, workers=2, verbose=0)
    assert_same_state(agents[0], agents[2])
    assert len(set(agents[0].replay.sampler.probabilities())) == 1


class TestWindows:
    def test_window_keeps_the_newest_transitions_of_each_worker(self) -> None:
        agent, sizes = dqn(), []
        agent.fit(steps=60, num_envs=1, verbose=0)
        window = Window(lambda agent, worker: (20, 9)[worker], every=10, by="worker")
        probe = noterl.Callback()
        probe.on_step_end = lambda: agent.steps % 10 == 0 and sizes.append(counts(agent))
        history = agent.fit(steps=40, num_envs=2, workers=2, callbacks=[window, probe], verbose=0)
        assert sizes == [[20, 5], [20, 9], [20, 9], [20, 9]]
        assert history.history["window"][-1] <= 29 + 9
        storage = agent.replay.sampler.storage
        ages = [storage.insertion_numbers(own) for own in agent.replay.sources.split()]
        # The memory holds the steps 60, 62 ... of lane 0 and 61, 63 ... of lane 1.
        assert [each.tolist() for each in ages] == [list(range(60, 100, 2)), list(range(83, 100, 2))]
        assert storage.begin == 60
        check_replay(agent.replay)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: Window(0.5, every=12, by="worker"),
            lambda: ESSWindow(0.8, mode="target", min_size=10, every=9, unit="steps", by="worker"),
            lambda: ESSWindow(0.7, mode="target", trim="sampled", min_size=10, every=9, unit="steps", by="worker"),
        ],
    )
    def test_windows_of_workers_resume_exactly(self, make: Callable[[], noterl.Callback], tmp_path: Path) -> None:
        def agent() -> noterl.DQN:
            return dqn(sampler=Prioritized())

        whole, first, second = agent(), agent(), agent()
        sizes: list[int] = []
        probe = LambdaCallback(on_episode_end=lambda episode, logs: sizes.append(logs.get("window", 0)))
        whole.fit(steps=110, num_envs=2, workers=2, callbacks=[make(), probe], verbose=0)
        first.fit(steps=57, num_envs=2, workers=2, callbacks=[make()], verbose=0)
        first.save(tmp_path / "half.noterl")
        second.restore(tmp_path / "half.noterl")
        second.fit(steps=53, workers=2, callbacks=[make()], verbose=0)
        assert_same_state(second, whole)
        assert sum(counts(whole)) < 90 and len(set(sizes)) > 3

    def test_without_workers_there_is_one_window(self) -> None:
        agents = [dqn(), dqn()]
        for agent, by in zip(agents, (None, "worker"), strict=True):
            agent.fit(steps=95, num_envs=2, callbacks=[Window(25, every=30, by=by)], verbose=0)
        assert_same_state(*agents)

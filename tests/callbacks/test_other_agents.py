"""A callback passed to another agent has its first state; a monitor follows the callback that adds its metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import noterl
from noterl.callback import Callback
from noterl.callbacks import (
    AdaBatch,
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    ESSAdapt,
    Evaluate,
    Export,
    Rate,
    ReduceLROnPlateau,
    Scale,
    StopOnTime,
)
from noterl.replay import Prioritized
from noterl.utils.tables import read_csv
from tests.support.tape import rewarded

pytestmark = pytest.mark.backends("torch")


def dqn(seed: int, **options: Any) -> noterl.DQN:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=seed)
    agent.compile(batch_size=4, learning_starts=8, jit_compile=False, **options)
    return agent


class TestSecondAgent:
    def test_early_stopping_restores_no_weights_of_the_first(self) -> None:
        callback = EarlyStopping(1, 1000, restore_best_weights=True)
        first, second = dqn(1), dqn(2)
        first.fit(episodes=3, callbacks=[callback], verbose=0)
        best = callback.get_state()["best"]
        second.fit(episodes=1, callbacks=[callback], verbose=0)
        assert callback.get_state()["best"] != best
        own, other = second.get_weights(), first.get_weights()
        assert not any(np.array_equal(own[name], other[name]) for name in own)

    def test_files_of_the_first_are_kept(self, tmp_path: Path) -> None:
        callback = Checkpoint(tmp_path, save_freq=1, max_save_files=1)
        rewarded([1]).fit(episodes=2, callbacks=[callback], verbose=0)
        before = set(tmp_path.glob("*.noterl"))
        rewarded([5]).fit(episodes=3, callbacks=[callback], verbose=0)
        assert len(before) == 1 and before < set(tmp_path.glob("*.noterl"))

    def test_adapted_values_are_those_of_the_second(self) -> None:
        callback = ESSAdapt(target_ess=0.5, lr=Rate(1e-5, 1e-4, 1e-2))
        memories = [noterl.Replay(200, sampler=Prioritized()) for _ in range(2)]
        first = dqn(1, optimizer=1e-3, replay=memories[0])
        second = dqn(2, optimizer=3e-4, replay=memories[1])
        first.fit(steps=200, callbacks=[callback], verbose=0)
        assert first.learning_rate != pytest.approx(1e-3)
        second.fit(steps=1, callbacks=[callback], verbose=0)
        assert second.learning_rate == pytest.approx(3e-4)

    def test_default_bounds_are_those_of_the_second(self) -> None:
        callback = AdaBatch(2, batch=Scale())
        highest = []
        for batch_size in (4, 64):
            agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
            agent.compile(batch_size=batch_size, learning_starts=10**6)
            agent.fit(steps=1, callbacks=[callback], verbose=0)
            highest.append(callback._adjusted["batch"].max)
        assert highest[1] == 16 * highest[0]

    def test_time_and_exports_begin_anew(self, tmp_path: Path) -> None:
        stop, export = StopOnTime(0.05), Export(tmp_path / "policy", "numpy", save_freq=1, window=1)
        dqn(1).fit(callbacks=[stop, export], verbose=0)
        (tmp_path / "policy.npz").unlink()
        second = dqn(2)
        second.fit(callbacks=[stop, export], verbose=0)
        assert second.steps > 1 and (tmp_path / "policy.npz").exists()

    def test_state_that_begins_in_on_train_begin(self) -> None:
        class Counts(Callback):
            def on_train_begin(self, logs: Any) -> None:
                self.count = 0

            def on_episode_end(self, episode: int, logs: Any) -> None:
                self.count += 1

            def get_state(self) -> dict[str, Any]:
                return {"count": self.count}

        callback = Counts()
        for episodes in (3, 2):
            rewarded([1]).fit(episodes=episodes, callbacks=[callback], verbose=0)
            assert callback.count == episodes

    @pytest.mark.parametrize("append", [False, True])
    def test_log_of_the_first_is_kept(self, append: bool, tmp_path: Path) -> None:
        callback = CSVLogger(tmp_path / "log.csv", append=append)
        rewarded([1]).fit(episodes=4, callbacks=[callback], verbose=0)
        rewarded([5]).fit(episodes=2, callbacks=[callback], verbose=0)
        counts = {file.name: len(read_csv(file)) for file in tmp_path.iterdir()}
        assert counts == ({"log.csv": 6} if append else {"log.csv": 2, "log.csv.1": 4})

    def test_second_fit_of_one_agent_continues(self) -> None:
        agent, callback = rewarded([1, 2, 3, 4]), EarlyStopping(3, criterion=2.0)
        agent.fit(episodes=2, callbacks=[callback], verbose=0)
        assert agent.fit(episodes=9, callbacks=[callback], verbose=0).stop_reason == "reward reached 2.0"
        assert agent.episodes == 3

    def test_restored_agent_continues(self, tmp_path: Path) -> None:
        """The file, not the callback's first state, is what a new agent of the same run continues from."""
        agent, callback = dqn(1), EarlyStopping(3, criterion=1e9)
        agent.fit(episodes=2, callbacks=[callback], verbose=0)
        agent.save(tmp_path / "agent.noterl")
        noterl.load(tmp_path / "agent.noterl").fit(episodes=1, callbacks=[callback], verbose=0)
        assert len(callback.get_state()["recent"]) == 3


class Shows(Callback):
    adds = ("shown",)

    def on_episode_end(self, episode: int, logs: Any) -> None:
        logs["shown"] = 1.0


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [(EarlyStopping, {"trial_count": 1, "criterion": 9.0}), (ReduceLROnPlateau, {})],
)
def test_monitor_before_the_callback_that_adds_its_metric_raises(kind: Any, arguments: Any) -> None:
    monitoring = kind(monitor="shown", **arguments)
    with pytest.raises(ValueError, match=rf"monitor: .*'shown'.*{kind.__name__}"):
        rewarded([1]).fit(episodes=3, callbacks=[monitoring, Shows()], verbose=0)
    dqn(1).fit(episodes=1, callbacks=[Shows(), kind(monitor="shown", **arguments)], verbose=0)


def test_evaluation_after_the_monitor_raises_at_the_first_episode() -> None:
    agent = dqn(1)
    callbacks = [EarlyStopping(1, 1, monitor="evaluation_reward_mean"), Evaluate(every=100, episodes=1)]
    with pytest.raises(ValueError, match="Evaluate adds 'evaluation_reward_mean'"):
        agent.fit(callbacks=callbacks, verbose=0)
    assert agent.episodes == 1

"""Budgets, schedules, counters and logs of `fit`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import noterl
from noterl.callback import Callback
from noterl.callbacks import EarlyStopping, LambdaCallback
from noterl.policies import GreedyQPolicy
from tests.support.doubles import CountingEnv, TogetherVectorEnv
from tests.support.replay_invariants import check_replay
from tests.support.tape import Tape, TapeAgent, steps_of, taped, updates_of

pytestmark = pytest.mark.backends("torch")


@pytest.fixture
def tape() -> Tape:
    return Tape()


class TestBudgets:
    @pytest.mark.parametrize("num_envs", [1, 4])
    @pytest.mark.parametrize("episodes", [1, 3, 7])
    def test_budget_of_episodes_is_exact(self, tape: Tape, num_envs: int, episodes: int) -> None:
        agent = taped(tape, length=3)
        history = agent.fit(episodes=episodes, num_envs=num_envs, verbose=0)
        assert len(history) == agent.episodes == episodes
        assert history.stop_reason == "episodes"
        # The lane with the last episode of the budget makes the last step.
        last = (episodes - 1) % num_envs
        rounds = 3 * math.ceil(episodes / num_envs)
        assert agent.steps == len(steps_of(tape)) == (rounds - 1) * num_envs + last + 1

    @pytest.mark.parametrize("num_envs", [1, 4])
    def test_budget_of_steps_is_exact(self, tape: Tape, num_envs: int) -> None:
        agent = taped(tape, length=3)
        history = agent.fit(steps=10, num_envs=num_envs, verbose=0)
        assert history.stop_reason == "steps"
        assert agent.steps == len(agent.replay) == 10
        assert steps_of(tape.take()) == [step % num_envs for step in range(10)]
        agent.fit(steps=7, verbose=0)
        assert steps_of(tape) == [step % num_envs for step in range(10, 17)]
        assert agent.steps == len(agent.replay) == 17

    def test_second_fit_adds_its_episodes(self, tape: Tape) -> None:
        agent = taped(tape)
        agent.fit(episodes=2, verbose=0)
        assert len(agent.fit(episodes=3, verbose=0)) == 3
        assert agent.episodes == 5

    def test_budget_that_is_spent_first_ends_training(self, tape: Tape) -> None:
        agent = taped(tape, length=3)
        assert agent.fit(episodes=2, steps=100, verbose=0).stop_reason == "episodes"
        assert agent.fit(episodes=100, steps=4, verbose=0).stop_reason == "steps"
        assert agent.steps == 10

    def test_callback_that_stops_training_replaces_a_budget(self, tape: Tape) -> None:
        agent = taped(tape)
        assert len(agent.fit(callbacks=[EarlyStopping(3, criterion=0)], verbose=0)) == 3

    def test_fit_without_budget_raises(self, tape: Tape) -> None:
        with pytest.raises(ValueError, match="episodes or steps"):
            taped(tape).fit(callbacks=[Callback()], verbose=0)
        assert tape == []

    @pytest.mark.parametrize("value", [0, -1, 2.5, True, "3", float("inf")])
    @pytest.mark.parametrize("name", ["episodes", "steps", "num_envs", "log_every"])
    def test_invalid_number_raises(self, tape: Tape, name: str, value: Any) -> None:
        arguments = {"steps": 5, name: value}
        with pytest.raises(ValueError, match=rf"^{name} must .*got {value!r}$"):
            taped(tape).fit(verbose=0, **arguments)
        assert tape == []

    @pytest.mark.parametrize("value", [3, -1, True, "loud", None])
    def test_invalid_verbose_raises(self, tape: Tape, value: Any) -> None:
        with pytest.raises(ValueError, match=rf"verbose .*got {value!r}"):
            taped(tape).fit(steps=5, verbose=value)

    @pytest.mark.parametrize("value", [Callback(), Callback, 3])
    def test_callbacks_that_are_not_a_list_raise(self, tape: Tape, value: Any) -> None:
        with pytest.raises(ValueError, match="callbacks"):
            taped(tape).fit(steps=5, callbacks=value, verbose=0)

    @pytest.mark.parametrize(
        ("value", "message"),
        [(Callback, r"got the class Callback"), ("loud", "'loud'")],
    )
    def test_item_that_is_not_a_callback_raises(self, tape: Tape, value: Any, message: str) -> None:
        with pytest.raises(ValueError, match=f"callbacks: .*{message}"):
            taped(tape).fit(steps=5, callbacks=[value], verbose=0)

    def test_numpy_integers_are_accepted(self, tape: Tape) -> None:
        agent = taped(tape)
        agent.fit(steps=np.int64(5), num_envs=np.int32(2), verbose=0)
        assert agent.steps == 5

    def test_budget_of_steps_can_end_before_the_first_episode(self, tape: Tape) -> None:
        history = taped(tape, length=100).fit(steps=5, verbose=1)
        assert len(history) == 0
        assert history.history["reward"] == []


class CountedEnv(CountingEnv):
    """Counts every call of `step`, in all environments."""

    stepped = 0

    def step(self, action):
        CountedEnv.stepped += 1
        return super().step(action)


class TestVectorBudgets:
    @staticmethod
    def agent(tape: Tape, mode: AutoresetMode) -> TapeAgent:
        CountedEnv.stepped = 0
        vector = TogetherVectorEnv([lambda: CountedEnv(3)] * 4, autoreset_mode=mode)
        agent = TapeAgent(vector, tape=tape)
        agent.compile(
            policy=GreedyQPolicy(), replay=noterl.Replay(100), batch_size=1, learning_starts=1, update_every=1
        )
        return agent

    @pytest.mark.parametrize("mode", AutoresetMode)
    def test_steps_are_exact_and_the_surplus_is_discarded_with_one_warning(
        self, tape: Tape, mode: AutoresetMode
    ) -> None:
        agent = self.agent(tape, mode)
        with pytest.warns(RuntimeWarning, match="2 transitions of its 4 lanes") as caught:
            history = agent.fit(steps=10, verbose=2)
        assert len(caught) == 1
        assert agent.steps == len(agent.replay) == 10
        assert CountedEnv.stepped == 12
        assert history.stop_reason == "steps"
        assert updates_of(tape) == 9

    @pytest.mark.parametrize("mode", AutoresetMode)
    def test_budget_of_episodes_is_exact(self, tape: Tape, mode: AutoresetMode) -> None:
        agent = self.agent(tape, mode)
        with pytest.warns(RuntimeWarning, match="discarded"):
            history = agent.fit(episodes=6, verbose=0)
        assert len(history) == agent.episodes == 6
        assert history.history["length"] == [3] * 6
        # The budget ends with the second lane's second episode, so two transitions are discarded.
        assert agent.steps == len(agent.replay) == 22

    @pytest.mark.parametrize("mode", AutoresetMode)
    def test_logs_of_an_unfinished_episode_do_not_include_the_surplus(self, tape: Tape, mode: AutoresetMode) -> None:
        lengths = []
        hook = LambdaCallback(on_episode_end=lambda episode, logs: lengths.append((logs["length"], logs["reward"])))
        with pytest.warns(RuntimeWarning, match="discarded"):
            self.agent(tape, mode).fit(steps=7, callbacks=[hook], verbose=0)
        assert lengths == [(2, 3.0), (2, 3.0), (2, 3.0), (1, 1.0)]

    @pytest.mark.parametrize("mode", AutoresetMode)
    def test_second_fit_adds_its_budget_after_the_surplus(self, tape: Tape, mode: AutoresetMode) -> None:
        agent = self.agent(tape, mode)
        for budget, total in ((10, 10), (2, 12), (7, 19)):
            with pytest.warns(RuntimeWarning, match="discarded"):
                agent.fit(steps=budget, verbose=0)
            assert agent.steps == len(agent.replay) == total
            check_replay(agent.replay)

    def test_resets_are_not_counted_as_steps(self, tape: Tape) -> None:
        agent = self.agent(tape, AutoresetMode.NEXT_STEP)
        agent.fit(steps=20, verbose=0)
        # Four lanes have episodes of three steps. The fourth of six rounds resets them, so five rounds make 20 steps.
        assert CountedEnv.stepped == 20
        assert agent.steps == len(agent.replay) == 20


class TestLogs:
    def test_history_stores_the_logs_of_episodes(self, tape: Tape) -> None:
        agent = taped(tape, update_every=3, updates=2, learning_starts=2, length=2, target_update=None)
        history = agent.fit(episodes=5, verbose=0).history
        assert list(history) == ["reward", "length", "loss", "steps", "updates", "time"]
        assert history["reward"] == [2.0] * 5
        assert history["length"] == [2] * 5
        assert history["steps"] == [2, 4, 6, 8, 10]
        # Groups at steps 3, 6 and 9, with the losses 0 and 1, 2 and 3, 4 and 5; no group at steps 7 and 8.
        assert history["updates"] == [0, 2, 4, 4, 6]
        assert math.isnan(history["loss"][0])
        assert history["loss"][1:] == [0.5, 2.5, 2.5, 4.5]
        assert all(earlier < later for earlier, later in zip([0.0, *history["time"]], history["time"], strict=False))

    def test_loss_is_absent_before_the_first_update(self, tape: Tape) -> None:
        names = []
        hook = LambdaCallback(on_episode_end=lambda episode, logs: names.append(set(logs)))
        taped(tape, learning_starts=3).fit(steps=5, callbacks=[hook], verbose=0)
        common = {"reward", "length", "steps", "updates", "time", "complete"}
        assert names == [common, common | {"loss"}, common | {"loss"}]

    def test_loss_of_an_unfinished_episode_stays_in_the_mean_of_the_next_end(self, tape: Tape) -> None:
        logged = []
        hook = LambdaCallback(on_episode_end=lambda episode, logs: logged.append((logs["complete"], logs.get("loss"))))
        agent = taped(tape, length=5)
        agent.fit(steps=3, callbacks=[hook], verbose=0)
        agent.fit(steps=2, callbacks=[hook], verbose=0)
        # The losses were 0, 1 and then 2, 3. The logs of the unfinished episode do not reset the mean.
        assert logged == [(False, 0.5), (True, 1.5)]

    def test_next_fit_continues_the_totals_and_restarts_the_time(self, tape: Tape) -> None:
        agent = taped(tape)
        agent.fit(episodes=3, verbose=0)
        second = agent.fit(episodes=2, verbose=0)
        assert second.history["steps"] == [8, 10]
        assert second.history["updates"] == [8, 10]
        assert second.episode == [3, 4]
        assert second.history["time"][0] < 5

    def test_columns_that_appear_late_are_padded(self, tape: Tape) -> None:
        def add(episode: int, logs: dict[str, Any]) -> None:
            if episode in (1, 3):
                logs.update(zeta=episode, alpha=-episode)

        agent = taped(tape)
        history = agent.fit(episodes=4, callbacks=[LambdaCallback(on_episode_end=add)], verbose=0).history
        np.testing.assert_equal(history["zeta"], [math.nan, 1, math.nan, 3])
        assert list(history)[-2:] == ["zeta", "alpha"]

    def test_time_split(self, tape: Tape) -> None:
        history = taped(tape).fit(episodes=3, callbacks=[LambdaCallback(on_episode_end=lambda *_: None)], verbose=0)
        assert list(history.time_split) == ["environment", "act", "store", "sample", "learn", "callbacks"]
        assert all(seconds > 0 for seconds in history.time_split.values())
        assert sum(history.time_split.values()) < 5


@pytest.fixture(scope="module")
def agent() -> noterl.DQN:
    """Return a small agent with Polyak averaging."""
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=5)
    agent.compile(
        replay=noterl.Replay(500), batch_size=8, learning_starts=20, update_every=8, updates=4, target_update=0.5
    )
    return agent


class TestRealUpdates:
    """Losses and targets with real updates of the backend."""

    def test_loss_is_the_mean_over_updates_since_the_last_episode_end(self, agent: noterl.DQN) -> None:
        losses: list[float] = []
        means: list[float] = []

        def record(episode: int, logs: dict[str, Any]) -> None:
            if logs["complete"]:
                means.append(np.mean(losses) if losses else math.nan)
                losses.clear()

        hooks = LambdaCallback(on_batch_end=lambda batch, logs: losses.append(logs["loss"]), on_episode_end=record)
        history = agent.fit(steps=150, callbacks=[hooks], verbose=0)
        np.testing.assert_allclose(history.history["loss"], means, rtol=1e-12)
        assert sum(math.isfinite(mean) for mean in means) >= 4

    def test_polyak_averaging_moves_the_target_after_every_update(self, agent: noterl.DQN) -> None:
        class TargetCheck(Callback):
            needs_live_updates = True
            updates = 0

            def on_batch_begin(self, batch, logs):
                self.before = noterl.networks.get_weights(self.agent.target_q)

            def on_batch_end(self, batch, logs):
                online = noterl.networks.get_weights(self.agent.q)
                after = noterl.networks.get_weights(self.agent.target_q)
                for old, new, weight in zip(self.before, after, online, strict=True):
                    np.testing.assert_allclose(new, (old + weight) / 2, rtol=1e-5, atol=1e-6)
                self.updates += 1

        check = TargetCheck()
        agent.fit(steps=16, callbacks=[check], verbose=0)
        assert check.updates == 8

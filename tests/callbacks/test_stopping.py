"""Callbacks that stop training or reduce the learning rate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np
import pytest

import noterl
from noterl.callbacks import (
    Checkpoint,
    EarlyStopping,
    Evaluate,
    HyperparameterScheduler,
    LambdaCallback,
    ReduceLROnPlateau,
    StopOnSteps,
    StopOnTime,
    TerminateOnNaN,
    stop_on_time,
)
from noterl.replay import Prioritized
from noterl.training.dispatch import CallbackList, call_handlers
from tests.support.doubles import FakeClock
from tests.support.states import assert_same_state, differences, one_lane
from tests.support.tape import Broken, broken, rewarded

pytestmark = pytest.mark.backends("torch")
every_backend = pytest.mark.backends("tensorflow", "jax", "torch")


class RatedAgent:
    """The part of an agent with two optimizers that `ReduceLROnPlateau` uses."""

    finished_epochs = 0
    log_step = property(lambda self: self.steps)
    optimizer_names = ("actor", "critic")
    callbacks: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.rates = {"actor": 1.0, "critic": 0.5}
        self.episodes = self.steps = 0
        self.reason: str | None = None

    def get_rule(self, rule: str, name: str) -> float:
        assert rule == "learning_rate"
        return self.rates[name]

    def set_rule(self, rule: str, value: float, name: str) -> None:
        assert rule == "learning_rate"
        self.rates[name] = value

    def show_message(self, message: str) -> None:
        pass

    def stop(self, reason: str) -> None:
        self.reason = reason


@pytest.fixture
def rated() -> RatedAgent:
    return RatedAgent()


def play(callback: ReduceLROnPlateau, agent: RatedAgent, rewards: list[float]) -> list[float]:
    """Finish episodes of ten steps; return the actor's rate after each."""
    callback.agent = agent
    events, rates = CallbackList([callback]).bind(), []
    for reward in rewards:
        agent.episodes += 1
        agent.steps += 10
        logs = {"reward": reward}
        call_handlers(events.on_episode_end, agent.episodes - 1, logs)
        assert logs["learning_rate/actor"] == agent.rates["actor"]
        rates.append(agent.rates["actor"])
        if agent.reason is not None:
            break
    return rates


class TestReduceLROnPlateau:
    def test_plateau_reduces_the_rate_of_every_optimizer(self, rated: RatedAgent) -> None:
        slower = ReduceLROnPlateau(0.5, 2, window=1)
        assert play(slower, rated, [1, 1, 1, 1, 1]) == [1.0, 1.0, 0.5, 0.5, 0.25]
        assert rated.rates == {"actor": 0.25, "critic": 0.125}

    @pytest.mark.parametrize(
        ("arguments", "rewards", "rates"),
        [
            ({}, [1, 1, 2, 2, 2], [1, 1, 1, 1, 0.5]),
            ({"mode": "min"}, [2, 1, 1, 1], [1, 1, 1, 0.5]),
            ({"window": 2}, [0, 4, 0, 4, 0], [1, 1, 1, 0.5, 0.5]),
            ({"min_delta": 1.0}, [1, 2, 2, 3.5], [1, 1, 0.5, 0.5]),
            ({"cooldown": 2}, [1, 1, 1, 1, 1, 1, 1], [1, 1, 0.5, 0.5, 0.5, 0.5, 0.25]),
            ({"cooldown": 2}, [1, 1, 1, 2, 2, 2, 2], [1, 1, 0.5, 0.5, 0.5, 0.5, 0.25]),  # a better mean cools, too
            ({"min_lr": 0.4}, [1, 1, 1, 1, 1], [1, 1, 0.5, 0.5, 0.4]),
            ({"starts_at": 40}, [1, 1, 1, 1, 1], [1, 1, 1, 1, 0.5]),
            ({"every": 2}, [9, 1, 9, 1, 9, 1, 9, 1], [1, 1, 1, 1, 1, 0.5, 0.5, 0.5]),
        ],
        ids=str,
    )
    def test_rate_is_reduced_at_the_expected_episodes(
        self, rated: RatedAgent, arguments: dict[str, Any], rewards: list[float], rates: list[float]
    ) -> None:
        assert play(ReduceLROnPlateau(0.5, 2, **{"window": 1, **arguments}), rated, rewards) == rates

    def test_best_mean_counts_before_starts_at(self, rated: RatedAgent) -> None:
        assert play(ReduceLROnPlateau(0.5, 1, window=1, starts_at=30), rated, [9, 1, 5]) == [1, 1, 0.5]

    def test_stop_after_plateaus_ends_training(self, rated: RatedAgent) -> None:
        stopper = ReduceLROnPlateau(0.5, 2, window=1, stop_after=2)
        assert stopper.stops_training
        assert not ReduceLROnPlateau().stops_training
        assert play(stopper, rated, [1] * 9) == [1, 1, 0.5, 0.5, 0.25]
        assert rated.reason == "reward has not improved for 2 plateaus"

    def test_improvement_resets_the_plateaus(self, rated: RatedAgent) -> None:
        stopper = ReduceLROnPlateau(0.5, 1, window=1, stop_after=2)
        assert len(play(stopper, rated, [1, 1, 2, 2, 3, 3, 3, 3])) == 7

    def test_restored_state_continues_exactly(self, rated: RatedAgent) -> None:
        rewards = [1.0, 2, 2, 1, 3, 3, 3, 3, 3, 1, 1, 1]
        arguments: dict[str, Any] = {"factor": 0.5, "patience": 2, "window": 2, "cooldown": 1}
        whole = play(ReduceLROnPlateau(**arguments), rated, rewards)
        for cut in range(1, len(rewards)):
            rated.rates, rated.episodes, rated.steps = {"actor": 1.0, "critic": 0.5}, 0, 0
            first, second = ReduceLROnPlateau(**arguments), ReduceLROnPlateau(**arguments)
            rates = play(first, rated, rewards[:cut])
            second.set_state(first.get_state())
            assert rates + play(second, rated, rewards[cut:]) == whole

    def test_history_holds_the_rates(self) -> None:
        agent = one_lane()
        history = agent.fit(episodes=3, callbacks=[ReduceLROnPlateau(0.5, 1, monitor="length", window=1)], verbose=0)
        rates = history.history["learning_rate"]
        assert len(rates) == 3
        assert rates[0] == pytest.approx(1e-3)
        assert rates[-1] == agent.learning_rate

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"factor": 1.0}, r"^factor must be below 1, got 1.0$"),
            ({"factor": 0}, r"^factor must .*got 0$"),
            ({"patience": 0}, r"^patience must be a positive int, got 0$"),
            ({"window": 1.5}, r"^window must be a positive int, got 1.5$"),
            ({"every": -1}, r"^every must be a positive int, got -1$"),
            ({"cooldown": -1}, r"^cooldown must .*got -1$"),
            ({"min_lr": -1}, r"^min_lr must .*got -1$"),
            ({"starts_at": 0.5}, r"^starts_at must .*got 0\.5$"),
            ({"stop_after": 0}, r"^stop_after must .*got 0$"),
            ({"mode": "up"}, r"^mode must be 'max' or 'min', got 'up'$"),
        ],
    )
    def test_bad_arguments_raise(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            ReduceLROnPlateau(**arguments)

    def test_unknown_metric_raises(self) -> None:
        with pytest.raises(ValueError, match=r"monitor: .*'score'"):
            rewarded([0]).fit(episodes=3, callbacks=[ReduceLROnPlateau(monitor="score")], verbose=0)


class TestBestWeights:
    """The best weights are restored at the end of training, whatever ended it."""

    REWARDS = (1.0, 5.0, 2.0, 2.0, 2.0)

    def fit(self, tmp_path: Path, stopper: EarlyStopping, *others: Any, episodes: int = 5, agent: Any = None) -> Any:
        """Train; after episode n, the score in the logs is `REWARDS[n]` and all weights are set to n."""
        agent = agent or one_lane()

        def change(episode: int, logs: dict[str, Any]) -> None:
            if not logs["complete"]:
                return
            logs["score"] = self.REWARDS[episode]
            weights = agent.get_weights()
            agent.set_weights({name: np.full_like(array, episode) for name, array in weights.items()})

        agent.compile(learning_starts=10**6)
        agent.fit(episodes=episodes, callbacks=[LambdaCallback(on_episode_end=change), stopper, *others], verbose=0)
        return agent

    @staticmethod
    def number(agent: Any) -> float:
        """Return the number to which all weights are set."""
        (number,) = {float(value) for array in agent.get_weights().values() for value in np.unique(array)}
        return number

    @pytest.mark.parametrize("restore", [False, True])
    def test_best_weights_are_restored_when_the_budget_is_spent(self, tmp_path: Path, restore: bool) -> None:
        stopper = EarlyStopping(1, monitor="score", patience=100, restore_best_weights=restore)
        assert self.number(self.fit(tmp_path, stopper)) == (1 if restore else 4)

    def test_best_weights_are_restored_when_patience_ends_training(self, tmp_path: Path) -> None:
        stopper = EarlyStopping(1, monitor="score", patience=2, restore_best_weights=True)
        agent = self.fit(tmp_path, stopper)
        assert (agent.episodes, self.number(agent)) == (4, 1)

    def test_best_weights_are_in_the_last_checkpoint(self, tmp_path: Path) -> None:
        stopper = EarlyStopping(1, monitor="score", patience=100, restore_best_weights=True)
        agent = one_lane()
        enough = LambdaCallback(on_episode_end=lambda episode, logs: agent.stop("enough") if episode == 2 else None)
        self.fit(tmp_path, stopper, enough, Checkpoint(tmp_path), agent=agent)
        assert (agent.episodes, self.number(agent)) == (3, 1)
        assert self.number(noterl.load(Checkpoint.latest(tmp_path))) == 1

    @pytest.mark.parametrize("kind", ["noterl", "keras"])
    def test_best_weights_are_in_the_last_checkpoint_of_a_spent_budget(self, tmp_path: Path, kind: str) -> None:
        """The last episode has a file already, with its own weights."""
        stopper: Any = EarlyStopping(1, monitor="score", patience=100, restore_best_weights=True)
        if kind == "keras":
            stopper = keras.callbacks.EarlyStopping("score", patience=100, mode="max", restore_best_weights=True)
        assert self.number(self.fit(tmp_path, stopper, Checkpoint(tmp_path, save_freq=5))) == 1
        assert self.number(noterl.load(Checkpoint.latest(tmp_path))) == 1

    def test_best_weights_are_restored_after_an_error(self, tmp_path: Path) -> None:
        stopper = EarlyStopping(1, monitor="score", patience=100, restore_best_weights=True)
        agent = one_lane()
        crash = LambdaCallback(on_episode_end=lambda episode, logs: broken() if episode == 3 else None)
        with pytest.raises(Broken):
            self.fit(tmp_path, stopper, crash, agent=agent)
        assert self.number(agent) == 1

    def test_best_weights_are_saved_in_files(self, tmp_path: Path) -> None:
        def stopper() -> EarlyStopping:
            return EarlyStopping(1, monitor="score", patience=100, restore_best_weights=True)

        self.fit(tmp_path, stopper(), Checkpoint(tmp_path, save_freq=3, save_last=False), episodes=4)
        agent = noterl.load(Checkpoint.latest(tmp_path))
        assert (agent.episodes, self.number(agent)) == (3, 2)
        second = EarlyStopping(1, monitor="score", patience=100, restore_best_weights=True)
        self.fit(tmp_path, second, agent=agent, episodes=2)
        assert (agent.episodes, self.number(agent)) == (5, 1)


class TestStopOnSteps:
    @pytest.mark.parametrize("num_envs", [1, 3])
    def test_steps_are_exact_over_all_fits(self, num_envs: int) -> None:
        agent = rewarded([0.0])
        reasons = [
            agent.fit(steps=30, num_envs=num_envs, callbacks=[StopOnSteps(np.int64(50))], verbose=0).stop_reason
            for _ in range(3)
        ]
        assert agent.steps == 50
        assert reasons == ["steps"] * 3

    def test_fit_needs_no_budget(self) -> None:
        agent = rewarded([0.0])
        agent.fit(callbacks=[StopOnSteps(7)], verbose=0)
        assert agent.steps == 7

    def test_bad_arguments_raise(self) -> None:
        with pytest.raises(ValueError, match=r"^steps must be a positive int, got 0$"):
            StopOnSteps(0)


class TestStopOnTime:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> FakeClock:
        clock = FakeClock()
        monkeypatch.setattr(stop_on_time, "perf_counter", clock)
        return clock

    def slow(self, clock: FakeClock) -> LambdaCallback:
        callback = LambdaCallback()
        callback.on_step_end = lambda: clock.sleep(0.25)
        return callback

    def test_training_ends_after_the_step_in_progress(self, clock: FakeClock) -> None:
        agent = rewarded([0.0])
        history = agent.fit(callbacks=[self.slow(clock), StopOnTime(1.1)], verbose=0)
        assert history.stop_reason == "trained for 1.1 seconds"
        assert agent.steps == 5

    def test_time_of_earlier_fits_counts_but_not_between_them(self, clock: FakeClock) -> None:
        agent, stopper = rewarded([0.0]), StopOnTime(2)
        agent.fit(steps=5, callbacks=[self.slow(clock), stopper], verbose=0)
        assert stopper.get_state() == {"seconds": 1.25}
        clock.sleep(60)
        assert stopper.get_state() == {"seconds": 1.25}
        other = StopOnTime(2)
        other.set_state(stopper.get_state())
        clock.sleep(60)
        agent.fit(callbacks=[self.slow(clock), other], verbose=0)
        assert (agent.steps, other.get_state()) == (8, {"seconds": 2.0})

    def test_training_ends_by_the_real_clock(self) -> None:
        stopper = StopOnTime(0.02)
        rewarded([0.0]).fit(callbacks=[stopper], verbose=0)
        assert stopper.get_state()["seconds"] >= 0.02

    @pytest.mark.parametrize("seconds", [0, -1, math.inf, "long"])
    def test_bad_arguments_raise(self, seconds: Any) -> None:
        with pytest.raises(ValueError, match=r"^seconds must"):
            StopOnTime(seconds)


class TestTerminateOnNaN:
    @staticmethod
    def agent(**changes: Any) -> noterl.DQN:
        agent = one_lane(seed=2, **changes)
        agent.fit(steps=25, verbose=0)
        return agent

    @every_backend
    def test_training_ends_at_the_last_finite_state(self) -> None:
        agents = [self.agent(), self.agent()]
        for agent in agents:
            agent.set_rule("learning_rate", 1e25)  # the next update is finite, the one after it is not
        with pytest.raises(FloatingPointError) as raised:
            agents[0].fit(steps=20, verbose=0)
        history = agents[1].fit(steps=20, callbacks=[TerminateOnNaN()], verbose=0)
        assert history.stop_reason == agents[1].stop_reason
        assert history.stop_reason == str(raised.value).partition(";")[0]
        assert f"at update {agents[1].updates} (environment step {agents[1].steps})" in history.stop_reason
        for array in agents[1].get_weights().values():
            assert np.isfinite(array).all()
        assert not differences(agents[0].get_weights(), agents[1].get_weights())

    @pytest.mark.parametrize("steps_per_execution", [pytest.param("auto", marks=every_backend), 1])
    @pytest.mark.parametrize("jit_compile", ["auto", False])
    def test_group_that_fails_gives_the_memory_no_feedback(self, steps_per_execution: Any, jit_compile: Any) -> None:
        agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=2)
        agent.compile(
            replay=noterl.Replay(100, sampler=Prioritized()),
            batch_size=4,
            learning_starts=8,
            update_every=8,
            updates=6,
            steps_per_execution=steps_per_execution,
            jit_compile=jit_compile,
        )
        agent.fit(steps=16, verbose=0)
        agent.set_rule("learning_rate", 1e25)
        assert "not finite" in agent.fit(steps=40, callbacks=[TerminateOnNaN()], verbose=0).stop_reason

    @pytest.mark.parametrize("updates", [0, 8])
    def test_pretraining_stops_by_the_loss(self, updates: int) -> None:
        """`pretrain` counts no updates."""
        data = noterl.Dataset.record(noterl.DQN("CartPole-v1", hidden=(4,), seed=1), steps=40, seed=1)
        agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
        agent.compile(optimizer=keras.optimizers.SGD(0.01), batch_size=4, learning_starts=1, update_every=1, updates=1)
        agent.fit(steps=updates, verbose=0) if updates else None
        losses = agent.pretrain(data, 20, verbose=0, callbacks=[TerminateOnNaN()])["loss"]
        assert len(losses) == 20

    def test_finite_training_is_unchanged(self) -> None:
        plain, observed = self.agent(), self.agent()
        plain.fit(steps=30, verbose=0)
        assert observed.fit(steps=30, callbacks=[TerminateOnNaN()], verbose=0).stop_reason == "steps"
        assert_same_state(*({**each.get_state(), "callbacks": None} for each in (plain, observed)))

    @every_backend
    def test_epochs_that_stop_early_are_finite(self) -> None:
        """With a live callback, the update that is undone is reported, too."""
        agent = noterl.PPO("CartPole-v1", hidden=(8,), target_kl=1e-9, rollout_steps=16, epochs=4, seed=1)
        agent.compile(batch_size=4)
        live = HyperparameterScheduler("clip", lambda step: 0.2, live=True)
        history = agent.fit(steps=64, callbacks=[live, TerminateOnNaN()], verbose=0)
        assert history.stop_reason == "steps"
        assert 0 < agent.updates < 64


class Reports(gymnasium.Env[Any, Any]):
    """Reports the coverage at the end of every second episode."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)
    count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count += 1
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        info = {"coverage": 0.5} if self.count % 2 == 0 else {}
        return np.zeros(2, np.float32), 1.0, True, False, info


def test_episodes_without_a_monitored_info_are_not_counted() -> None:
    agent = noterl.DQN(Reports, hidden=(4,), seed=1)
    stopper = EarlyStopping(2, criterion=0.4, monitor="coverage")
    history = agent.fit(episodes=9, info=["coverage"], callbacks=[stopper], verbose=0)
    assert len(history.history["reward"]) == 4


def test_metrics_that_come_later_can_be_monitored() -> None:
    agent = noterl.DQN(Reports, hidden=(4,), seed=1)
    evaluate = Evaluate(every=3, episodes=2)
    stopper = EarlyStopping(1, criterion=0.4, monitor="evaluation_coverage")
    history = agent.fit(episodes=9, info=["coverage"], callbacks=[evaluate, stopper], verbose=0)
    assert len(history.history["reward"]) == 3

"""Finders: trials and recorded values; a search leaves the agent exactly as before."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np
import pytest

import noterl
from noterl.callbacks import LambdaCallback
from noterl.envs.vectorized import RegisteredVector
from noterl.finders import FinderLogger, LRFinder, OptFinder, ParallelFinder
from noterl.finders.candidates import Trial
from noterl.finders.curves import loss_exploded, normalized, reward_collapsed, window_means
from noterl.finders.lr_finder import _rows
from noterl.finders.parallel_finder import _try
from tests.finders.test_curves import huber
from tests.support.parts import lanes_of
from tests.support.states import assert_same_state, one_lane

pytestmark = pytest.mark.backends("torch")

RATES = ("actor", "critic")


@pytest.fixture(scope="module")
def agent() -> noterl.DQN:
    """Return an agent in the middle of an episode, with stored transitions and a used optimizer."""
    agent = one_lane()
    agent.fit(steps=97, verbose=0)
    return agent


class Undisturbed:
    """Checks that an agent is exactly as before at the end of the block."""

    def __init__(self, agent: noterl.Agent) -> None:
        self.agent = agent

    def __enter__(self) -> None:
        self.state, self.attributes = self.agent.get_state(), self.held()
        self.lanes, self.actor_generators = lanes_of(self.agent), self.agent._parts.built_actor.generators
        self.history, self.stop = self.agent.history, self.agent._parts.session.stop

    def held(self) -> dict[str, Any]:
        return {**vars(self.agent), **vars(self.agent._parts)}

    def __exit__(self, *_: Any) -> None:
        assert_same_state(self.agent.get_state(), self.state)
        after = self.held()
        assert after.keys() == self.attributes.keys()
        for name in ("session", "_learner", "built_actor", "_settings", "generators", "head"):
            assert after[name] is self.attributes[name], name
        assert self.agent.history is self.history and self.agent._parts.session.stop is self.stop
        assert lanes_of(self.agent) is self.lanes
        assert self.agent._parts.built_actor.generators is self.actor_generators is self.agent.generators


class TestLRFinder:
    @pytest.mark.parametrize("of_keras", [False, True])
    def test_scheduled_rate_raises_before_training(self, of_keras: bool) -> None:
        linear = noterl.schedules.Linear(1e-3, 1e-4, 100)
        rate = keras.optimizers.schedules.ExponentialDecay(1e-3, 10, 0.9) if of_keras else linear
        agent, callback = one_lane(), LambdaCallback(on_train_begin=lambda logs: pytest.fail("training began"))
        agent.compile(keras.optimizers.Adam(rate))
        with pytest.raises(ValueError, match="learning_rate has the schedule"):
            LRFinder(agent).find(episodes=20, callbacks=[callback])
        with pytest.raises(ValueError, match="learning_rate has the schedule"):
            agent.set_rule("learning_rate", 0.1)

    def test_reward_is_recorded_for_growing_rates(self, agent: noterl.DQN) -> None:
        finder = LRFinder(agent)
        with Undisturbed(agent):
            found = finder.find(episodes=24, start_lr=1e-4, end_lr=1e-2, window_size=4)
        rows = finder.results
        assert len(rows) == 24 or finder.stop_reason == "the reward collapsed"
        rewards = [row["reward"] for row in rows]
        expected = [1e-4 * 100 ** (index / 24) for index in range(len(rows))]
        assert [row["learning_rate"] for row in rows] == pytest.approx(expected, rel=1e-12)
        assert [row["normalized_reward"] for row in rows] == normalized(rewards, 4)
        assert [row["mean_reward"] for row in rows] == window_means(rewards, 4)
        assert found == finder.suggestion()
        assert finder.seconds > 0

    def test_each_update_has_its_own_rate_for_the_loss(self, agent: noterl.DQN) -> None:
        finder, seen = LRFinder(agent), []
        note = LambdaCallback(on_batch_end=lambda batch, logs: seen.append((agent.learning_rate, logs["loss"])))
        with Undisturbed(agent):
            finder.find(metric="loss", updates=30, start_lr=1e-5, end_lr=1e-3, callbacks=[note])
        assert [row["loss"] for row in finder.results] == [loss for _, loss in seen][: len(finder.results)]
        rates = [row["learning_rate"] for row in finder.results]
        np.testing.assert_allclose([rate for rate, _ in seen][: len(rates)], rates, rtol=1e-6)
        assert len(set(rates)) == len(rates) == 30

    def test_exploding_loss_ends_the_search(self, agent: noterl.DQN) -> None:
        finder = LRFinder(agent)
        with Undisturbed(agent):
            finder.find(metric="loss", updates=400, start_lr=1e-2, end_lr=1e6, window_size=3)
        assert len(finder.results) < 400
        assert finder.stop_reason == "the loss collapsed"

    def test_loss_that_is_not_finite_ends_the_search(self, agent: noterl.DQN) -> None:
        with Undisturbed(agent):
            finder = LRFinder(agent)
            finder.find(episodes=40, start_lr=1e20, end_lr=1e30)
        assert len(finder.results) < 40

    def test_episodes_before_the_first_update_are_not_points(self) -> None:
        agent, rates = one_lane(learning_starts=60), []
        note = LambdaCallback(on_episode_end=lambda episode, logs: rates.append((logs["updates"], agent.learning_rate)))
        finder = LRFinder(agent)
        with Undisturbed(agent):
            finder.find(episodes=16, end_lr=2e-4, callbacks=[note])
        early = [rate for updates, rate in rates if not updates]
        assert len(early) > 0
        np.testing.assert_allclose(early, 1e-4, rtol=1e-6)
        assert len(finder.results) == len(rates) - len(early) == 16

    def test_arguments_of_fit_are_passed_on(self, agent: noterl.DQN) -> None:
        counts: list[int] = []
        note = LambdaCallback(on_episode_begin=lambda episode, logs: counts.append(len(lanes_of(agent).ledger.running)))
        with Undisturbed(agent):
            LRFinder(agent).find(lambda: gymnasium.make("CartPole-v1"), 16, num_envs=3, seed=5, callbacks=[note])
        assert set(counts) == {3}

    def test_one_optimizer_is_searched(self) -> None:
        agent = noterl.DDPG("Pendulum-v1", hidden=(8,), seed=1)
        agent.compile(batch_size=8, learning_starts=10)
        before, rates = agent.get_rule("learning_rate", "actor"), []
        note = LambdaCallback(
            on_batch_end=lambda batch, logs: rates.append([agent.get_rule("learning_rate", name) for name in RATES])
        )
        finder = LRFinder(agent)
        finder.find(metric="loss", updates=16, optimizer="critic", callbacks=[note])
        assert {actor for actor, _ in rates} == {before}
        searched = [row["learning_rate"] for row in finder.results]
        assert [critic for _, critic in rates][: len(searched)] == pytest.approx(searched, rel=1e-6)

    def test_one_rare_success_is_not_clear(self, agent: noterl.DQN) -> None:
        finder = LRFinder(agent)
        finder._window = 7
        rewards = [0.0] * 25 + [1.0] + [0.0] * 30
        finder.results = _rows("reward", [10.0**index for index in range(56)], rewards, 7)
        assert not finder.is_clear

    def test_error_of_a_callback_leaves_the_agent_unchanged(self, agent: noterl.DQN) -> None:
        broken = LambdaCallback(on_episode_end=lambda episode, logs: int("no number"))
        with Undisturbed(agent), pytest.raises(ValueError, match="no number"):
            LRFinder(agent).find(callbacks=[broken])

    def test_environment_object_is_not_used(self) -> None:
        env = gymnasium.make("CartPole-v1")
        agent = one_lane(env)
        agent.fit(steps=6, verbose=0)
        place = np.array(env.unwrapped.state)
        with Undisturbed(agent):
            LRFinder(agent).find(episodes=16)
        assert np.array_equal(env.unwrapped.state, place)

    def test_maker_makes_the_environments_of_the_search(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The environment for evaluations of a maker such as `Atari` has other rewards and ends."""
        maker = RegisteredVector(gymnasium.spec("CartPole-v1"))
        agent = one_lane(maker)
        fit = agent.fit
        environments: list[Any] = []
        agent._set(fit=lambda env, **arguments: environments.append(env) or fit(env, **arguments))
        LRFinder(agent).find(episodes=16)
        assert environments == [maker]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"episodes": 0}, "episodes must be an int of at least 16, got 0"),
            ({"episodes": 15}, "episodes must be an int of at least 16, got 15"),
            ({"metric": "loss", "updates": 15}, "updates must be an int of at least 16, got 15"),
            ({"metric": "loss", "episodes": 15}, "episodes must be an int of at least 16, got 15"),
            ({"optimizer": "critic"}, "optimizer must be 'optimizer' or None, got 'critic'"),
            ({"start_lr": 0.0}, "start_lr must be a finite number above 0, got 0.0"),
            ({"start_lr": 0.1, "end_lr": 0.1}, "end_lr must be a finite number above 0.1, got 0.1"),
            ({"window_size": 0}, "window_size must be a positive int, got 0"),
            ({"metric": "length"}, "metric must be 'reward' or 'loss', got 'length'"),
            ({"metric": "loss", "updates": -1}, "updates must be an int of at least 16, got -1"),
        ],
    )
    def test_bad_arguments_raise(self, agent: noterl.DQN, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=f"^{message}"):
            LRFinder(agent).find(**arguments)

    @pytest.mark.parametrize("wrong", ["CartPole-v1", noterl.DQN, None])
    def test_agent_must_be_an_agent(self, wrong: Any) -> None:
        for make in (LRFinder, lambda agent: OptFinder(agent, ["adam"])):
            with pytest.raises(ValueError, match=r"^agent must be an agent"):
                make(wrong)

    def test_refused_search_keeps_the_results(self, agent: noterl.DQN) -> None:
        finder = LRFinder(agent)
        finder.find(episodes=16)
        found = finder.metric, finder.results, finder.suggestion()
        with pytest.raises(ValueError, match="updates"):
            finder.find(metric="loss", window_size=3, updates=3)
        assert (finder.metric, finder.results, finder.suggestion()) == found and finder.is_clear in (True, False)


class TestSuggestionByLoss:
    """Curves with known answers, at 300 rates from 1e-5 to 1."""

    RATES = np.geomspace(1e-5, 1.0, 300, endpoint=False).tolist()

    def finder(self, losses: Any, window: int = 7) -> LRFinder:
        """Return a finder with the results of a search that recorded these losses."""
        finder = LRFinder(noterl.DQN("CartPole-v1", hidden=(4,), seed=1))
        finder.metric, finder._window = "loss", window
        values = list(losses)
        points = next((n for n in range(1, len(values) + 1) if loss_exploded(values[:n], window)), len(values))
        finder.results = _rows("loss", self.RATES, values[:points], window)
        return finder

    def test_recovery_after_a_spike_is_not_suggested(self) -> None:
        for seed in range(10):
            finder = self.finder(huber(300, seed))
            rate = finder.suggestion()
            assert self.RATES[110] <= rate <= self.RATES[130] and finder.is_clear
            assert 230 < len(finder.results) < 250  # ends in the spike
            assert finder.plot_loss().axes[0].lines[2].get_xdata()[0] == rate

    def test_loss_that_never_explodes(self) -> None:
        descent = 0.15 + 2.2 / (1 + np.exp((np.arange(300) - 120) / 8))
        finder = self.finder(descent * (1 + 0.05 * np.random.default_rng(3).normal(size=300)))
        assert self.RATES[110] <= finder.suggestion() <= self.RATES[130] and finder.is_clear
        assert len(finder.results) == 300

    def test_noise_is_not_clear(self) -> None:
        for seed in range(20):
            assert not self.finder(np.random.default_rng(seed).normal(1.0, 0.2, 300)).is_clear

    def test_loss_that_only_rises_is_not_clear(self) -> None:
        for seed in range(5):
            noise = np.random.default_rng(seed).normal(1.0, 0.05, 300)
            finder = self.finder(np.linspace(1, 3, 300) * noise)
            assert not finder.is_clear

    def test_loss_below_zero(self) -> None:
        descent = -2.0 / (1 + np.exp((120 - np.arange(300)) / 8))
        spike = 6.0 * np.exp(-(((np.arange(300) - 243) / 6) ** 2))
        finder = self.finder(descent + spike + 0.05 * np.random.default_rng(3).normal(size=300))
        assert self.RATES[110] <= finder.suggestion() <= self.RATES[130] and finder.is_clear

    def test_loss_that_falls_from_the_first_rate_on_is_not_clear(self) -> None:
        noise = 1 + 0.02 * np.random.default_rng(3).normal(size=300)
        assert not self.finder((0.05 + 0.4 * np.exp(-np.arange(300) / 60)) * noise).is_clear
        assert self.finder((0.05 + 0.4 * np.exp(-np.maximum(np.arange(300) - 100, 0) / 20)) * noise).is_clear

    def test_loss_that_explodes_long_after_its_fall_is_not_clear(self) -> None:
        noise = 1 + 0.02 * np.random.default_rng(3).normal(size=300)
        points = np.arange(300)
        for exploding, clear in ((200, True), (270, False)):
            losses = 0.05 + 0.4 / (1 + np.exp((points - 60) / 8)) + 4.0 * (points > exploding)
            assert self.finder(losses * noise).is_clear == clear

    def test_rate_just_below_that_of_the_lowest_loss_is_not_suggested(self) -> None:
        points = np.arange(300)
        losses = np.where(points < 200, 2.0 - 1.8 * np.maximum(0, (points - 170) / 30), 9.0)
        losses *= 1 + 0.01 * np.random.default_rng(3).normal(size=300)
        assert self.RATES[199] / 4.3 < self.finder(losses).suggestion() <= self.RATES[199] / 4

    def test_value_that_is_not_finite_at_the_end(self) -> None:
        losses = [*huber(200, 1), math.nan]
        assert self.RATES[110] <= self.finder(losses).suggestion() <= self.RATES[130]
        assert self.finder(losses).is_clear

    def test_reward_after_its_best_mean_is_not_suggested(self) -> None:
        finder = LRFinder(noterl.DQN("CartPole-v1", hidden=(4,), seed=1))
        finder._window = 7
        rewards = (-huber(300, 1)).tolist()
        points = next(n for n in range(1, 300) if reward_collapsed(rewards[:n], 7))
        finder.results = _rows("reward", self.RATES, rewards[:points], 7)
        best = max(finder.results[6:], key=lambda row: row["mean_reward"])["learning_rate"]
        rate = finder.suggestion()
        assert self.RATES[110] <= rate**2 / best <= self.RATES[130]  # the rate of the steepest rise
        assert rate < best < self.RATES[240] and finder.is_clear  # the spike is at 243


class TestPictures:
    @pytest.fixture
    def finder(self, agent: noterl.DQN) -> LRFinder:
        finder = LRFinder(agent)
        finder.metric = "reward"
        finder.results = [
            {"learning_rate": 10.0**index, "reward": float(index**2), "mean_reward": float(index)} for index in range(6)
        ]
        return finder

    def test_plot_reward_draws_values_and_means(self, finder: LRFinder, tmp_path: Path) -> None:
        figure = finder.plot_reward(1, 2, path=tmp_path / "reward.png")
        axes = figure.axes[0]
        assert [list(line.get_ydata()) for line in axes.lines] == [[1.0, 4.0, 9.0], [1.0, 2.0, 3.0]]
        assert list(axes.lines[0].get_xdata()) == [10.0, 100.0, 1000.0]
        assert (axes.get_xscale(), axes.get_xlabel(), axes.get_ylabel()) == ("log", "learning rate", "reward")
        assert (tmp_path / "reward.png").stat().st_size > 1000

    def test_plot_reward_change_draws_derivatives(self, finder: LRFinder) -> None:
        axes = finder.plot_reward_change(2, 1, 0, (-1.0, 7.0)).axes[0]
        assert list(axes.lines[0].get_ydata()) == [0.0, 2.0, 4.0, 6.0, 8.0]
        assert axes.get_ylim() == (-1.0, 7.0)

    def test_suggestion_is_between_the_steepest_rise_and_the_highest_mean(self, finder: LRFinder) -> None:
        for row, mean in zip(finder.results, [0, 9, 9, 14, 15, 30], strict=True):
            row["mean_reward"] = float(mean)
        assert finder.suggestion(1, 0, 0) == 10.0**5
        assert finder.suggestion(1, 0, 1) == 10.0**2  # the points 1 and 4
        assert finder.suggestion(1, 2, 1) == 10.0**3  # the points 3 and 4
        assert finder.suggestion(1, 3, 3) is finder.suggestion(1, 0, 9) is None

    @pytest.mark.parametrize("window", [1, 4, 7])
    def test_suggestion_is_between_the_middle_of_the_rise_and_the_peak(self, agent: noterl.DQN, window: int) -> None:
        finder = LRFinder(agent)
        finder.metric, finder._window = "reward", window
        noise = np.random.default_rng(1).normal(size=80)
        peak = 56 + window // 2  # of the means
        hill = 1 / (1 + np.exp(40 - np.arange(80))) - np.abs(np.arange(80) - 56) / 100  # steepest at 40
        for height, clear in ((100.0, True), (0.0, False)):
            rewards = (height * hill + noise).tolist()
            finder.results = _rows("reward", [10.0**index for index in range(80)], rewards, window)
            assert finder.is_clear == clear
            if clear:
                assert (38 + peak) / 2 - 1 <= math.log10(finder.suggestion()) <= (42 + peak) / 2 + 1
        lines = finder.plot_reward().axes[0].lines
        assert [line.get_label() for line in lines[:2]] == ["reward", f"mean of {window}"]
        assert lines[2].get_label() == f"suggestion {finder.suggestion():.2g}"
        assert lines[2].get_xdata()[0] == finder.suggestion()

    @pytest.mark.parametrize(("metric", "label"), [("reward", "episode"), ("loss", "gradient update")])
    def test_horizontal_axis_is_labeled_by_the_points(self, agent: noterl.DQN, metric: str, label: str) -> None:
        finder = OptFinder(agent, ["adam"])
        finder._run = lambda *_: [Trial("adam", [1.0, 2.0], [3.0, 4.0, 5.0], 1.0)]
        finder.find(metric=metric)
        assert finder.plot_loss().axes[0].get_xlabel() == label
        assert finder.plot_reward().axes[0].get_xlabel() == "episode"

    def test_plot_of_another_metric_raises(self, finder: LRFinder, agent: noterl.DQN) -> None:
        with pytest.raises(ValueError, match=r"no loss .*find\(metric='loss'\)"):
            finder.plot_loss()
        with pytest.raises(ValueError, match=r"there is no reward to plot: run find"):
            OptFinder(agent, ["adam"]).plot_reward()

    @pytest.mark.parametrize(
        ("arguments", "name"), [((0,), "sma"), ((1, -1), "n_skip_beginning"), ((1, 0, 1.5), "n_skip_end")]
    )
    def test_bad_plot_arguments_raise(self, finder: LRFinder, arguments: tuple[Any, ...], name: str) -> None:
        for draw in (finder.plot_reward_change, finder.suggestion):
            with pytest.raises(ValueError, match=f"^{name} must be"):
                draw(*arguments)


class TestTies:
    @pytest.mark.parametrize(
        ("rewards", "ties", "clear"),
        [
            ({"one": [21.0, 22.0, 20.0], "two": [21.0, 22.0, 20.0]}, ["one", "two"], False),
            ({"one": [10.0, 11.0, 9.0], "two": [50.0, 52.0, 51.0]}, ["two"], True),
            ({"one": [10.0, 90.0, 20.0], "two": [50.0, 52.0, 51.0]}, ["two", "one"], False),
            ({"one": [10.0], "two": [50.0]}, ["two", "one"], False),
            ({"one": [10.0, 11.0]}, ["one"], False),
        ],
    )
    def test_candidates_that_noise_may_have_ordered_are_tied(
        self, agent: noterl.DQN, rewards: dict[str, list[float]], ties: list[str], clear: bool
    ) -> None:
        finder = OptFinder(agent, dict.fromkeys(rewards, "adam"))
        finder._run = lambda *_: [Trial(name, values, values, 1.0) for name, values in rewards.items()]
        assert finder.find() == ties[0]
        assert (finder.ties, finder.is_clear) == (ties, clear)


class TestOptFinder:
    def test_trials_print_nothing(self, agent: noterl.DQN, capfd: pytest.CaptureFixture[str]) -> None:
        OptFinder(agent, {"slow": 1e-4, "fast": 1e-2}).find(episodes=2)
        assert capfd.readouterr() == ("", "")

    def test_trials_start_from_the_same_state(self, agent: noterl.DQN) -> None:
        begun: list[Any] = []

        def note(logs: dict[str, Any]) -> None:
            state = agent.get_state()
            begun.append({name: state[name] for name in state.keys() - {"optimizers", "callbacks", "lanes"}})

        optimizers = {"one": keras.optimizers.Adam(1e-2), "twin": keras.optimizers.Adam(1e-2)}
        finder = OptFinder(agent, optimizers)
        with Undisturbed(agent):
            best = finder.find(episodes=4, callbacks=[LambdaCallback(on_train_begin=note)])
        assert len(begun) == 2
        assert_same_state({**begun[0]}, {**begun[1]})
        assert finder.trials["one"].rewards == finder.trials["twin"].rewards
        rows = {row["name"]: row for row in finder.results}
        for name, trial in finder.trials.items():
            assert rows[name]["mean"] == pytest.approx(np.mean(trial.rewards), rel=1e-12)
            assert rows[name]["spread"] == pytest.approx(np.std(trial.rewards), rel=1e-12)
            assert (rows[name]["points"], rows[name]["error"]) == (4, None)
            assert rows[name]["seconds"] > 0
        assert best == finder.best == max(rows, key=lambda name: rows[name]["mean"])

    def test_lowest_loss_is_best_and_non_finite_is_last(self, agent: noterl.DQN) -> None:
        wild = keras.optimizers.SGD(1e30)
        finder = OptFinder(agent, [wild, keras.optimizers.SGD(0.0)])
        with Undisturbed(agent):
            best = finder.find(episodes=12, metric="loss")
        assert list(finder.trials) == ["SGD 1", "SGD 2"]
        assert finder.results[-1]["name"] == "SGD 1"
        assert "not finite" in finder.results[-1]["error"]
        assert best == "SGD 2"
        assert finder.results[0]["mean"] == pytest.approx(np.mean(finder.trials["SGD 2"].losses), rel=1e-12)
        assert "SGD 2" in [line.get_label() for line in finder.plot_loss().axes[0].lines]

    @pytest.mark.parametrize("optimizers", [[], {}, "adam", None])
    def test_no_candidates_raise(self, agent: noterl.DQN, optimizers: Any) -> None:
        with pytest.raises(ValueError, match="optimizers must"):
            OptFinder(agent, optimizers)


@noterl.register
class DyingDQN(noterl.DQN):
    """Kills the process of the trial in which it is built, or raises in training."""

    def __init__(self, env: Any, *, deed: str = "raise", seed: int | None = None) -> None:
        if deed == "kill" and multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        super().__init__(env, hidden=(4,), seed=seed)

    def fit(self, *arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError("dying on purpose")


class TestParallelFinder:
    def test_dead_process_is_reported(self, agent: noterl.DQN) -> None:
        agents = {"dying": DyingDQN("CartPole-v1", deed="kill", seed=1), "good": agent}
        finder = ParallelFinder(agents, [None, keras.optimizers.Adam(1e-2)], processes=2)
        with Undisturbed(agent):
            best = finder.find(episodes=3)
        good, dying = finder.results
        assert best == good["name"] == "good"
        assert (good["points"], good["error"]) == (3, None)
        assert dying["error"] == "the process ended with exit code -9"
        assert math.isnan(dying["mean"])
        here = OptFinder(agent, {"good": keras.optimizers.Adam(1e-2)})
        here.find(episodes=3)
        assert finder.trials["good"].rewards == here.trials["good"].rewards

    def test_optimizers_of_torch_are_tried(self) -> None:
        torch = pytest.importorskip("torch")
        agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
        agent.compile(lambda parameters: torch.optim.SGD(parameters, lr=1e-3), learning_starts=8, batch_size=4)
        finder = ParallelFinder([agent], [torch.optim.AdamW])
        finder.find(episodes=2)
        here = OptFinder(agent, [torch.optim.AdamW])
        here.find(episodes=2)
        assert finder.trials["DQN with AdamW"].rewards == here.trials["AdamW"].rewards

    def test_error_of_the_first_candidate_raises_if_all_fail(self) -> None:
        finder = ParallelFinder({"dying": DyingDQN("CartPole-v1", seed=1)})
        with pytest.raises(RuntimeError, match=r"(?s)'dying'.*dying on purpose"):
            finder.find(episodes=2)
        assert (finder.results[0]["name"], finder.best) == ("dying", None)
        diverging = OptFinder(one_lane(), {"huge": keras.optimizers.SGD(1e30), "larger": keras.optimizers.SGD(1e35)})
        with pytest.raises(RuntimeError, match=r"(?s)'huge'.*not finite"):
            diverging.find(episodes=5)

    def test_error_of_a_candidate_is_reported(self, tmp_path: Path) -> None:
        DyingDQN("CartPole-v1", seed=1).save(tmp_path / "raising.noterl")
        receiver, sender = multiprocessing.Pipe(duplex=False)
        _try(sender, (tmp_path / "raising.noterl", {}, "raising", None, 3, "reward", {}))
        trial = receiver.recv()
        receiver.close()
        assert (trial.name, trial.rewards) == ("raising", [])
        assert "RuntimeError: dying on purpose" in trial.error

    @pytest.mark.parametrize(
        ("build", "message"),
        [
            (lambda agent: ParallelFinder([]), r"agents must be a list or a dict of agents, got \[\]"),
            (
                lambda agent: ParallelFinder([agent], ["adam", "sgd"]),
                "optimizers must be one for each of 1 agents, got 2",
            ),
            (lambda agent: ParallelFinder([agent], processes=0), "processes must be a positive int, got 0"),
        ],
    )
    def test_bad_arguments_raise(self, agent: noterl.DQN, build: Callable[[Any], Any], message: str) -> None:
        with pytest.raises(ValueError, match=f"^{message}"):
            build(agent)

    def test_candidates_are_named_by_kind(self, agent: noterl.DQN) -> None:
        finder = ParallelFinder([agent, agent, agent], ["adam", keras.optimizers.SGD(), keras.optimizers.SGD()])
        assert list(finder.candidates) == ["DQN with adam", "DQN with SGD 1", "DQN with SGD 2"]


def test_logger_stops_after_the_number_of_points(agent: noterl.DQN) -> None:
    logger = FinderLogger("reward", 2)
    other = one_lane(learning_starts=8)
    history = other.fit(callbacks=[logger], verbose=0)
    assert len(logger.rewards) == len(logger.losses) == 2
    assert history.stop_reason == "the search is over"
    assert logger.rewards == history.history["reward"][-2:]

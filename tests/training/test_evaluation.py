"""`evaluate`: statistics, seeds, events and environments; training is not affected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import policies
from noterl.callback import Callback
from noterl.callbacks import LambdaCallback
from noterl.envs.ends import InvalidStepError
from noterl.noise import OrnsteinUhlenbeckProcess
from noterl.training.evaluation import interquartile_mean
from tests.support.doubles import CountingEnv, StatefulEnv
from tests.support.states import assert_same_state, differences
from tests.support.tape import Tape, TapeAgent

pytestmark = pytest.mark.backends("torch")


class SeedEnv(gymnasium.Env):
    """Its observation is a random number from the seed, which determines the length and the rewards of the episode.

    The class records its instances, and an instance its seeds and calls of `close`. Episodes of at least four steps
    succeed.
    """

    instances: ClassVar[list[SeedEnv]] = []
    reports_success = True

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.seeds: list[int | None] = []
        self.closed = 0
        SeedEnv.instances.append(self)

    @staticmethod
    def outcome(seed: int) -> tuple[float, int]:
        """Return the return and the length of an episode in which every action is 0."""
        number = np.random.default_rng(seed).random()
        length = 1 + int(number * 7)
        return length * 10.0 * np.float32(number), length

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        self.seeds.append(seed)
        self.number, self.steps = np.float32(np.random.default_rng(seed).random()), 0
        self.length = self.outcome(seed)[1]
        return np.array([self.number], np.float32), {}

    def step(self, action):
        self.steps += 1
        ended = self.steps == self.length
        info = {"is_success": self.length >= 4} if ended and self.reports_success else {}
        return np.array([self.number], np.float32), float(10 * self.number + action), ended, False, info

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> type[SeedEnv]:
    monkeypatch.setattr(SeedEnv, "instances", [])
    return SeedEnv


def player(env: Any = SeedEnv, seed: int = 5, policy: policies.Policy | None = None) -> TapeAgent:
    """Return an agent whose greedy action is always 0."""
    agent = TapeAgent(env, tape=Tape(), seed=seed)
    agent.compile(policy=policy or policies.GreedyQPolicy(), replay=noterl.Replay(100), batch_size=1)
    return agent


@pytest.mark.parametrize("value", [np.nan, 1e39])
@pytest.mark.parametrize("where", ["reset", "step", "reward"])
def test_values_that_float32_cannot_hold_raise_and_name_the_environment(where: str, value: float) -> None:
    class Broken(CountingEnv):
        def reset(self, **keywords: Any) -> Any:
            observation, info = super().reset(**keywords)
            return (np.full(2, value) if where == "reset" else observation), info

        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            changed = np.full(2, value) if where == "step" else observation
            return changed, value if where == "reward" else reward, *rest

    with pytest.raises(InvalidStepError, match="of environment 0 at step"):
        player(lambda: Broken(3)).evaluate(episodes=1)


def test_end_that_is_not_a_bool_is_refused() -> None:
    class Words(CountingEnv):
        def step(self, action: Any) -> Any:
            observation, reward, _, *rest = super().step(action)
            return observation, reward, "False", *rest

    with pytest.raises(InvalidStepError, match="terminated must be a bool, got 'False'"):
        player(lambda: Words(3)).evaluate(episodes=1)


class TestStatistics:
    def test_statistics_match_the_outcomes_of_the_seeds(self, seeded: type[SeedEnv]) -> None:
        result = player().evaluate(episodes=11)
        [environment] = [environment for environment in seeded.instances if environment.seeds]
        outcomes = [SeedEnv.outcome(seed) for seed in environment.seeds]
        returns, lengths = np.array([o[0] for o in outcomes]), np.array([o[1] for o in outcomes])
        assert len(set(environment.seeds)) == len(outcomes) == 11
        np.testing.assert_allclose(result["returns"], returns, rtol=1e-6)
        np.testing.assert_array_equal(result["lengths"], lengths)
        assert result["lengths"].dtype == np.int64
        assert result["reward_mean"] == pytest.approx(returns.mean())
        assert result["reward_std"] == pytest.approx(np.sqrt(((returns - returns.mean()) ** 2).mean()))
        assert result["reward_iqm"] == pytest.approx(np.sort(returns)[2:-2].mean())
        assert result["length_mean"] == lengths.mean()
        assert result["success_rate"] == (lengths >= 4).mean()
        assert 0 < result["success_rate"] < 1
        assert list(result) == [
            "returns", "lengths", "reward_mean", "reward_std", "reward_iqm", "length_mean", "success_rate",
        ]  # fmt: skip

    def test_success_rate_is_absent_if_not_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SeedEnv, "reports_success", False)
        assert "success_rate" not in player().evaluate(episodes=3)

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([7], 7),
            ([1, 3], 2),
            ([5, 0, 100], 35),
            ([0, 1, 2, 100], 1.5),
            (range(8), 3.5),
            ([9, 1, 5, 5, 5, 0, 6], 4.4),
        ],
    )
    def test_interquartile_mean(self, values: Any, expected: float) -> None:
        assert interquartile_mean(np.array(values)) == pytest.approx(expected)


class TestSeeds:
    def test_every_call_plays_the_same_episodes(self) -> None:
        agent = player()
        first = agent.evaluate(episodes=6)
        agent.fit(steps=30, verbose=0)
        np.testing.assert_equal(agent.evaluate(episodes=6), first)
        np.testing.assert_equal(player().evaluate(episodes=6), first)
        np.testing.assert_array_equal(agent.evaluate(episodes=3)["returns"], first["returns"][:3])

    @pytest.mark.parametrize("num_envs", [2, 4, 6, 50])
    def test_num_envs_does_not_change_results(self, seeded: type[SeedEnv], num_envs: int) -> None:
        agent = player()
        expected = agent.evaluate(episodes=6)
        before = len(seeded.instances)
        np.testing.assert_equal(agent.evaluate(episodes=6, num_envs=num_envs), expected)
        assert len(seeded.instances) - before == min(num_envs, 6)

    def test_seed_argument_replaces_the_default_seed(self) -> None:
        first, second = player(seed=1), player(seed=2)
        assert first.evaluate(episodes=6)["reward_mean"] != second.evaluate(episodes=6)["reward_mean"]
        np.testing.assert_equal(first.evaluate(episodes=6, seed=3), second.evaluate(episodes=6, seed=3))
        assert first.evaluate(episodes=6, seed=3)["reward_mean"] != first.evaluate(episodes=6, seed=4)["reward_mean"]

    def test_seeds_differ_from_those_of_training(self, seeded: type[SeedEnv]) -> None:
        agent = player()
        agent.fit(episodes=20, verbose=0)
        trained = {seed for environment in seeded.instances for seed in environment.seeds}
        agent.evaluate(episodes=20)
        assert not trained & set(seeded.instances[-1].seeds)

    def test_exploration_is_reproducible(self) -> None:
        agent = player(lambda: CountingEnv(50), policy=policies.EpsGreedyQPolicy(0.5))
        actions: list[int] = []

        class RecordingEnv(CountingEnv):
            def step(self, action):
                actions.append(int(action))
                return super().step(action)

        agent.evaluate(lambda: RecordingEnv(50), episodes=1, deterministic=False)
        assert set(actions) == {0, 1}
        first = actions.copy()
        agent.evaluate(lambda: RecordingEnv(50), episodes=1, deterministic=False)
        assert actions == first * 2
        agent.evaluate(lambda: RecordingEnv(50), episodes=1, deterministic=False, seed=8)
        assert actions[100:] != first
        agent.evaluate(lambda: RecordingEnv(50), episodes=1)
        assert set(actions[150:]) == {0}


class RecordedNoise(OrnsteinUhlenbeckProcess):
    """Records the calls of `reset`."""

    resets: ClassVar[list[int | None]] = []

    def reset(self, lane: int | None = None) -> None:
        RecordedNoise.resets.append(lane)
        super().reset(lane)


@pytest.mark.parametrize(("num_envs", "resets"), [(1, [None, 0, 0]), (2, [None, 0])])
def test_noise_is_reset_when_an_episode_begins(
    num_envs: int, resets: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = noterl.DDPG("Pendulum-v1", hidden=(4,), seed=1)
    agent.compile(noise=RecordedNoise(theta=0.1, sigma=0.5), replay=noterl.Replay(300), learning_starts=10**6)
    agent.fit(steps=30, verbose=0)
    before = agent.noise.get_state()
    monkeypatch.setattr(RecordedNoise, "resets", [])
    first = agent.evaluate(episodes=3, deterministic=False, num_envs=num_envs)
    assert RecordedNoise.resets == resets
    assert not differences(before, agent.noise.get_state())
    agent.fit(steps=10, verbose=0)  # moves the training noise, which evaluations do not depend on
    again = agent.evaluate(episodes=3, deterministic=False, num_envs=num_envs)
    np.testing.assert_array_equal(first["returns"], again["returns"])


class TestTraining:
    """A run with evaluations in between, also in callbacks, equals the run without, bit for bit."""

    POLICIES: ClassVar[list[Callable[[], policies.Policy]]] = [
        lambda: policies.AdaptiveEpsGreedyPolicy(decay_rate=0.05),
        lambda: policies.BoltzmannGumbelQPolicy(0.5),
    ]

    @staticmethod
    def agent(policy: policies.Policy) -> noterl.DQN:
        agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=11)
        agent.compile(
            keras.optimizers.Adam(0.03),
            policy=policy,
            replay=noterl.Replay(100),
            batch_size=4,
            learning_starts=20,
            update_every=8,
            updates=2,
            target_update=15,
        )
        return agent

    @pytest.mark.parametrize("policy", POLICIES)
    def test_evaluation_does_not_change_training(self, policy: Callable[[], policies.Policy]) -> None:
        class Evaluator(Callback):
            episodes = 0

            def on_episode_end(self, episode, logs):
                self.episodes += len(self.agent.evaluate(episodes=2, num_envs=2)["returns"])

            def on_batch_end(self, batch, logs):
                if batch % 5 == 0:
                    self.agent.evaluate(episodes=1, deterministic=False)

        plain = self.agent(policy())
        for _ in range(2):
            plain.fit(steps=75, num_envs=2, verbose=0)
        evaluated = self.agent(policy())
        evaluated.evaluate(episodes=1)
        evaluated.fit(steps=75, num_envs=2, callbacks=[evaluator := Evaluator()], verbose=0)
        evaluated.evaluate("CartPole-v1", episodes=2, deterministic=False, num_envs=2)
        evaluated.fit(steps=75, callbacks=[Evaluator()], verbose=0)
        assert evaluated.updates > 20
        assert evaluator.episodes > 6
        assert_same_state(plain, evaluated)
        self.assert_acts_with_newest_weights(evaluated)

    @staticmethod
    def assert_acts_with_newest_weights(agent: noterl.DQN) -> None:
        steps: list[tuple[np.ndarray, int]] = []

        class Recording(gymnasium.ObservationWrapper):
            def observation(self, observation):
                self.last = observation
                return observation

            def step(self, action):
                steps.append((self.last, int(action)))
                return super().step(action)

        best = []
        for sign in (1, -1):
            weights = noterl.networks.get_weights(agent.q)
            noterl.networks.set_weights(agent.q, [*weights[:-2], sign * weights[-2], sign * weights[-1]])
            agent.evaluate(lambda: Recording(gymnasium.make("CartPole-v1")), episodes=2)
            observations = np.array([observation for observation, _ in steps])
            np.testing.assert_array_equal(agent.act(observations), [action for _, action in steps])
            best.append(steps[0][1])
            steps.clear()
        assert best == [best[0], 1 - best[0]]

    def test_counters_and_memory_are_unchanged(self) -> None:
        agent = player()
        agent.fit(steps=9, verbose=0)
        before = agent.steps, agent.updates, agent.episodes, agent._counters.episodes_begun, len(agent.replay)
        agent.evaluate(episodes=5)
        assert (agent.steps, agent.updates, agent.episodes, agent._counters.episodes_begun, len(agent.replay)) == before

    def test_environment_instance_of_the_user_raises(self) -> None:
        environment = CountingEnv(4)
        agent = player(environment)
        agent.fit(steps=6, verbose=0)
        for env in (None, environment):
            with pytest.raises(ValueError, match=r"env: .*a factory"):
                agent.evaluate(env, episodes=3)
        agent.evaluate(lambda: CountingEnv(4), episodes=3)
        assert (environment.episode, environment.step_number, environment.closed) == (1, 2, 0)

    def test_evaluation_after_training_on_a_vector_environment(self) -> None:
        vector = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
        agent = player(vector)
        agent.fit(steps=5, verbose=0)
        assert (agent.evaluate(episodes=2)["lengths"] > 5).all()


class TestEvents:
    def test_callbacks_of_a_running_fit_receive_the_events(self) -> None:
        agent, calls = player(), []
        hooks = LambdaCallback(
            on_evaluate_begin=lambda logs: calls.append(("begin", logs)),
            on_evaluate_end=lambda logs: calls.append(("end", logs)),
            on_episode_end=lambda episode, logs: calls.append(("result", agent.evaluate(episodes=2))),
        )
        agent.fit(episodes=1, callbacks=[hooks], verbose=0)
        agent.evaluate(episodes=2)  # outside of fit no callback is called
        assert [name for name, _ in calls] == ["begin", "end", "result"]
        assert calls[0][1] == {}
        np.testing.assert_equal(calls[1][1], calls[2][1])

    def test_own_callbacks_receive_the_events_outside_and_inside_of_fit(self) -> None:
        agent, events = TapeAgent(lambda: CountingEnv(2), tape=Tape()), []

        class Listening(Callback):
            def __init__(self, name: str) -> None:
                self.name = name

            def on_evaluate_begin(self, logs: Any) -> None:
                events.append((self.name, "begin", self.agent is agent))

            def on_evaluate_end(self, logs: Any) -> None:
                events.append((self.name, "end", logs["reward_mean"]))

            def on_train_begin(self, logs: Any) -> None:
                events.append((self.name, "train"))

        agent.compile(policy=policies.GreedyQPolicy(), replay=noterl.Replay(20), batch_size=1)
        result = agent.evaluate(episodes=2, callbacks=[Listening("own")])
        mean = result["reward_mean"]
        assert events == [("own", "begin", True), ("own", "end", mean)]
        events.clear()
        inner = LambdaCallback(on_train_begin=lambda logs: agent.evaluate(episodes=1, callbacks=[Listening("own")]))
        agent.fit(episodes=1, callbacks=[inner, Listening("fit")], verbose=0)
        names = [name for name, event, *_ in events if event != "train"]
        assert names == ["fit", "own", "fit", "own"]
        with pytest.raises(ValueError, match="callbacks"):
            agent.evaluate(episodes=1, callbacks=[3])

    def test_keras_callback_receives_the_events_outside_of_fit(self) -> None:
        class Listening(keras.callbacks.Callback):
            def on_test_begin(self, logs: Any = None) -> None:
                self.seen = [self.model.name]

            def on_test_end(self, logs: Any = None) -> None:
                self.seen.append(logs["length_mean"])

        agent = TapeAgent(lambda: CountingEnv(2), tape=Tape())
        agent.compile(policy=policies.GreedyQPolicy(), replay=noterl.Replay(20), batch_size=1)
        listening = Listening()
        agent.evaluate(episodes=1, callbacks=[listening])
        assert listening.seen == ["TapeAgent", 2.0]

    def test_changes_of_the_logs_by_a_callback_do_not_change_the_result(self) -> None:
        agent, results = player(), []
        hooks = LambdaCallback(
            on_evaluate_end=lambda logs: logs.clear(),
            on_episode_end=lambda episode, logs: results.append(agent.evaluate(episodes=2)),
        )
        agent.fit(episodes=1, callbacks=[hooks], verbose=0)
        assert "reward_mean" in results[0]


class TestArguments:
    @pytest.mark.parametrize("value", [0, -3, 1.5, True, "2"])
    @pytest.mark.parametrize("name", ["episodes", "num_envs"])
    def test_invalid_number_raises(self, seeded: type[SeedEnv], name: str, value: Any) -> None:
        agent = player()
        count = len(seeded.instances)
        with pytest.raises(ValueError, match=rf"^{name} must .*got {value!r}$"):
            agent.evaluate(**{name: value})
        assert len(seeded.instances) == count

    @pytest.mark.parametrize("value", [-1, 1.5, "seven"])
    def test_invalid_seed_raises(self, value: Any) -> None:
        with pytest.raises(ValueError, match=rf"^seed must be .*, got {value!r}$"):
            player().evaluate(seed=value)

    def test_environment_with_other_spaces_raises(self) -> None:
        with pytest.raises(ValueError, match="observation_space"):
            player().evaluate("CartPole-v1")
        with pytest.raises(ValueError, match="action_space"):
            player(lambda: CountingEnv(3)).evaluate(PushedEnv)

    def test_unknown_id_raises(self) -> None:
        with pytest.raises(ValueError, match="CartPoll"):
            player().evaluate("CartPoll-v1")

    def test_agent_built_from_spaces_needs_an_environment(self) -> None:
        agent = player((spaces.Box(0.0, 1.0, (1,), np.float32), spaces.Discrete(3)))
        with pytest.raises(ValueError, match="env: "):
            agent.evaluate(episodes=1)
        assert len(agent.evaluate(SeedEnv, episodes=2)["returns"]) == 2


class PushedEnv(StatefulEnv):
    """An environment with the observation space of `CountingEnv` and continuous actions."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0.0, np.inf, (2,), np.float32)


class TestClosing:
    def test_evaluation_closes_the_environments_that_it_creates(self, seeded: type[SeedEnv]) -> None:
        agent = player()
        kept = list(seeded.instances)
        agent.evaluate(episodes=3, num_envs=3)
        agent.evaluate(SeedEnv, episodes=3, num_envs=2)
        assert len(seeded.instances) > len(kept) + 4
        assert all(environment.closed for environment in seeded.instances if environment not in kept)
        assert not any(environment.closed for environment in kept)

    def test_evaluation_closes_its_environments_after_an_error(self, seeded: type[SeedEnv]) -> None:
        def factory() -> SeedEnv:
            if len(seeded.instances) == 3:
                raise OSError("no more")
            return SeedEnv()

        agent = player(factory)
        with pytest.raises(OSError, match="no more"):
            agent.evaluate(episodes=4, num_envs=4)
        assert [environment.closed for environment in seeded.instances] == [0, 1, 1]

    def test_training_continues_its_episodes(self, seeded: type[SeedEnv]) -> None:
        agent = player()
        agent.fit(steps=3, num_envs=2, verbose=0)
        resets = [len(environment.seeds) for environment in seeded.instances]
        agent.evaluate(SeedEnv, episodes=2)
        agent.evaluate(episodes=2)
        assert [len(environment.seeds) for environment in seeded.instances[:2]] == resets
        assert not any(environment.closed for environment in seeded.instances[:2])


def test_noise_of_a_lane_does_not_move_to_another_one_when_an_episode_ends() -> None:
    class Recording(OrnsteinUhlenbeckProcess):
        rows: ClassVar[list[np.ndarray]] = []

        def draw(self, lanes):
            self.rows.append(super().draw(lanes).copy())
            return self.rows[-1]

    lengths = iter([9, 3, 9, 9])  # the first environment shows the spaces
    agent = noterl.DDPG("Pendulum-v1", hidden=(4,), seed=1)
    agent.compile(noise=Recording(theta=0.0, sigma=1.0, dt=1e-12), learning_starts=10, batch_size=4)
    agent.evaluate(
        lambda: gymnasium.wrappers.TimeLimit(gymnasium.make("Pendulum-v1").unwrapped, next(lengths)),
        episodes=3,
        num_envs=3,
        deterministic=False,
    )
    rows = Recording.rows  # without reversion and with tiny steps, the noise of a lane stays where it begins
    assert [len(row) for row in rows] == [3] * 3 + [2] * 6
    np.testing.assert_allclose(rows[-1], rows[0][1:], atol=1e-3)

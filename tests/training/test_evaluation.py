"""`evaluate`: what it says, on seeds of its own, and that training never notices."""

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
from noterl.training.evaluation import interquartile_mean
from tests.support.doubles import CountingEnv, StatefulEnv
from tests.support.states import assert_same_state
from tests.support.tape import Tape, TapeAgent


class SeedEnv(gymnasium.Env):
    """Its first observation is a draw from the seed, which says how long the episode lasts and what a step brings.

    It notes what was made, closed and reset, and in what episodes of four steps or more it "succeeds".
    """

    made: ClassVar[list[SeedEnv]] = []
    says_success = True

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.seeds: list[int | None] = []
        self.closed = 0
        SeedEnv.made.append(self)

    @staticmethod
    def outcome(seed: int) -> tuple[float, int]:
        """Return the return of an episode of greedy actions (0), and its length."""
        draw = np.random.default_rng(seed).random()
        length = 1 + int(draw * 7)
        return length * 10.0 * np.float32(draw), length

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        self.seeds.append(seed)
        self.draw, self.taken = np.float32(np.random.default_rng(seed).random()), 0
        self.length = self.outcome(seed)[1]
        return np.array([self.draw], np.float32), {}

    def step(self, action):
        self.taken += 1
        over = self.taken == self.length
        info = {"is_success": self.length >= 4} if over and self.says_success else {}
        return np.array([self.draw], np.float32), float(10 * self.draw + action), over, False, info

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> type[SeedEnv]:
    monkeypatch.setattr(SeedEnv, "made", [])
    return SeedEnv


def player(env: Any = SeedEnv, seed: int = 5) -> TapeAgent:
    agent = TapeAgent(env, tape=Tape(), seed=seed)
    agent.compile(policy=policies.GreedyQPolicy(), replay=noterl.Replay(100), batch_size=1)
    return agent


class TestStatistics:
    def test_all_of_them(self, seeded: type[SeedEnv]) -> None:
        said = player().evaluate(episodes=11)
        [environment] = [environment for environment in seeded.made if environment.seeds]
        outcomes = [SeedEnv.outcome(seed) for seed in environment.seeds]
        returns, lengths = np.array([o[0] for o in outcomes]), np.array([o[1] for o in outcomes])
        assert len(set(environment.seeds)) == len(outcomes) == 11
        np.testing.assert_allclose(said["returns"], returns, rtol=1e-6)
        np.testing.assert_array_equal(said["lengths"], lengths)
        assert said["lengths"].dtype == np.int64
        assert said["reward_mean"] == pytest.approx(returns.mean())
        assert said["reward_std"] == pytest.approx(np.sqrt(((returns - returns.mean()) ** 2).mean()))
        assert said["reward_iqm"] == pytest.approx(np.sort(returns)[2:-2].mean())
        assert said["length_mean"] == lengths.mean()
        assert said["success_rate"] == (lengths >= 4).mean()
        assert 0 < said["success_rate"] < 1
        assert list(said) == [
            "returns", "lengths", "reward_mean", "reward_std", "reward_iqm", "length_mean", "success_rate",
        ]  # fmt: skip

    def test_no_success_rate_where_none_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SeedEnv, "says_success", False)
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
    def test_the_interquartile_mean(self, values: Any, expected: float) -> None:
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
    def test_the_number_of_environments_changes_nothing(self, seeded: type[SeedEnv], num_envs: int) -> None:
        agent = player()
        expected = agent.evaluate(episodes=6)
        before = len(seeded.made)
        np.testing.assert_equal(agent.evaluate(episodes=6, num_envs=num_envs), expected)
        assert len(seeded.made) - before == min(num_envs, 6)

    def test_a_seed_of_the_call(self) -> None:
        first, second = player(seed=1), player(seed=2)
        assert first.evaluate(episodes=6)["reward_mean"] != second.evaluate(episodes=6)["reward_mean"]
        np.testing.assert_equal(first.evaluate(episodes=6, seed=3), second.evaluate(episodes=6, seed=3))
        assert first.evaluate(episodes=6, seed=3)["reward_mean"] != first.evaluate(episodes=6, seed=4)["reward_mean"]

    def test_they_are_not_those_of_training(self, seeded: type[SeedEnv]) -> None:
        agent = player()
        agent.fit(episodes=20, verbose=0)
        trained = {seed for environment in seeded.made for seed in environment.seeds}
        agent.evaluate(episodes=20)
        assert not trained & set(seeded.made[-1].seeds)

    def test_exploring_is_reproducible_too(self) -> None:
        agent = player(lambda: CountingEnv(50))
        agent.policy = policies.EpsGreedyQPolicy(0.5)
        agent.act_on = lambda o, deterministic, policy, step: (
            np.zeros(len(o), int) if deterministic else policy.select_action(np.zeros((len(o), 2)), step)
        )
        actions: list[int] = []

        class Noting(CountingEnv):
            def step(self, action):
                actions.append(int(action))
                return super().step(action)

        agent.evaluate(lambda: Noting(50), episodes=1, deterministic=False)
        assert set(actions) == {0, 1}
        first = actions.copy()
        agent.evaluate(lambda: Noting(50), episodes=1, deterministic=False)
        assert actions == first * 2
        agent.evaluate(lambda: Noting(50), episodes=1, deterministic=False, seed=8)
        assert actions[100:] != first
        agent.evaluate(lambda: Noting(50), episodes=1)
        assert set(actions[150:]) == {0}


class TestTraining:
    """A run with evaluations in between, also from inside a callback, is bit for bit the run without."""

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
    def test_never_notices(self, policy: Callable[[], policies.Policy]) -> None:
        class Evaluator(Callback):
            heard = 0

            def on_episode_end(self, episode, logs):
                self.heard += len(self.agent.evaluate(episodes=2, num_envs=2)["returns"])

            def on_batch_end(self, batch, logs):
                if batch % 5 == 0:
                    self.agent.evaluate(episodes=1, deterministic=False)

        plain = self.agent(policy())
        for _ in range(2):
            plain.fit(steps=75, num_envs=2, verbose=0)
        watched = self.agent(policy())
        watched.evaluate(episodes=1)
        watched.fit(steps=75, num_envs=2, callbacks=[evaluator := Evaluator()], verbose=0)
        watched.evaluate("CartPole-v1", episodes=2, deterministic=False, num_envs=2)
        watched.fit(steps=75, callbacks=[Evaluator()], verbose=0)
        assert watched.updates > 20
        assert evaluator.heard > 6
        assert_same_state(plain, watched)
        self.assert_acts_by_the_newest_weights(watched)

    @staticmethod
    def assert_acts_by_the_newest_weights(agent: noterl.DQN) -> None:
        taken: list[tuple[np.ndarray, int]] = []

        class Noting(gymnasium.ObservationWrapper):
            def observation(self, observation):
                self.last = observation
                return observation

            def step(self, action):
                taken.append((self.last, int(action)))
                return super().step(action)

        best = []
        for sign in (1, -1):
            weights = noterl.networks.get_weights(agent.q)
            noterl.networks.set_weights(agent.q, [*weights[:-2], sign * weights[-2], sign * weights[-1]])
            agent.evaluate(lambda: Noting(gymnasium.make("CartPole-v1")), episodes=2)
            observations = np.array([observation for observation, _ in taken])
            np.testing.assert_array_equal(agent.act(observations), [action for _, action in taken])
            best.append(taken[0][1])
            taken.clear()
        assert best == [best[0], 1 - best[0]]

    def test_counters_and_memory_stay(self) -> None:
        agent = player()
        agent.fit(steps=9, verbose=0)
        before = agent.steps, agent.updates, agent.episodes, agent.episodes_begun, len(agent.replay)
        agent.evaluate(episodes=5)
        assert (agent.steps, agent.updates, agent.episodes, agent.episodes_begun, len(agent.replay)) == before

    def test_an_environment_of_the_user_is_not_played_on(self) -> None:
        environment = CountingEnv(4)
        agent = player(environment)
        agent.fit(steps=6, verbose=0)
        for env in (None, environment):
            with pytest.raises(ValueError, match=r"env: .*a factory"):
                agent.evaluate(env, episodes=3)
        agent.evaluate(lambda: CountingEnv(4), episodes=3)
        assert (environment.episode, environment.step_number, environment.closed) == (1, 2, 0)

    def test_after_training_on_a_vector_environment(self) -> None:
        vector = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
        agent = player(vector)
        agent.fit(steps=5, verbose=0)
        assert (agent.evaluate(episodes=2)["lengths"] > 5).all()


class TestEvents:
    def test_callbacks_of_the_fit_hear_it(self) -> None:
        agent, heard = player(), []
        hooks = LambdaCallback(
            on_evaluate_begin=lambda logs: heard.append(("begin", logs)),
            on_evaluate_end=lambda logs: heard.append(("end", logs)),
            on_episode_end=lambda episode, logs: heard.append(("said", agent.evaluate(episodes=2))),
        )
        agent.fit(episodes=1, callbacks=[hooks], verbose=0)
        agent.evaluate(episodes=2)  # nobody listens now
        assert [name for name, _ in heard] == ["begin", "end", "said"]
        assert heard[0][1] == {}
        np.testing.assert_equal(heard[1][1], heard[2][1])

    def test_what_a_listener_does_to_the_logs_changes_no_result(self) -> None:
        agent, said = player(), []
        hooks = LambdaCallback(
            on_evaluate_end=lambda logs: logs.clear(),
            on_episode_end=lambda episode, logs: said.append(agent.evaluate(episodes=2)),
        )
        agent.fit(episodes=1, callbacks=[hooks], verbose=0)
        assert "reward_mean" in said[0]


class TestArguments:
    @pytest.mark.parametrize("value", [0, -3, 1.5, True, "2"])
    @pytest.mark.parametrize("name", ["episodes", "num_envs"])
    def test_bad_numbers_are_named(self, seeded: type[SeedEnv], name: str, value: Any) -> None:
        agent = player()
        made = len(seeded.made)
        with pytest.raises(ValueError, match=rf"^{name} must be a positive int, got {value!r}$"):
            agent.evaluate(**{name: value})
        assert len(seeded.made) == made

    @pytest.mark.parametrize("value", [-1, 1.5, "seven"])
    def test_a_bad_seed_is_named(self, value: Any) -> None:
        with pytest.raises(ValueError, match=rf"^seed must be .*, got {value!r}$"):
            player().evaluate(seed=value)

    def test_other_spaces_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"env has the observation_space Box.*, the agent was built for Box"):
            player().evaluate("CartPole-v1")
        with pytest.raises(ValueError, match=r"env has the action_space Box.*, the agent was built for Discrete"):
            player(lambda: CountingEnv(3)).evaluate(PushedEnv)

    def test_an_unknown_id(self) -> None:
        with pytest.raises(ValueError, match="CartPoll"):
            player().evaluate("CartPoll-v1")

    def test_spaces_alone_are_no_environment(self) -> None:
        agent = player((spaces.Box(0.0, 1.0, (1,), np.float32), spaces.Discrete(3)))
        with pytest.raises(ValueError, match="env: there is no environment"):
            agent.evaluate(episodes=1)
        assert len(agent.evaluate(SeedEnv, episodes=2)["returns"]) == 2


class PushedEnv(StatefulEnv):
    """The observations of a `CountingEnv`, and actions that push."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0.0, np.inf, (2,), np.float32)


class TestClosing:
    def test_what_it_made_is_closed(self, seeded: type[SeedEnv]) -> None:
        agent = player()
        kept = list(seeded.made)
        agent.evaluate(episodes=3, num_envs=3)
        agent.evaluate(SeedEnv, episodes=3, num_envs=2)
        assert len(seeded.made) > len(kept) + 4
        assert all(environment.closed for environment in seeded.made if environment not in kept)
        assert not any(environment.closed for environment in kept)

    def test_also_where_one_cannot_be_made_or_played(self, seeded: type[SeedEnv]) -> None:
        def factory() -> SeedEnv:
            if len(seeded.made) == 3:
                raise OSError("no more")
            return SeedEnv()

        agent = player(factory)
        with pytest.raises(OSError, match="no more"):
            agent.evaluate(episodes=4, num_envs=4)
        assert [environment.closed for environment in seeded.made] == [0, 1, 1]

    def test_training_goes_on_where_it_was(self, seeded: type[SeedEnv]) -> None:
        agent = player()
        agent.fit(steps=3, num_envs=2, verbose=0)
        resets = [len(environment.seeds) for environment in seeded.made]
        agent.evaluate(SeedEnv, episodes=2)
        agent.evaluate(episodes=2)
        assert [len(environment.seeds) for environment in seeded.made[:2]] == resets
        assert not any(environment.closed for environment in seeded.made[:2])

"""Running moments are those of all values at once, and an agent normalises by them as the formulas say."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation, TransformReward

import noterl
from noterl.envs import Reach2D, Signals
from noterl.normalization import Normalizers, RunningMeanStd, TeamNormalizers
from noterl.replay import Hindsight, Prioritized
from noterl.types import Batch, Transition
from tests.support.doubles import LeavingTeam, RandomWalkEnv
from tests.support.parts import actor_of, learner_of
from tests.support.states import assert_same_state, differences


def test_moments_of_parts_are_those_of_the_whole() -> None:
    values = np.random.default_rng(0).normal(3.0, 5.0, size=(50, 2))
    moments = RunningMeanStd((2,))
    for part in np.split(values, [1, 1, 7, 30]):
        moments.update(part)
    np.testing.assert_allclose(moments.mean, values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance, values.var(axis=0), rtol=1e-12)
    assert moments.count == 50
    singly = RunningMeanStd((2,))
    for value in values:
        singly.add(value)
    np.testing.assert_allclose(singly.mean, moments.mean, rtol=1e-12)
    np.testing.assert_allclose(singly.variance, moments.variance, rtol=1e-12)
    assert singly.count == 50


def batch(reward: Any, ended: Any, weight: Any = None, gamma: float = 0.5) -> Batch:
    reward, ended = np.array(reward, np.float32), np.array(ended, np.float32)
    observation = np.stack([reward, -2 * reward], axis=-1)
    weight = np.ones_like(reward) if weight is None else np.array(weight, np.float32)
    extra = {"ended": ended, "continues": 1 - ended}
    discount = np.full_like(reward, gamma)
    return Batch(observation, reward, reward, observation + 1, discount, weight, reward, extra)


def test_observations_are_normalised_by_the_rollouts_before() -> None:
    normalizers = Normalizers((2,), reward=False)
    first, second = batch([[1, 2], [3, 100]], np.zeros((2, 2)), [[1, 1], [1, 0]]), batch([[5, -1000]], [[0, 0]])
    assert (
        normalizers.normalize_rollout(first, 0.5).observation.tolist() == np.clip(first.observation, -10, 10).tolist()
    )
    found = normalizers.normalize_rollout(second, 0.5)
    # The hole of 100 does not count.
    mean, deviation = np.array([2.0, -4.0]), np.sqrt(np.array([2 / 3, 8 / 3]) + 1e-8)
    for name in ("observation", "next_observation"):
        expected = np.clip((getattr(second, name) - mean) / deviation, -10, 10)
        np.testing.assert_allclose(getattr(found, name), expected, rtol=1e-6)
    assert found.observation[0, 1].tolist() == [-10, 10] and found.reward.tolist() == second.reward.tolist()


def test_rewards_are_scaled_by_the_deviation_of_the_running_return() -> None:
    normalizers = Normalizers(None, reward=True)
    # Lane 0 ends after its second step, lane 1 has a hole there.
    rewards = np.array([[4, 2], [2, 9], [8, 6]])
    first = normalizers.normalize_rollout(batch(rewards, [[0, 0], [1, 0], [0, 0]], [[1, 1], [1, 0], [1, 1]]), 0.5)
    returns = [4, 2, 4, 8, 7]  # 2 + 0.5 * 4, then anew; 6 + 0.5 * 2
    np.testing.assert_allclose(
        first.reward, np.array([[4, 2], [2, 9], [8, 6]]) / np.sqrt(np.var(returns) + 1e-8), rtol=1e-6
    )
    second = normalizers.normalize_rollout(batch([[0, 1000]], [[0, 0]]), 0.5)
    returns += [4, 1003.5]
    np.testing.assert_allclose(second.reward, [[0, 1000 / np.sqrt(np.var(returns) + 1e-8)]], rtol=1e-6)
    assert second.observation.tolist() == batch([[0, 1000]], [[0, 0]]).observation.tolist()


def test_what_is_normalised_is_clipped() -> None:
    normalizers = Normalizers(None, reward=True)
    normalizers.normalize_rollout(batch(np.full((1, 200), 1.0), np.ones((1, 200))), 0.5)
    found = normalizers.normalize_rollout(batch(np.tile([[1.0] * 199 + [500.0]], (1, 1)), np.ones((1, 200))), 0.5)
    assert found.reward.max() == 10.0


def test_a_state_goes_on_and_one_that_does_not_fit_changes_nothing() -> None:
    first, second = Normalizers((2,), reward=True), Normalizers((2,), reward=True)
    first.normalize_rollout(batch([[1, 2], [3, 4]], np.zeros((2, 2))), 0.5)
    second.set_state(first.get_state())
    more = batch([[5, 7]], [[0, 1]])
    assert (
        differences(first.normalize_rollout(more, 0.5)._asdict(), second.normalize_rollout(more, 0.5)._asdict()) == []
    )
    assert differences(first.get_state(), second.get_state()) == []
    with pytest.raises(ValueError, match="rewards"):
        Normalizers((2,), reward=False).set_state(first.get_state())
    with pytest.raises(ValueError, match="does not fit"):
        Normalizers((3,), reward=True).set_state(first.get_state())


def agent(seed: int = 1, **arguments: Any) -> noterl.PPO:
    rules: dict[str, Any] = {"normalize_observation": True, "normalize_reward": True, **arguments}
    made = noterl.PPO(RandomWalkEnv, hidden=(4,), rollout_steps=5, epochs=1, seed=seed, **rules)
    made.compile(batch_size=10)
    return made


def test_an_agent_learns_and_acts_by_its_moments_saves_them_and_evaluation_leaves_them(tmp_path) -> None:
    whole = agent()
    whole.fit(steps=60, num_envs=2, verbose=0)
    moments = whole._normalizers.observation
    assert moments.count == 60 and whole._normalizers.reward.count == 60
    before = whole.get_state()
    whole.evaluate(episodes=2)
    assert differences(before, whole.get_state()) == []
    seen = np.clip((np.array([[0.3, -0.2]]) - moments.mean) / np.sqrt(moments.variance + 1e-8), -10, 10)
    expected = actor_of(whole).forward(seen.astype(np.float32))[0, 0]
    assert whole.act(np.array([0.3, -0.2], np.float32))[0] == np.clip(expected, -1, 1)
    part, again = agent(), agent(seed=5)
    part.fit(steps=27, num_envs=2, verbose=0)
    part.save(tmp_path / "part.noterl")
    again.restore(tmp_path / "part.noterl")
    again.fit(steps=33, verbose=0)
    assert_same_state(before, again)
    with pytest.raises(ValueError, match="observations or rewards"):
        agent(normalize_observation=False, normalize_reward=False).set_state(before)


def test_weights_come_with_the_moments_that_they_were_learned_with(tmp_path) -> None:
    first, second, observation = agent(), agent(seed=5), np.array([[0.3, -0.2]], np.float32)
    first.fit(steps=60, num_envs=2, verbose=0)
    first.save_weights(tmp_path / "w.safetensors")
    second.load_weights(tmp_path / "w.safetensors")
    assert first.act(observation).tolist() == second.act(observation).tolist()
    assert differences(first._normalizers.arrays(), second._normalizers.arrays()) == []
    assert second._normalizers.reward.count == 60
    other = agent(normalize_reward=False)
    before = other.get_state()
    with pytest.raises(ValueError, match="weights do not fit the agent"):
        other.load_weights(tmp_path / "w.safetensors")
    assert_same_state(before, other)


def replaying(kind: Any = noterl.TD3, seed: int = 1, **arguments: Any) -> Any:
    rules: dict[str, Any] = {"normalize_observation": True, "normalize_reward": True, **arguments}
    env = {noterl.DQN: "CartPole-v1", noterl.MADDPG: Signals}.get(kind, RandomWalkEnv)
    made = kind(env, hidden=(4,), gamma=0.5, seed=seed, **rules)
    made.compile(replay=noterl.Replay(100), batch_size=8, learning_starts=10, update_every=4, updates=2)
    return made


def test_replayed_transitions_are_noted_one_by_one_and_normalised_as_they_are_drawn() -> None:
    """Two lanes by hand: lane 0 ends after its second step."""
    agent = replaying()
    learner: Any = learner_of(agent)
    rewards = {0: [4.0, 2.0, 8.0], 1: [2.0, 6.0]}
    seen = []
    for lane, step in ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2)):
        over = (lane, step) == (0, 1)
        observation = np.array([lane, step], np.float32)
        seen.append(observation.astype(np.float64))
        learner.add(
            Transition(
                lane, observation, np.zeros(1, np.float32), rewards[lane][step], observation + 1, over, False, None
            )
        )
        if over:
            learner.interrupt(lane)
    returns = [4, 2, 2 + 0.5 * 4, 6 + 0.5 * 2, 8]
    moments = agent._normalizers
    np.testing.assert_allclose(moments.reward.variance, np.var(returns), rtol=1e-12)
    np.testing.assert_allclose(moments.observation.mean, np.mean(seen, axis=0), rtol=1e-12)
    sample = agent.replay.sample(3, 5, generator=np.random.default_rng(0))
    sample.gamma = 0.5
    found, stored = learner.gather(sample), agent.replay.gather(sample, gamma=0.5)
    mean, deviation = np.mean(seen, axis=0), np.sqrt(np.var(seen, axis=0) + 1e-8)
    for name in ("observation", "next_observation"):
        expected = np.clip((getattr(stored, name) - mean) / deviation, -10, 10)
        np.testing.assert_allclose(getattr(found, name), expected, rtol=1e-6)
        assert getattr(found, name).dtype == np.float32
    np.testing.assert_allclose(found.reward, stored.reward / np.sqrt(np.var(returns) + 1e-8), rtol=1e-6)
    assert found.discount.tolist() == stored.discount.tolist()


@pytest.mark.parametrize("kind", [noterl.DQN, noterl.DDPG, noterl.TD3, noterl.SAC, noterl.MADDPG])
def test_agents_with_a_replay_memory_normalise_and_resume_exactly(kind: Any, tmp_path) -> None:
    whole = replaying(kind)
    whole.fit(steps=60, num_envs=2, verbose=0)
    for one in getattr(whole._normalizers, "agents", [whole._normalizers]):
        assert one.observation.count == one.reward.count == 60
    before = whole.get_state()
    whole.evaluate(episodes=2)
    assert differences(before, whole.get_state()) == []
    part, again = replaying(kind), replaying(kind, seed=5)
    part.fit(steps=27, num_envs=2, verbose=0)
    part.save(tmp_path / "part.noterl")
    again.restore(tmp_path / "part.noterl")
    again.fit(steps=33, verbose=0)
    assert_same_state(before, again)
    plain = replaying(kind, normalize_observation=False, normalize_reward=False)
    plain.fit(steps=60, num_envs=2, verbose=0)
    assert plain._normalizers is None and differences(plain.get_state()["variables"], before["variables"])


def team(**arguments: Any) -> noterl.MADDPG:
    made = noterl.MADDPG(LeavingTeam, hidden=(4,), gamma=0.5, seed=1, **arguments)
    made.compile(replay=noterl.Replay(100), batch_size=8, learning_starts=100)
    made.fit(episodes=6, verbose=0)
    return made


def test_agents_of_a_team_are_normalised_each_by_the_steps_that_it_takes_part_in() -> None:
    made = team(normalize_observation=True, normalize_reward=True)
    deviations = []
    for agent, (steps, earned) in enumerate(zip((2, 3, 4), (1.0, 10.0, 100.0), strict=True)):
        returns = earned * np.array([1, 1.5, 1.75, 1.875])[:steps]
        moments = made._normalizers.agents[agent]
        assert moments.observation.count == moments.reward.count == 6 * steps
        assert moments.observation.mean == pytest.approx(np.arange(steps).mean())
        assert moments.observation.variance == pytest.approx(np.arange(steps).var())
        np.testing.assert_allclose(moments.reward.variance, returns.var(), rtol=1e-12)
        deviations.append(np.sqrt(np.array([np.arange(steps).var(), returns.var()]) + 1e-8))
    sample = made.replay.sample(2, 8, generator=np.random.default_rng(0))
    sample.gamma = 0.5
    learner: Any = learner_of(made)
    found, stored = learner.gather(sample), made.replay.gather(sample, gamma=0.5)
    means, (spread, scale) = np.array([0.5, 1.0, 1.5]), np.array(deviations).T
    for name in ("observation", "next_observation"):
        expected = np.clip((getattr(stored, name) - means) / spread, -10, 10)
        np.testing.assert_allclose(getattr(found, name), expected, rtol=1e-5)
    np.testing.assert_allclose(found.reward, np.clip(stored.reward / scale, -10, 10), rtol=1e-5)
    assert found.reward.shape == (2, 8, 3) and found.reward.dtype == found.observation.dtype == np.float32
    shown = actor_of(made).forward(((np.array([[1.0, 2.0, 3.0]]) - means) / spread).astype(np.float32))
    chosen = made.head.executed(made.head.deterministic(shown))[0]
    assert [int(action) for action in made.act(([1.0], [2.0], [3.0]))] == chosen.tolist()


def test_a_teams_moments_are_among_its_weights_and_fit_their_own_kind_alone(tmp_path) -> None:
    made, plain = team(normalize_observation=True), team()
    assert plain._normalizers is None and str(made._normalizers) == "observations of each agent"
    made.save_weights(tmp_path / "w.safetensors")
    other = noterl.MADDPG(LeavingTeam, hidden=(4,), normalize_observation=True, seed=2)
    other.load_weights(tmp_path / "w.safetensors")
    assert differences(made._normalizers.arrays(), other._normalizers.arrays()) == []
    assert sorted(made._normalizers.arrays())[0] == "0/observation/count"
    with pytest.raises(ValueError, match="weights do not fit"):
        plain.load_weights(tmp_path / "w.safetensors")
    for wrong in (TeamNormalizers([1, 1], True, False), TeamNormalizers([1, 1, 1], True, True)):
        with pytest.raises(ValueError, match="state"):
            wrong.set_state(made._normalizers.get_state())


@pytest.mark.parametrize(
    "memory",
    [{"sampler": Prioritized()}, {"n_step": 3}, {"relabel": Hindsight()}],
    ids=["prioritized", "n-step", "goal"],
)
def test_normalisation_goes_with_every_memory(memory: dict[str, Any]) -> None:
    goals = "relabel" in memory
    made = noterl.DDPG(Reach2D if goals else RandomWalkEnv, hidden=(4,), normalize_observation=True, seed=1)
    made.compile(replay=noterl.Replay(200, **memory), batch_size=8, learning_starts=10)
    made.fit(steps=120, num_envs=2, verbose=0)
    assert made.updates > 50 and made._normalizers.observation.count == 120
    moments = made._normalizers.observation
    assert moments.mean.shape == (made.observation_size,) and np.all(moments.variance >= 0)


class BytesEnv(RandomWalkEnv):
    """A walk whose position and noise are told in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (2,), np.uint8)

    def _observation(self) -> np.ndarray:
        return np.clip(128 + 20 * super()._observation(), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("replay", [None, noterl.Replay(50)])
def test_bytes_are_numbers_once_they_are_normalised(replay: Any) -> None:
    made = noterl.PPO(BytesEnv, hidden=(4,), rollout_steps=5, epochs=1, normalize_observation=True, seed=1)
    made.compile(batch_size=10, replay=replay)
    made.fit(steps=40, num_envs=2, verbose=0)
    moments, observation = made._normalizers.observation, np.array([[100, 140]], np.uint8)
    seen = (observation - moments.mean) / np.sqrt(moments.variance + 1e-8)
    expected = actor_of(made).forward(seen.astype(np.float32))[0, 0]
    assert abs(expected) > 1e-4 and made.act(observation)[0, 0] == expected
    if replay is not None:
        learned = made.replay.gather(made.replay.sample(1, 10, generator=np.random.default_rng(1)), gamma=0.9)
        assert np.any(learned.observation % 1 != 0) and np.any(learned.observation < 0)


def test_images_are_not_normalised() -> None:
    from tests.support.batches import IMAGE

    for kind in (noterl.PPO, noterl.DQN):
        with pytest.raises(ValueError, match="normalize_observation is for vectors"):
            kind(IMAGE, normalize_observation=True)
    assert noterl.DQN(IMAGE, normalize_reward=True)._normalizers.observation is None
    numbers, pictures = spaces.Box(0, 255, (2,), np.uint8), IMAGE[0]
    for seen, refused in (([numbers] * 3, False), ([numbers, numbers, pictures], True)):
        spaces_of_all = spaces.Tuple(seen), spaces.Tuple([spaces.Discrete(2)] * 3)
        with pytest.raises(ValueError, match="normalize_observation is for vectors") if refused else nullcontext():
            noterl.MADDPG(spaces_of_all, hidden=(4,), normalize_observation=True)


def test_the_summary_says_what_is_normalised(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        ({}, "normalizes observations and rewards"),
        ({"normalize_reward": False}, "normalizes observations\n"),
        ({"normalize_observation": False, "normalize_reward": False}, None),
    ):
        replaying(**arguments).summary()
        shown = capsys.readouterr().out
        assert said in shown if said else "normalizes" not in shown


def unkind_pendulum() -> gymnasium.Env:
    """Pendulum with observations about 500 that deviate by 70, and a hundred times its rewards."""
    env, scale = gymnasium.make("Pendulum-v1"), np.array([100, 100, 1], np.float32)
    low, high = (500 + scale * bound for bound in (env.observation_space.low, env.observation_space.high))
    space = spaces.Box(low, high, dtype=np.float32)
    seen = TransformObservation(env, lambda observation: (500 + scale * observation).astype(np.float32), space)
    return TransformReward(seen, lambda reward: 100 * reward)


@pytest.mark.parametrize(("kind", "steps"), [(noterl.DDPG, 8_000), (noterl.TD3, 12_000), (noterl.SAC, 8_000)])
def test_what_nobody_learns_as_it_is_is_learned_once_it_is_normalised(kind: Any, steps: int) -> None:
    """Chance earns -1200 a hundred, TD3 without normalisation -1500 after 10,000 steps, who swings it up -150."""
    made = kind(unkind_pendulum, hidden=(64, 64), gamma=0.98, normalize_observation=True, normalize_reward=True, seed=1)
    made.compile("adam", batch_size=128, update_every=8, updates=8)
    made.fit(steps=steps, verbose=0)
    assert made.evaluate(episodes=10)["reward_mean"] / 100 > -400


class UnkindTargets:
    """Two agents that see a number, told as 400 to 600, and must answer it; at best they earn 0, by chance -667."""

    possible_agents = ("left", "right")

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(400, 600, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, seed: int | None = None, options: dict | None = None):
        self.generator, self.agents, self.number = np.random.default_rng(seed), list(self.possible_agents), 0
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions):
        rewards = {agent: -100 * float(np.square(actions[agent][0] - self.asked[agent])) for agent in self.agents}
        self.number += 1
        there, over = self.agents, self.number == 10
        self.agents = [] if over else there
        ends = dict.fromkeys(there, False), dict.fromkeys(there, over)
        return self._observations(), rewards, *ends, {agent: {} for agent in there}

    def _observations(self):
        self.asked = {agent: self.generator.uniform(-1, 1) for agent in self.possible_agents}
        return {agent: np.array([500 + 100 * asked], np.float32) for agent, asked in self.asked.items()}


def test_a_team_learns_what_it_would_not_learn_as_it_is() -> None:
    """Three seeds without normalisation earned -1190 and less after 4,000 steps, two with it -4 after 2,000."""
    rules: dict[str, Any] = {"normalize_observation": True, "normalize_reward": True}
    made = noterl.MADDPG(UnkindTargets, hidden=(32,), gamma=0.5, seed=1, **rules)
    made.compile("adam", batch_size=128, learning_starts=512, update_every=8, updates=8)
    made.fit(steps=2_000, num_envs=4, verbose=0)
    assert made.evaluate(episodes=20)["reward_mean"] > -50


def test_what_is_acted_on_is_what_is_learned_from_where_float32_is_coarse() -> None:
    normalizers = Normalizers((1,), reward=False)
    times = 1.7e9 + 100.0 * np.arange(7)[:, None]
    normalizers.observation.update(times.astype(np.float32))
    np.testing.assert_array_equal(
        normalizers.normalize_observation(times), normalizers.normalize_observation(times.astype(np.float32))
    )

"""Running statistics of observations and rewards, and agents that normalize with them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation, TransformReward

import noterl
from noterl import saving
from noterl.envs import Reach2D
from noterl.normalization import Normalizers, RunningMeanStd
from noterl.replay import Hindsight, Prioritized
from noterl.types import Batch, Transition
from tests.support.doubles import LeavingTeam, RandomWalkEnv
from tests.support.parts import actor_of, learner_of
from tests.support.states import assert_same_state, differences

pytestmark = pytest.mark.backends("torch")


def test_statistics_of_parts_equal_those_of_all_values() -> None:
    values = np.random.default_rng(0).normal(3.0, 5.0, size=(50, 2))
    statistics = RunningMeanStd((2,))
    for part in np.split(values, [1, 1, 7, 30]):
        statistics.update(part)
    np.testing.assert_allclose(statistics.mean, values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(statistics.variance, values.var(axis=0), rtol=1e-12)
    assert statistics.count == 50
    one_by_one = RunningMeanStd((2,))
    for value in values:
        one_by_one.add(value)
    np.testing.assert_allclose(one_by_one.mean, statistics.mean, rtol=1e-12)
    np.testing.assert_allclose(one_by_one.variance, statistics.variance, rtol=1e-12)
    assert one_by_one.count == 50


def batch(reward: Any, ended: Any, weight: Any = None, gamma: float = 0.5) -> Batch:
    reward, ended = np.array(reward, np.float32), np.array(ended, np.float32)
    observation = np.stack([reward, -2 * reward], axis=-1)
    weight = np.ones_like(reward) if weight is None else np.array(weight, np.float32)
    extra = {"ended": ended, "continues": 1 - ended}
    discount = np.full_like(reward, gamma)
    return Batch(observation, reward, reward, observation + 1, discount, weight, reward, extra)


def test_observations_are_normalized_with_earlier_rollouts() -> None:
    normalizers = Normalizers((2,), reward=False)
    first, second = batch([[1, 2], [3, 100]], np.zeros((2, 2)), [[1, 1], [1, 0]]), batch([[5, -1000]], [[0, 0]])
    assert (
        normalizers.normalize_rollout(first, 0.5).observation.tolist() == np.clip(first.observation, -10, 10).tolist()
    )
    found = normalizers.normalize_rollout(second, 0.5)
    # The transition with 100 has no weight.
    mean, deviation = np.array([2.0, -4.0]), np.sqrt(np.array([2 / 3, 8 / 3]) + 1e-8)
    for name in ("observation", "next_observation"):
        expected = np.clip((getattr(second, name) - mean) / deviation, -10, 10)
        np.testing.assert_allclose(getattr(found, name), expected, rtol=1e-6)
    assert found.observation[0, 1].tolist() == [-10, 10] and found.reward.tolist() == second.reward.tolist()


def test_rewards_are_divided_by_the_deviation_of_the_running_return() -> None:
    normalizers = Normalizers(None, reward=True)
    # Lane 0 ends after its second step, where lane 1 has a transition without weight.
    rewards = np.array([[4, 2], [2, 9], [8, 6]])
    first = normalizers.normalize_rollout(batch(rewards, [[0, 0], [1, 0], [0, 0]], [[1, 1], [1, 0], [1, 1]]), 0.5)
    returns = [4, 2, 4, 8, 7]  # 2 + 0.5 * 4, then a new episode; 6 + 0.5 * 2
    np.testing.assert_allclose(
        first.reward, np.array([[4, 2], [2, 9], [8, 6]]) / np.sqrt(np.var(returns) + 1e-8), rtol=1e-6
    )
    second = normalizers.normalize_rollout(batch([[0, 1000]], [[0, 0]]), 0.5)
    returns += [4, 1003.5]
    np.testing.assert_allclose(second.reward, [[0, 1000 / np.sqrt(np.var(returns) + 1e-8)]], rtol=1e-6)
    assert second.observation.tolist() == batch([[0, 1000]], [[0, 0]]).observation.tolist()


def test_normalized_rewards_are_clipped() -> None:
    normalizers = Normalizers(None, reward=True)
    normalizers.normalize_rollout(batch(np.full((1, 200), 1.0), np.ones((1, 200))), 0.5)
    found = normalizers.normalize_rollout(batch(np.tile([[1.0] * 199 + [500.0]], (1, 1)), np.ones((1, 200))), 0.5)
    assert found.reward.max() == 10.0


def test_state_resumes_and_a_state_that_does_not_fit_raises() -> None:
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
    with pytest.raises(ValueError, match="mean"):
        Normalizers((3,), reward=True).set_state(first.get_state())


def ppo(seed: int = 1, batch_size: int = 10, **arguments: Any) -> noterl.PPO:
    rules: dict[str, Any] = {"normalize_observation": True, "normalize_reward": True, **arguments}
    agent = noterl.PPO(RandomWalkEnv, hidden=(4,), rollout_steps=5, epochs=1, seed=seed, **rules)
    agent.compile(batch_size=batch_size)
    return agent


def test_agent_acts_with_its_statistics_and_saves_them(tmp_path) -> None:
    uninterrupted = ppo()
    uninterrupted.fit(steps=60, num_envs=2, verbose=0)
    statistics = uninterrupted.spaces.normalizers.observation
    assert statistics.count == 60 and uninterrupted.spaces.normalizers.reward.count == 60
    before = uninterrupted.get_state()
    uninterrupted.evaluate(episodes=2)
    assert differences(before, uninterrupted.get_state()) == []
    normalized = np.clip((np.array([[0.3, -0.2]]) - statistics.mean) / np.sqrt(statistics.variance + 1e-8), -10, 10)
    expected = actor_of(uninterrupted).forward(normalized.astype(np.float32))[0, 0]
    assert uninterrupted.act(np.array([0.3, -0.2], np.float32))[0] == np.clip(expected, -1, 1)
    part, again = ppo(), ppo(seed=5)
    part.fit(steps=27, num_envs=2, verbose=0)
    part.save(tmp_path / "part.noterl")
    again.restore(tmp_path / "part.noterl")
    again.fit(steps=33, verbose=0)
    assert_same_state(before, again)
    with pytest.raises(ValueError, match=r"\['normalizers'\]"):
        ppo(normalize_observation=False, normalize_reward=False).set_state(before)


class Paying(RandomWalkEnv):
    """Pays the same reward in every step, and may raise in one step."""

    def __init__(self, reward: float, fails_at: int | None = None) -> None:
        super().__init__(limit=1e9, length=1000)
        self.reward, self.fails_at, self.steps_made = reward, fails_at, 0

    def step(self, action: Any) -> Any:
        self.steps_made += 1
        if self.steps_made == self.fails_at:
            raise OSError("gone")
        observation, _, *rest = super().step(action)
        return observation, self.reward, *rest


@pytest.mark.parametrize("rollouts", [1, 2])
def test_return_of_an_abandoned_episode_does_not_continue_in_another_environment(rollouts: int) -> None:
    agent = ppo(normalize_observation=False, batch_size=5)
    agent.fit(lambda: Paying(100.0), steps=10 * rollouts, verbose=0)
    agent.fit(lambda: Paying(0.0), steps=10, verbose=0)
    assert agent.spaces.normalizers.returns.tolist() == [0.0]


def test_return_of_an_episode_that_fails_after_a_rollout_does_not_continue() -> None:
    agent, env = ppo(normalize_observation=False, batch_size=5), Paying(100.0, fails_at=11)
    with pytest.raises(OSError, match="gone"):
        agent.fit(env, steps=20, verbose=0)
    env.reward = 0.0
    agent.fit(env, steps=10, verbose=0)
    assert agent.spaces.normalizers.returns.tolist() == [0.0]


def test_weights_file_holds_the_statistics(tmp_path) -> None:
    first, second, observation = ppo(), ppo(seed=5), np.array([[0.3, -0.2]], np.float32)
    first.fit(steps=60, num_envs=2, verbose=0)
    first.save_weights(tmp_path / "w.safetensors")
    second.load_weights(tmp_path / "w.safetensors")
    assert first.act(observation).tolist() == second.act(observation).tolist()
    assert differences(first.spaces.normalizers.arrays(), second.spaces.normalizers.arrays()) == []
    assert second.spaces.normalizers.reward.count == 60
    other = ppo(normalize_reward=False)
    before = other.get_state()
    with pytest.raises(ValueError, match="weights"):
        other.load_weights(tmp_path / "w.safetensors")
    assert_same_state(before, other)


def replaying(kind: Any = noterl.TD3, seed: int = 1, **arguments: Any) -> Any:
    rules: dict[str, Any] = {"normalize_observation": True, "normalize_reward": True, **arguments}
    agent = kind("CartPole-v1" if kind is noterl.DQN else RandomWalkEnv, hidden=(4,), gamma=0.5, seed=seed, **rules)
    settings = {"batch_size": 8, "learning_starts": 10, "update_every": 4, "updates": 2}
    agent.compile(replay=noterl.Replay(100), **settings, jit_compile=False)  # tracing takes longer than a short run
    return agent


def test_transitions_update_statistics_and_batches_are_normalized() -> None:
    """Two lanes; lane 0 ends after its second step."""
    agent = replaying()
    learner: Any = learner_of(agent)
    rewards = {0: [4.0, 2.0, 8.0], 1: [2.0, 6.0]}
    observations = []
    for lane, step in ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2)):
        ended = (lane, step) == (0, 1)
        observation = np.array([lane, step], np.float32)
        observations.append(observation.astype(np.float64))
        learner.add(
            Transition(
                lane, observation, np.zeros(1, np.float32), rewards[lane][step], observation + 1, ended, False, None
            )
        )
        if ended:
            learner.interrupt(lane)
    returns = [4, 2, 2 + 0.5 * 4, 6 + 0.5 * 2, 8]
    statistics = agent.spaces.normalizers
    np.testing.assert_allclose(statistics.reward.variance, np.var(returns), rtol=1e-12)
    np.testing.assert_allclose(statistics.observation.mean, np.mean(observations, axis=0), rtol=1e-12)
    sample = agent.replay.sample(3, 5, generator=np.random.default_rng(0))
    sample.gamma = 0.5
    found, stored = learner.gather(sample), agent.replay.gather(sample, gamma=0.5)
    mean, deviation = np.mean(observations, axis=0), np.sqrt(np.var(observations, axis=0) + 1e-8)
    for name in ("observation", "next_observation"):
        expected = np.clip((getattr(stored, name) - mean) / deviation, -10, 10)
        np.testing.assert_allclose(getattr(found, name), expected, rtol=1e-6)
        assert getattr(found, name).dtype == np.float32
    np.testing.assert_allclose(found.reward, stored.reward / np.sqrt(np.var(returns) + 1e-8), rtol=1e-6)
    assert found.discount.tolist() == stored.discount.tolist()


@pytest.mark.parametrize("kind", [noterl.DQN, noterl.DDPG, noterl.TD3, noterl.SAC])
def test_agents_with_a_replay_memory_normalize_and_resume_exactly(kind: Any, tmp_path) -> None:
    uninterrupted = replaying(kind)
    uninterrupted.fit(steps=60, num_envs=2, verbose=0)
    statistics = uninterrupted.spaces.normalizers
    assert statistics.observation.count == statistics.reward.count == 60
    before = uninterrupted.get_state()
    uninterrupted.evaluate(episodes=2)
    assert differences(before, uninterrupted.get_state()) == []
    part, again = replaying(kind), replaying(kind, seed=5)
    part.fit(steps=27, num_envs=2, verbose=0)
    part.save(tmp_path / "part.noterl")
    again.restore(tmp_path / "part.noterl")
    again.fit(steps=33, verbose=0)
    assert_same_state(before, again)
    plain = replaying(kind, normalize_observation=False, normalize_reward=False)
    plain.fit(steps=60, num_envs=2, verbose=0)
    assert plain.spaces.normalizers is None and differences(plain.get_state()["variables"], before["variables"])


WRONG_STATISTICS = {
    "negative count": ("count", np.array(-1)),
    "count that is not an int": ("count", np.array(3.0)),
    "negative variance": ("variance", np.full(2, -1.0)),
    "variance that is not a number": ("variance", np.full(2, np.nan)),
    "infinite variance": ("variance", np.full(2, np.inf)),
    "mean that is not a number": ("mean", np.full(2, np.nan)),
    "mean of bools": ("mean", np.ones(2, np.bool_)),
}


@pytest.mark.parametrize("case", WRONG_STATISTICS)
def test_wrong_statistics_raise_with_their_name_and_change_nothing(case: str, tmp_path) -> None:
    name, array = WRONG_STATISTICS[case]
    agent = ppo()
    before = agent.get_state()
    saving.write_weights(tmp_path / "w", {**ppo(seed=5).get_weights(), f"normalizers/observation/{name}": array})
    with pytest.raises(ValueError, match=name):
        agent.load_weights(tmp_path / "w")
    assert_same_state(before, agent)


@pytest.mark.parametrize(
    "memory",
    [{"sampler": Prioritized()}, {"n_step": 3}, {"relabel": Hindsight()}],
    ids=["prioritized", "n-step", "goal"],
)
def test_normalization_works_with_every_memory(memory: dict[str, Any]) -> None:
    goals = "relabel" in memory
    agent = noterl.DDPG(Reach2D if goals else RandomWalkEnv, hidden=(4,), normalize_observation=True, seed=1)
    agent.compile(replay=noterl.Replay(200, **memory), batch_size=8, learning_starts=10)
    agent.fit(steps=120, num_envs=2, verbose=0)
    # With hindsight, the achieved goal of each observation counts too.
    assert agent.updates > 50 and agent.spaces.normalizers.observation.count == (240 if goals else 120)
    statistics = agent.spaces.normalizers.observation
    assert statistics.mean.shape == (agent.observation_size,) and np.all(statistics.variance >= 0)


class BytesEnv(RandomWalkEnv):
    """A random walk with observations in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (2,), np.uint8)

    def _observation(self) -> np.ndarray:
        return np.clip(128 + 20 * super()._observation(), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("replay", [None, noterl.Replay(50)])
def test_bytes_are_normalized_as_numbers(replay: Any) -> None:
    agent = noterl.PPO(BytesEnv, hidden=(4,), rollout_steps=5, epochs=1, normalize_observation=True, seed=1)
    agent.compile(batch_size=10, replay=replay)
    agent.fit(steps=40, num_envs=2, verbose=0)
    statistics, observation = agent.spaces.normalizers.observation, np.array([[100, 140]], np.uint8)
    normalized = (observation - statistics.mean) / np.sqrt(statistics.variance + 1e-8)
    expected = actor_of(agent).forward(normalized.astype(np.float32))[0, 0]
    assert abs(expected) > 1e-4 and agent.act(observation)[0, 0] == expected
    if replay is not None:
        learned = agent.replay.gather(agent.replay.sample(1, 10, generator=np.random.default_rng(1)), gamma=0.9)
        assert np.any(learned.observation % 1 != 0) and np.any(learned.observation < 0)


def test_normalizing_images_raises() -> None:
    from tests.support.batches import IMAGE

    for kind in (noterl.PPO, noterl.DQN):
        with pytest.raises(ValueError, match="normalize_observation"):
            kind(IMAGE, normalize_observation=True)
    assert noterl.DQN(IMAGE, normalize_reward=True).spaces.normalizers.observation is None


@pytest.mark.parametrize("argument", ["normalize_observation", "normalize_reward"])
def test_normalizing_several_agents_raises(argument: str) -> None:
    with pytest.raises(ValueError, match=f"{argument}.* must be False if the environment has several agents"):
        noterl.MADDPG(LeavingTeam, hidden=(4,), **{argument: True})


def test_summary_names_what_is_normalized(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in (
        ({}, "normalizes observations and rewards"),
        ({"normalize_reward": False}, "normalizes observations\n"),
        ({"normalize_observation": False, "normalize_reward": False}, None),
    ):
        replaying(**arguments).summary()
        text = capsys.readouterr().out
        assert expected in text if expected else "normalizes" not in text


def badly_scaled_pendulum() -> gymnasium.Env:
    """Return Pendulum with observations around 500 (standard deviation 70) and rewards multiplied by 100."""
    env, scale = gymnasium.make("Pendulum-v1"), np.array([100, 100, 1], np.float32)
    low, high = (500 + scale * bound for bound in (env.observation_space.low, env.observation_space.high))
    space = spaces.Box(low, high, dtype=np.float32)
    transformed = TransformObservation(env, lambda observation: (500 + scale * observation).astype(np.float32), space)
    return TransformReward(transformed, lambda reward: 100 * reward)


@pytest.mark.backends("jax")
def test_normalization_solves_a_badly_scaled_pendulum() -> None:
    """Returns before the factor 100: random -1200, TD3 without normalization -1500, a solved pendulum -150."""
    agent = noterl.SAC(
        badly_scaled_pendulum, hidden=(64, 64), gamma=0.98, normalize_observation=True, normalize_reward=True, seed=1
    )
    agent.compile("adam", batch_size=128, update_every=8, updates=8)
    agent.fit(steps=8_000, verbose=0)
    assert agent.evaluate(episodes=10)["reward_mean"] / 100 > -400


def test_float32_observations_are_normalized_like_float64_ones() -> None:
    normalizers = Normalizers((1,), reward=False)
    times = 1.7e9 + 100.0 * np.arange(7)[:, None]
    normalizers.observation.update(times.astype(np.float32))
    np.testing.assert_array_equal(
        normalizers.normalize_observation(times), normalizers.normalize_observation(times.astype(np.float32))
    )

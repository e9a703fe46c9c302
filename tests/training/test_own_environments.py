"""The environment object that the user holds is the one that is played."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

import noterl
from tests.support.doubles import CountingEnv

pytestmark = pytest.mark.backends("torch")


@pytest.fixture(scope="module")
def agent() -> noterl.DQN:
    return noterl.DQN("CartPole-v1", hidden=(4,), seed=1)


def changed() -> Any:
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.theta_threshold_radians = 1e-9  # type: ignore[attr-defined]
    return env


def test_evaluate_and_play_use_the_object_and_leave_it_open(agent: noterl.DQN) -> None:
    env = gymnasium.wrappers.RecordEpisodeStatistics(changed())
    assert agent.evaluate(env, episodes=3)["lengths"].tolist() == [1, 1, 1]
    assert agent.play(env, episodes=2)["lengths"].tolist() == [1, 1]
    assert len(env.return_queue) == 5
    env.reset()


def test_copies_of_a_changed_object_warn_and_name_the_attribute(agent: noterl.DQN) -> None:
    match = r"CartPoleEnv\.theta_threshold_radians=1e-09.*env=lambda"
    with pytest.warns(UserWarning, match=match):
        assert agent.evaluate(changed(), episodes=2, num_envs=2)["lengths"].max() > 1
    trained = noterl.DQN(changed(), hidden=(4,), seed=1)
    with pytest.warns(UserWarning, match=match):
        trained.fit(steps=4, num_envs=2, verbose=0)


def test_training_object_is_copied_while_it_is_a_lane() -> None:
    env = gymnasium.make("CartPole-v1")
    trained = noterl.DQN(env, hidden=(4,), seed=1)
    trained.fit(steps=5, verbose=0)
    state = env.unwrapped.state.copy()
    trained.evaluate(env, episodes=1)
    trained.evaluate(episodes=1)
    assert (env.unwrapped.state == state).all()


def test_objects_without_a_spec_are_evaluated() -> None:
    trained = noterl.DQN(CountingEnv(3), hidden=(4,), seed=1)
    trained.fit(steps=5, verbose=0)
    assert trained.evaluate(CountingEnv(4), episodes=2)["lengths"].tolist() == [4, 4]
    with pytest.raises(ValueError, match="no copy of"):
        trained.evaluate(episodes=1)


def test_episodes_go_on_if_copies_of_the_object_were_played(tmp_path: Any) -> None:
    vector = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    trained = noterl.DQN(vector, hidden=(4,), seed=1)
    trained.fit(steps=10, verbose=0)
    trained.evaluate(env=vector, episodes=1)
    trained.fit(steps=10, verbose=0)  # without a warning
    env = gymnasium.make("CartPole-v1")
    trained, other = (noterl.DQN(env, hidden=(4,), seed=seed) for seed in (1, 2))
    trained.fit(steps=5, verbose=0)
    other.animate(tmp_path / "a.gif", env=env, max_steps=3)
    trained.fit(steps=5, verbose=0)


def test_episode_of_an_agent_restarts_if_another_agent_has_evaluated_in_its_object() -> None:
    env = CountingEnv(10)
    trained, other = (noterl.DQN(env, hidden=(4,), seed=seed) for seed in (1, 2))
    trained.fit(steps=14, verbose=0)
    other.evaluate(episodes=1)
    with pytest.warns(RuntimeWarning, match="another agent has stepped them"):
        assert trained.fit(steps=10, verbose=0).history["length"] == [10]


class InPlace(gymnasium.Env[Any, Any]):
    """Changes the action that it receives."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        action *= 100
        self.steps += 1
        return np.zeros(2, np.float32), 0.0, False, self.steps >= 3, {}


def test_actions_that_an_environment_changes_are_recorded_as_chosen() -> None:
    agent = noterl.TD3(InPlace, hidden=(4,), seed=1)
    assert agent.play()["trajectory"][0].actions.ravel() == pytest.approx([agent.act(np.zeros(2)).item()] * 3)
    wrapped = noterl.envs.PreviousStep(InPlace())
    wrapped.reset(seed=0)
    assert wrapped.step(np.array([0.5], np.float32))[0]["action"] == pytest.approx([0.5])


def test_random_actions_have_the_dtype_of_the_space() -> None:
    space = gymnasium.spaces.MultiDiscrete([2, 3], dtype=np.int32)
    assert noterl.heads.base.random_actions(space, 4, np.random.default_rng(0)).dtype == np.int32


def test_keys_of_a_dict_may_be_numbers(tmp_path: Any) -> None:
    space = gymnasium.spaces.Dict({0: gymnasium.spaces.Discrete(2), 1: gymnasium.spaces.Box(-1, 1, (2,))})  # type: ignore[dict-item]
    agent = noterl.DQN((space, gymnasium.spaces.Discrete(2)), hidden=(4,), normalize_observation=True, seed=1)
    agent.export(tmp_path / "policy", "numpy")

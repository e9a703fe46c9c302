"""The environment object that the user holds is the one that is played."""

from __future__ import annotations

from typing import Any

import gymnasium
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

"""Environments from one fit to the next, and after `close`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import noterl
from noterl import policies
from tests.support.doubles import CountingEnv, RandomWalkEnv, TogetherVectorEnv
from tests.support.parts import lanes_of
from tests.support.replay_invariants import check_replay
from tests.support.states import assert_same_state, differences

pytestmark = pytest.mark.backends("torch")


def acting(env: Any = "CartPole-v1", seed: int | None = 3, **options: Any) -> noterl.DQN:
    """Return an agent that acts and stores transitions, but makes no updates."""
    agent = noterl.DQN(env, hidden=(4,), seed=seed)
    agent.compile(
        policy=policies.EpsGreedyQPolicy(0.5), replay=noterl.Replay(200), learning_starts=5, update_every=10**6
    )
    if options:
        agent.fit(**options, verbose=0)
    return agent


@pytest.mark.parametrize("num_envs", [1, 3])
def test_closed_agent_continues_its_episodes(num_envs: int) -> None:
    uninterrupted, agent = (acting(steps=40, num_envs=num_envs) for _ in range(2))
    before = agent.get_state()
    agent.close()
    assert lanes_of(agent) is None
    assert_same_state(before, agent)
    agent.close()
    assert_same_state(before, agent)
    for each in (uninterrupted, agent):
        each.fit(steps=40, verbose=0)
    assert_same_state(uninterrupted, agent)


def test_close_closes_only_environments_that_the_agent_created() -> None:
    instances: list[CountingEnv] = []

    def build() -> CountingEnv:
        instances.append(CountingEnv())
        return instances[-1]

    agent = acting(build, steps=9, num_envs=2)
    assert [env.closed for env in instances] == [0, 0]
    agent.close()
    assert all(env.closed for env in instances)
    own = CountingEnv()
    agent = acting(own, steps=9)
    agent.close()
    assert own.closed == 0


def test_untrained_agent_can_be_closed() -> None:
    agent = acting()
    agent.close()
    agent.close()
    agent.fit(steps=3, verbose=0)
    assert agent.steps == 3
    evaluated = agent.evaluate(episodes=1)
    agent.close()
    assert agent.evaluate(episodes=1)["reward_mean"] == evaluated["reward_mean"]


def test_get_state_and_set_state_can_be_repeated() -> None:
    agent = acting(steps=33, num_envs=2)
    state = agent.get_state()
    for _ in range(2):
        assert_same_state(state, agent.get_state())
        agent.set_state(state)
        agent.set_state(state)
        assert_same_state(state, agent)


def test_two_fits_with_the_same_env_argument_equal_one() -> None:
    uninterrupted, agent = acting(), acting()
    env = gymnasium.make("CartPole-v1", max_episode_steps=15)
    uninterrupted.fit(lambda: gymnasium.make("CartPole-v1", max_episode_steps=15), steps=40, verbose=0)
    for steps in (21, 19):
        agent.fit(env, steps=steps, verbose=0)
    assert_same_state(uninterrupted, agent)


def test_another_environment_starts_new_episodes_in_both_directions() -> None:
    agent = acting(CountingEnv, steps=7)
    begun = agent._counters.episodes_begun
    agent.fit(CountingEnv(), steps=1, verbose=0)
    assert agent._counters.episodes_begun == begun + 1
    agent.fit(steps=1, verbose=0)
    assert agent._counters.episodes_begun == begun + 2
    check_replay(agent.replay)


def test_another_number_of_lanes_starts_new_episodes() -> None:
    agent = acting(steps=7)
    begun = agent._counters.episodes_begun
    agent.fit(steps=4, num_envs=2, verbose=0)
    assert agent._counters.episodes_begun == begun + 2 and lanes_of(agent).num_envs == 2
    agent.fit(steps=4, verbose=0)
    assert lanes_of(agent).num_envs == 2, "without num_envs, fit keeps the open lanes"
    agent.fit(steps=4, num_envs=1, verbose=0)
    assert agent._counters.episodes_begun == begun + 3
    check_replay(agent.replay)


def test_seed_restarts_every_generator_and_environment() -> None:
    first, second = acting(steps=9), acting(steps=14, num_envs=2)
    for agent in (first, second):
        agent.fit(steps=30, num_envs=1, seed=5, verbose=0)
    states = [agent.get_state() for agent in (first, second)]
    assert states[0]["generators"]["seed"] == 5
    for name in ("generators", "explorer"):
        assert not differences(states[0][name], states[1][name])
    runs = [state["replay"]["columns"]["observation"][-1][-30:] for state in states]
    assert np.array_equal(*runs)


class StrictVectorEnv(gymnasium.vector.SyncVectorEnv):
    """A vector environment that cannot be used after `close`, like those in processes."""

    def reset(self, **options: Any) -> Any:
        assert not self.closed
        return super().reset(**options)


def strict() -> StrictVectorEnv:
    return StrictVectorEnv([CountingEnv] * 2)


def test_vector_environment_of_a_factory_is_kept_from_fit_to_fit() -> None:
    instances: list[StrictVectorEnv] = []
    agent = acting(lambda: instances.append(strict()) or instances[-1], steps=20)
    agent.fit(steps=20, verbose=0)
    assert len(instances) == 1 and not instances[0].closed
    agent.close()
    assert instances[0].closed
    agent.fit(steps=20, verbose=0)
    assert agent.steps == 60 and len(instances) == 2
    assert agent.evaluate(episodes=1)["length_mean"] == 5
    check_replay(agent.replay)
    agent.close()


def test_vector_environment_of_the_user_stays_open() -> None:
    env = strict()
    agent = acting(env, steps=20)
    agent.close()
    with pytest.warns(RuntimeWarning, match="vector environment"):
        agent.fit(steps=20, verbose=0)
    assert agent.steps == 40 and not env.closed
    env.close()


def test_fit_switches_between_vector_and_scalar_environments() -> None:
    env = strict()
    agent = acting(CountingEnv, steps=10)
    agent.fit(env, steps=10, verbose=0)
    agent.fit(steps=10, verbose=0)
    agent.fit(env, steps=10, verbose=0)
    assert agent.steps == 40
    check_replay(agent.replay)
    agent.close()
    env.close()


class Scalar(gymnasium.Env):
    """An environment whose action is an array without axes, which must be in the action space."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Box(-2, 1, ())

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert type(action) is np.ndarray and action.dtype == np.float32
        assert self.action_space.contains(action)
        return np.full(1, action / 2, np.float32), 0.0, bool(action > 0.8), False, {}


def test_action_of_a_space_without_axes_is_an_array() -> None:
    first, second = (noterl.PPO(Scalar, hidden=(4,), seed=3, rollout_steps=64) for _ in range(2))
    first.fit(steps=11, num_envs=2, verbose=0)
    second.set_state(first.get_state())
    for agent in (first, second):
        agent.fit(steps=10, verbose=0)
    assert_same_state(first, second)
    first.evaluate(episodes=1, deterministic=False)
    action = first.act(np.zeros(1, np.float32))
    assert type(action) is np.ndarray and action.shape == () and Scalar.action_space.contains(action)
    assert first.act(np.zeros((3, 1), np.float32)).shape == (3,)


class ActionChangingEnv(RandomWalkEnv):
    """Changes the action array that it receives."""

    def step(self, action):
        result = super().step(action)
        action *= 0
        return result


@pytest.mark.filterwarnings("ignore:the budget ended within a step")
@pytest.mark.parametrize(
    "build",
    [lambda env: env, lambda env: SyncVectorEnv([env] * 2), lambda env: TogetherVectorEnv([env] * 2)],
    ids=["lanes", "sync", "vector"],
)
@pytest.mark.parametrize("num_envs", [None, 2])
def test_environment_that_changes_its_action_does_not_change_training(build: Any, num_envs: int | None) -> None:
    agents = [noterl.DDPG(build(env), hidden=(4,), seed=1) for env in (RandomWalkEnv, ActionChangingEnv)]
    for agent in agents:
        agent.compile(replay=noterl.Replay(64), learning_starts=8, batch_size=4)
        agent.fit(steps=21, num_envs=num_envs, verbose=0)
    plain, changed = (agent.get_state() for agent in agents)
    for part in ("replay", "lanes", "variables"):
        assert differences(plain[part], changed[part]) == []


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: noterl.PPO(CountingEnv, hidden=(4,), rollout_steps=64), r"rollout_steps=64 "),
        (lambda: noterl.DQN(CountingEnv, hidden=(4,)), r"learning_starts=\d+ "),
    ],
    ids=["PPO", "DQN"],
)
def test_fit_without_updates_warns(build: Any, reason: str) -> None:
    with pytest.warns(UserWarning, match=rf"update, after 9 .*{reason}") as caught:
        build().fit(steps=9, verbose=0)
    assert __file__ in [warning.filename for warning in caught]


def test_fit_that_was_stopped_before_its_first_update_does_not_warn() -> None:
    agent = noterl.DQN(CountingEnv, hidden=(4,))
    stop = noterl.callback.LambdaCallback(on_episode_end=lambda episode, logs: agent.stop("pruned"))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fit ended without")
        agent.fit(steps=100, callbacks=[stop], verbose=0)
    assert agent.updates == 0 and agent.stop_reason == "pruned"


def test_fit_with_updates_does_not_warn() -> None:
    agent = noterl.PPO(CountingEnv, hidden=(4,), rollout_steps=8, epochs=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fit ended without")
        agent.fit(steps=8, verbose=0)
        agent.fit(steps=2, verbose=0)


class Refuses(noterl.callbacks.Callback):
    def set_state(self, state: Any) -> None:
        raise ValueError("state of another version")

    def get_state(self) -> Any:
        return {"kind": 1}


def test_fit_goes_on_after_one_with_workers_that_failed_before_training(tmp_path: Path) -> None:
    agent = acting(steps=7, callbacks=[Refuses()])
    agent.save(tmp_path / "agent.noterl")
    agent = noterl.load(tmp_path / "agent.noterl")
    with pytest.raises(ValueError, match="state of another version"):
        agent.fit(steps=4, workers=1, callbacks=[Refuses()], verbose=0)
    steps = agent.steps
    agent.fit(steps=4, verbose=0)
    assert agent.steps == steps + 4
    check_replay(agent.replay)

"""Unfinished episodes are restored from a state or by repeating their actions."""

from __future__ import annotations

import copy
from collections import deque

import gymnasium
import numpy as np
import pytest

from noterl.envs import equal, get_state, replay, set_state
from tests.support.doubles import CountingEnv, RandomWalkEnv, StatefulEnv
from tests.support.encoding import same, through_json

pytestmark = pytest.mark.backend_free

CARTPOLE = "CartPole-v1"


class Remembering(gymnasium.Wrapper):
    """A user-defined wrapper whose state is in plain attributes."""

    def __init__(self, env):
        super().__init__(env)
        self.returns, self.recent, self.total = [], deque(maxlen=2), np.float32(0)

    def step(self, action):
        result = self.env.step(action)
        self.total += np.float32(result[1])
        self.recent.append((result[1], self.total))
        return (np.append(result[0], self.total).astype(np.float32), *result[1:])


class RememberingWithState(Remembering):
    def get_state(self):
        return {"inner": self.env.get_state(), "recent": self.recent, "total": self.total}

    def set_state(self, state):
        self.env.set_state(state["inner"])
        self.recent, self.total = state["recent"], state["total"]


class TestState:
    def continuation(self, env, actions):
        return [env.step(action)[:4] for action in actions]

    def test_state_without_methods_is_none(self):
        env = gymnasium.make(CARTPOLE)
        env.reset(seed=1)
        assert get_state(env) is None

    @pytest.mark.parametrize(
        "wrap",
        [
            lambda: StatefulEnv(),
            lambda: gymnasium.wrappers.TimeLimit(StatefulEnv(limit=50), 6),
            lambda: gymnasium.wrappers.OrderEnforcing(gymnasium.wrappers.TimeLimit(StatefulEnv(limit=50), 6)),
            lambda: gymnasium.wrappers.NormalizeObservation(StatefulEnv(limit=50)),
            lambda: gymnasium.wrappers.NormalizeReward(StatefulEnv(limit=50)),
            lambda: gymnasium.wrappers.FrameStackObservation(StatefulEnv(limit=50), 3),
            lambda: gymnasium.wrappers.DelayObservation(StatefulEnv(limit=50), 2),
            lambda: gymnasium.wrappers.TimeAwareObservation(gymnasium.wrappers.TimeLimit(StatefulEnv(limit=50), 9)),
            lambda: gymnasium.wrappers.StickyAction(StatefulEnv(limit=50), 0.5),
            lambda: gymnasium.wrappers.RecordEpisodeStatistics(StatefulEnv(limit=50)),
            lambda: gymnasium.wrappers.ClipAction(StatefulEnv(limit=50)),
            lambda: RememberingWithState(StatefulEnv(limit=50)),
        ],
    )
    def test_another_instance_continues_exactly(self, wrap):
        rng = np.random.default_rng(3)
        actions = rng.uniform(-0.2, 0.2, (8, 1)).astype(np.float32)
        first, second = wrap(), wrap()
        first.reset(seed=11)
        first.step(actions[0])
        first.reset(seed=5)
        for action in actions[:3]:
            first.step(action)
        state = get_state(first)
        kept = copy.deepcopy(state)
        expected = self.continuation(first, actions[3:6])
        assert equal(list(state.items()), list(kept.items())), "the state changed while the environment went on"
        set_state(second, state)
        assert equal(self.continuation(second, actions[3:6]), expected)
        assert equal(first.reset(seed=9)[0], second.reset(seed=9)[0])

    def test_time_limit_continues(self):
        def make():
            return gymnasium.wrappers.TimeLimit(StatefulEnv(limit=1e9, length=100), 4)

        first, second = make(), make()
        first.reset(seed=0)
        for _ in range(3):
            first.step(np.zeros(1))
        second.reset(seed=1)
        set_state(second, get_state(first))
        assert second.step(np.zeros(1))[3] is True

    def test_environment_is_reset_before_its_state_is_set(self):
        class Late(StatefulEnv):
            def reset(self, *, seed=None, options=None):
                self.board = np.zeros(3)
                return super().reset(seed=seed)

            def get_state(self):
                return {"board": self.board, "base": super().get_state()}

            def set_state(self, state):
                self.board[:] = state["board"]
                super().set_state(state["base"])

        first, second = Late(), Late()
        first.reset(seed=3)
        first.board += 2
        state = get_state(first)
        first.board += 5
        set_state(second, state)
        assert second.board.tolist() == [2, 2, 2]

    def test_limit_itself_is_not_state(self):
        first = gymnasium.wrappers.TimeLimit(StatefulEnv(limit=1e9), 4)
        second = gymnasium.wrappers.TimeLimit(StatefulEnv(limit=1e9), 9)
        first.reset(seed=0)
        set_state(second, get_state(first))
        assert second._max_episode_steps == 9

    def test_state_holds_only_what_a_file_can(self):
        env = gymnasium.wrappers.TimeLimit(RememberingWithState(StatefulEnv()), 9)
        env.reset(seed=2)
        env.step(np.zeros(1))
        state = get_state(env)
        assert same(through_json(state), state)

    def test_state_that_a_file_cannot_hold_is_none(self):
        env = StatefulEnv()
        env.reset(seed=0)
        env.get_state = lambda: {"handle": object()}
        assert get_state(env) is None

    def test_wrapper_of_another_package_needs_the_methods_itself(self):
        env = Remembering(StatefulEnv())
        env.reset(seed=0)
        assert get_state(env) is None
        other = RememberingWithState(StatefulEnv())
        other.reset(seed=0)
        with pytest.raises(ValueError, match="this one is RememberingWithState"):
            set_state(other, {**get_state(other), "layers": ["Remembering", "StatefulEnv"]})

    def test_classes_of_a_script_may_be_environments_and_wrappers(self, monkeypatch):
        for kind in (Remembering, CountingEnv, StatefulEnv):
            monkeypatch.setattr(kind, "__module__", "__main__")
        env = StatefulEnv()
        for each in (env, CountingEnv(3)):
            each.reset(seed=0)
        assert get_state(env) is not None
        assert get_state(Remembering(env)) is None and get_state(CountingEnv(3)) is None

    def test_methods_with_other_arguments_are_ignored(self):
        class Mujoco(RandomWalkEnv):
            def get_state(self):
                return {}

            def set_state(self, position, velocity):
                raise AssertionError

        env = Mujoco()
        env.reset(seed=0)
        assert get_state(env) is None

    def test_state_of_another_environment_raises(self):
        env = gymnasium.wrappers.TimeLimit(StatefulEnv(), 4)
        env.reset(seed=0)
        state = get_state(env)
        other = StatefulEnv()
        with pytest.raises(ValueError, match=r"state is of .*TimeLimit<StatefulEnv"):
            set_state(other, state)
        with pytest.raises(ValueError, match="this one is RandomWalkEnv"):
            set_state(RandomWalkEnv(), state)
        for wrong in (None, {}, {**state, "more": 1}):
            with pytest.raises(ValueError, match=r"^state"):
                set_state(env, wrong)
        assert other.set_calls == 0

    @pytest.mark.parametrize("path", ["env", "step", "_max_episode_steps", "__class__", "env.position"])
    def test_hostile_state_reaches_no_other_attribute(self, path):
        env = gymnasium.wrappers.TimeLimit(StatefulEnv(), 4)
        env.reset(seed=0)
        state = get_state(env)
        state["wrappers"][0][path] = 1
        with pytest.raises(ValueError, match=r"^state: .*has no state named"):
            set_state(env, state)
        assert env.unwrapped.set_calls == 0

    def test_replay_repeats_actions(self):
        env, actions = RandomWalkEnv(limit=50), [np.array([0.1 * k]) for k in range(5)]
        env.reset(seed=4)
        for action in actions:
            last = env.step(action)[0]
        assert np.array_equal(replay(RandomWalkEnv(limit=50), 4, actions), last)
        assert np.array_equal(replay(env, 4, []), RandomWalkEnv().reset(seed=4)[0])
        assert replay(CountingEnv(length=3), 0, [0, 0, 0]) is None

    def test_objects_and_copies_differ_in_checkers_only(self):
        gymnasium.register("Stateful-v0", StatefulEnv, max_episode_steps=9)
        try:
            env, copied = (gymnasium.make("Stateful-v0", disable_env_checker=disabled) for disabled in (False, True))
        finally:
            gymnasium.registry.pop("Stateful-v0")
        env.reset(seed=0)
        last = env.step(env.action_space.sample())[0]
        set_state(copied, get_state(env))
        action = env.action_space.sample()
        assert not np.array_equal(env.step(action)[0], last)
        assert same(env.step(action)[:4], (copied.step(action), copied.step(action))[1][:4])

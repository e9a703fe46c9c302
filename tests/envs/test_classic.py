"""Classic gym 0.21 and 0.26 behind gymnasium's interface."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from noterl.envs import ClassicEnv, resolve
from tests.support.doubles import Gym021Env, Gym026Env

pytestmark = pytest.mark.backend_free


class GymWrapper:
    """The base class of gym 0.26's wrappers: it forwards attributes that it lacks."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **keywords: Any) -> Any:
        return self.env.reset(**keywords)

    def step(self, action: Any) -> Any:
        return self.env.step(action)

    def close(self) -> None:
        """Do nothing."""


class OrderEnforcing(GymWrapper):
    """Added by `gym.make`."""


class Doubling(GymWrapper):
    """A wrapper of the user."""


class TimeLimit(GymWrapper):
    """Truncates an episode as gym 0.26 does."""

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        super().__init__(env)
        self._max_episode_steps = max_episode_steps

    def reset(self, **keywords: Any) -> Any:
        self._elapsed = 0
        return self.env.reset(**keywords)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._elapsed += 1
        return observation, reward, terminated, truncated or self._elapsed >= self._max_episode_steps, info


class EnvSpec(SimpleNamespace):
    """A spec as gym 0.26 sets it: with the arguments of the environment, without a changed time limit."""


def make(spec: EnvSpec, max_episode_steps: int | None = None, render_mode: str | None = None, **keywords: Any) -> Any:
    """Make an environment as `gym.make` of gym 0.26 does."""
    env = Gym026Env(**{**spec.kwargs, **keywords})
    env.spec = EnvSpec(id=spec.id, kwargs={**spec.kwargs, **keywords}, max_episode_steps=spec.max_episode_steps)
    env.render_mode = render_mode
    return TimeLimit(OrderEnforcing(env), max_episode_steps or spec.max_episode_steps)


@pytest.fixture
def gym(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a module like gym 0.26, which is not installed here."""
    module: Any = ModuleType("gym")
    module.make, module.EnvSpec, module.TimeLimit, module.OrderEnforcing = make, EnvSpec, TimeLimit, OrderEnforcing
    for part in (EnvSpec, TimeLimit, OrderEnforcing):
        monkeypatch.setattr(part, "__module__", "gym")
    monkeypatch.setitem(sys.modules, "gym", module)
    return module


SPEC = EnvSpec(id="Counting-v0", kwargs={"length": 9}, max_episode_steps=5)


def length(env: Any) -> int:
    env.reset(seed=1)
    return next(count for count in range(1, 99) if any(env.step(0)[2:4]))


class TestCopies:
    def test_environment_of_gym_is_copied_by_its_spec(self, gym: Any) -> None:
        own = gym.make(SPEC, truncate=True)
        source = resolve(own)
        assert source.make(0).env is own
        for copy in (source.make(1), source.make_evaluation(render_mode="rgb_array")):
            assert type(copy.env) is TimeLimit and copy.env is not own
            assert copy.env.truncate and length(copy) == 5
        assert copy.render_mode == "rgb_array"

    def test_changed_time_limit_is_copied(self, gym: Any) -> None:
        assert length(resolve(gym.make(SPEC, max_episode_steps=3)).make_evaluation()) == 3
        assert length(resolve(gym.make(SPEC, length=2)).make_evaluation()) == 2

    def test_other_processes_make_their_copies(self, gym: Any) -> None:
        source = resolve(gym.make(SPEC))
        for other in (source.detached(), source.portable()):
            assert length(pickle.loads(pickle.dumps(other)).make(0)) == 5
        assert resolve(Gym026Env()).portable() is None

    def test_environment_with_other_wrappers_is_not_copied(self, gym: Any) -> None:
        with pytest.raises(ValueError, match=r"no copy of .*not Doubling"):
            resolve(Doubling(gym.make(SPEC))).make_evaluation()

    def test_inner_layer_is_copied_without_the_outer_ones(self, gym: Any) -> None:
        """Note_rl's programs call `gym.make(...).env`, which has no time limit."""
        assert length(resolve(gym.make(SPEC).env).make_evaluation()) == 9

    def test_last_of_several_frames_is_rendered(self) -> None:
        """gym 0.25 returns a list of frames with render_mode="rgb_array"."""
        env = Gym026Env()
        env.render = lambda: [np.zeros((2, 2, 3)), np.ones((2, 2, 3))]
        assert ClassicEnv(env).render().all()


class TestClassic:
    @pytest.mark.parametrize("cls", [Gym021Env, Gym026Env])
    @pytest.mark.parametrize("truncate", [False, True])
    def test_step_returns_five_values_and_reset_seeds(self, cls, truncate):
        lane = resolve(cls(length=2, truncate=truncate)).make(0)
        observation, info = lane.reset(seed=11)
        assert observation.tolist() == [11, 0]
        assert isinstance(info, dict)
        observation, reward, terminated, truncated, info = lane.step(1)
        assert (observation.tolist(), reward, terminated, truncated) == ([11, 1], 1.0, False, False)
        assert lane.step(0)[2:4] == (not truncate, truncate)
        assert lane.reset(seed=12)[0].tolist() == [12, 0]

    @pytest.mark.parametrize("shape", [(1,), (1, 1), ()])
    def test_reward_in_an_array_becomes_a_number(self, shape):
        """Some environments of gym with continuous actions return arrays."""

        class InAnArray(Gym021Env):
            def step(self, action):
                observation, reward, *rest = super().step(action)
                return observation, np.full(shape, reward), *rest

        lane = resolve(InAnArray()).make(0)
        lane.reset(seed=1)
        reward = lane.step(1)[1]
        assert (type(reward), reward) == (float, 1.0)

    def test_spaces_are_converted(self):
        source = resolve(Gym021Env())
        assert source.observation_space == spaces.Box(-np.inf, np.inf, (2,), np.float32)
        assert source.action_space == spaces.Discrete(2)

    def test_reset_without_seed_does_not_seed(self):
        env = Gym021Env()
        lane = ClassicEnv(env)
        lane.reset(seed=5)
        assert lane.reset()[0].tolist() == [5, 0]

    def test_seed_fits_31_bits(self):
        env = Gym021Env()
        ClassicEnv(env).reset(seed=2**40 + 3)
        assert env.seeded == 3

    def test_factory_makes_separate_lanes(self):
        source = resolve(Gym026Env)
        assert source.make(0).env is not source.make(1).env

    def test_environment_that_wraps_itself_is_accepted(self):
        env = Gym021Env()
        env.env = env
        assert resolve(env).make(0).env is env

    def test_keyword_that_a_wrapped_environment_lacks_is_not_passed(self):
        class Wrapper(Gym021Env):
            def __init__(self, env):
                super().__init__()
                self.env = env

            def reset(self, **keywords):
                return self.env.reset(**keywords)

            def seed(self, seed=None):
                return self.env.seed(seed)

        assert ClassicEnv(Wrapper(Gym021Env())).reset(seed=3)[0].tolist() == [3, 0]
        lane = ClassicEnv(Wrapper(Gym026Env()))
        assert lane.reset(seed=4, options={"level": 2})[1] == {"options": {"level": 2}}

    def test_type_error_of_reset_is_raised(self):
        class Broken(Gym026Env):
            def reset(self, *, seed=None, options=None):
                raise TypeError("Inner.reset() got an unexpected keyword argument 'seed'")

        with pytest.raises(TypeError, match="Inner"):
            ClassicEnv(Broken()).reset(seed=1)

    def test_type_error_of_step_is_raised(self):
        class Broken(Gym026Env):
            def step(self, action):
                raise TypeError("step() takes 1 positional argument but 2 were given")

        lane = ClassicEnv(Broken())
        lane.reset(seed=1)
        with pytest.raises(TypeError, match="takes 1 positional"):
            lane.step(0)

    def test_options_are_passed_or_raise(self):
        assert ClassicEnv(Gym026Env()).reset(seed=1, options={"level": 2})[1] == {"options": {"level": 2}}
        with pytest.raises(ValueError, match="options must be None for Gym021Env"):
            ClassicEnv(Gym021Env()).reset(seed=1, options={"level": 2})

    def test_observation_may_be_a_pair_with_a_dict(self):
        class Paired(Gym021Env):
            def __init__(self):
                super().__init__()
                self.observation_space = spaces.Tuple([spaces.Discrete(3), spaces.Dict(a=spaces.Discrete(2))])

            def reset(self):
                return 2, {"a": 1}

        observation, info = ClassicEnv(Paired()).reset()
        assert (observation, info) == ((2, {"a": 1}), {})

    @pytest.mark.parametrize(("answer", "words"), [((1, 2, 3), "got 3 values"), (None, "got NoneType")])
    def test_step_with_another_number_of_values_raises(self, answer, words):
        env = Gym026Env()
        env.step = lambda action: answer
        with pytest.raises(ValueError, match="must return 4 or 5 values") as caught:
            ClassicEnv(env).step(0)
        assert words in str(caught.value)

    def test_time_limit_flag_without_an_end_is_ignored(self):
        env = Gym021Env()
        env.step = lambda action: (np.zeros(2), 0.0, False, {"TimeLimit.truncated": True})
        assert ClassicEnv(env).step(0)[2:4] == (False, False)

    def test_render_returns_an_array(self):
        lane = resolve(Gym021Env).make_evaluation(render_mode="rgb_array")
        lane.reset()
        lane.step(0)
        assert lane.render().tolist() == np.full((4, 4, 3), 1).tolist()

    def test_close_is_forwarded(self):
        env = Gym021Env()
        ClassicEnv(env).close()
        assert env.closed == 1
        ClassicEnv(Gym026Env()).close()

    def test_checks_of_gyms_own_checker_are_marked_as_done(self):
        checker = type("PassiveEnvChecker", (Gym026Env,), {"__module__": "gym.wrappers.env_checker"})()
        checker.checked_reset = checker.checked_step = checker.checked_render = False
        outer = Gym026Env()
        outer.env = checker
        ClassicEnv(outer)
        assert checker.checked_reset
        assert checker.checked_step
        assert checker.checked_render

    def test_gym_is_not_imported(self):
        assert "gym" not in sys.modules

"""Environment sources: every kind of `env=`, lanes, evaluation, vector environments, spaces that do not start at 0."""

from __future__ import annotations

import copy
import functools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from noterl.envs import autoreset_mode, functional_cartpole, games, resolve
from noterl.envs import source as source_module
from noterl.envs.packages import named_packages
from noterl.envs.source import ADAPTERS
from noterl.envs.sources.base import Opened
from noterl.envs.sources.functional import FunctionalSource
from noterl.envs.sources.maker import MakerSource
from noterl.envs.sources.scalar import ScalarSource
from noterl.envs.sources.spaces import SpacesSource
from noterl.envs.sources.vector import VectorSource
from noterl.envs.vectorized import RegisteredVector
from tests.support import doubles
from tests.support.doubles import BranchingEnv, CountingEnv, Gym021Env, Gym026Env

pytestmark = pytest.mark.backend_free

CARTPOLE = "CartPole-v1"


def layer_names(env) -> list[str]:
    names = []
    while env is not None:
        names.append(type(env).__name__)
        env = vars(env).get("env")
    return names


class Doubled(gymnasium.RewardWrapper):
    """A wrapper that gymnasium's specs cannot describe."""

    def reward(self, reward):
        return 2.0 * reward


class TestResolve:
    def test_id_is_made_without_the_checker(self):
        source = resolve(CARTPOLE)
        assert source.action_space == spaces.Discrete(2)
        assert source.observation_space.shape == (4,)
        assert (source.steps_together, source.num_envs) == (False, None)
        assert layer_names(source.make(0)) == ["TimeLimit", "OrderEnforcing", "CartPoleEnv"]

    def test_environment_made_for_the_spaces_becomes_a_lane(self):
        built = []
        source = resolve(lambda: built.append(CountingEnv()) or built[-1])
        assert source.make(0) is built[0]
        assert [source.make(1), source.make(2)] == built[1:]
        assert len(built) == 3

    def test_spec_is_accepted(self):
        spec = gymnasium.make(CARTPOLE, max_episode_steps=7).spec
        assert resolve(spec).make(0).spec.max_episode_steps == 7

    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            ("CartPoll-v1", "Did you mean: `CartPole`?"),
            ("Cartpole", "Did you mean: `CartPole`?"),
            ("CartPole-v9", "`v1`"),
            ("ALF/Pong-v5", "Namespace ALF not found"),
            ("not an id", "Malformed environment ID"),
            ("a:b:CartPole-v1", "env: too many values"),
            (":CartPole-v1", "Empty module name"),
            (7, "got 7"),
            (None, "got None"),
            (object(), "got <object"),
            ((1, 2), "got (1, 2)"),
            ([CARTPOLE], "a factory without arguments"),
            (spaces.Discrete(2), "got Discrete(2)"),
            ((spaces.Discrete(2), 3), "(observation_space, action_space)"),
            (lambda size: CountingEnv(size), "missing a required argument: 'size'"),
            (lambda: 3, "must return an environment, got 3"),
            (lambda: CountingEnv, "must return an environment"),
            (len, "must not require arguments"),
        ],
    )
    def test_other_objects_raise(self, wrong, words):
        with pytest.raises(ValueError, match=r"^env") as caught:
            resolve(wrong)
        assert words in str(caught.value)

    def test_errors_of_a_users_constructor_are_raised_unchanged(self):
        def broken():
            raise doubles.EnvironmentBroke("in the constructor")

        with pytest.raises(doubles.EnvironmentBroke, match="in the constructor"):
            resolve(broken)

    def test_missing_package_is_an_import_error(self, monkeypatch):
        def entry_point():
            raise gymnasium.error.DependencyNotInstalled("box2d is not installed")

        spec = gymnasium.envs.registration.EnvSpec("NeedsMore-v0", entry_point=entry_point)
        monkeypatch.setitem(gymnasium.registry, spec.id, spec)
        with pytest.raises(ImportError, match=r"^env: NeedsMore-v0 .*box2d"):
            resolve("NeedsMore-v0")

    @pytest.mark.parametrize(
        ("theirs", "ours"), [("box2d", "box2d"), ("classic_control", "classic-control"), ("mujoco", "robotics")]
    )
    def test_missing_package_names_the_extra(self, theirs, ours):
        message = f'it is not installed, run `pip install "gymnasium[{theirs}]"`'
        with (
            pytest.raises(ImportError, match=rf"^env: X .*noterl\[{ours}\]"),
            named_packages("env: X cannot be made"),
        ):
            raise gymnasium.error.DependencyNotInstalled(message)

    def test_missing_atari_names_the_extra(self):
        with (
            pytest.raises(ImportError, match=r"ALE .*noterl\[atari\]"),
            named_packages("env: X cannot be made"),
        ):
            raise gymnasium.error.NamespaceNotFound("Namespace ALE not found.")
        with pytest.raises(gymnasium.error.NamespaceNotFound), named_packages("env: X cannot be made"):
            raise gymnasium.error.NamespaceNotFound("Namespace mine not found.")

    def test_missing_module_of_an_id_is_an_import_error(self):
        with pytest.raises(ImportError, match="no_such_module"):
            resolve("no_such_module:Env-v0")

    def test_unsupported_space_raises_and_closes_the_environment(self):
        built = []

        def factory():
            built.append(CountingEnv())
            built[-1].observation_space = spaces.Dict(text=spaces.Text(4))
            return built[-1]

        with pytest.raises(ValueError, match=r"^env: observation_space\['text'\] .*Text"):
            resolve(factory)
        assert built[0].closed == 1

    def test_class_with_defaults_is_a_factory(self):
        source = resolve(CountingEnv)
        assert isinstance(source.make(0), CountingEnv)
        assert source.make(1) is not source.make(0)

    def test_factory_may_return_an_id_or_a_spec(self):
        assert resolve(lambda: CARTPOLE).make(1).spec.id == CARTPOLE
        assert resolve(lambda: gymnasium.spec(CARTPOLE)).make(1).spec.id == CARTPOLE

    def test_pair_of_spaces_has_no_environment(self):
        source = resolve((spaces.Box(0, 1, (3,)), spaces.Discrete(2)))
        assert source.observation_space.shape == (3,)
        for method in (source.make, source.make_evaluation):
            with pytest.raises(ValueError, match="only its spaces; pass env="):
                method()

    def test_source_is_returned_unchanged(self):
        source = resolve(CARTPOLE)
        assert resolve(source) is source


class TestMake:
    def test_object_is_lane_zero_and_its_spec_makes_others(self):
        env = gymnasium.make(CARTPOLE, max_episode_steps=9)
        source = resolve(env)
        assert source.make(0) is env
        lane = source.make(1)
        assert lane.unwrapped is not env.unwrapped
        assert lane.spec.max_episode_steps == 9

    @pytest.mark.parametrize("kind", [CountingEnv, Gym021Env])
    def test_object_without_spec_has_one_lane_and_no_evaluation(self, kind):
        source = resolve(kind())
        source.make(0)
        message = rf"^env: .*{kind.__name__}.*\(it has no spec\).*a factory"
        with pytest.raises(ValueError, match=message):
            source.make(1)
        with pytest.raises(ValueError, match=message):
            source.make_evaluation()

    def test_wrapper_that_the_spec_lacks_is_not_dropped(self):
        source = resolve(Doubled(gymnasium.make(CARTPOLE)))
        with pytest.raises(ValueError, match=r"env.spec\) raises ValueError.*Doubled"):
            source.make(1)
        with pytest.raises(ValueError, match=r"env.spec\) raises ValueError.*Doubled"):
            source.make_evaluation()

    def test_wrapper_in_the_spec_is_made_again(self):
        env = gymnasium.wrappers.TransformReward(gymnasium.make(CARTPOLE), abs)
        lane = resolve(env).make(1)
        assert layer_names(lane)[0] == "TransformReward"

    def test_same_object_from_the_factory_raises(self):
        env = CountingEnv()
        source = resolve(lambda: env)
        source.make(0)
        with pytest.raises(ValueError, match=r"the same .* again"):
            source.make(1)
        with pytest.raises(ValueError, match=r"the same .* again"):
            source.make_evaluation()

    @pytest.mark.parametrize("wrap", [Doubled, lambda env: gymnasium.wrappers.TimeLimit(env, 3)])
    def test_same_object_under_a_new_wrapper_raises(self, wrap):
        env = CountingEnv()
        with pytest.raises(ValueError, match="again; it must make a new one"):
            resolve(lambda: wrap(env)).make_evaluation()

    def test_same_classic_object_raises(self):
        env = Gym021Env()
        with pytest.raises(ValueError, match="again; it must make a new one"):
            resolve(lambda: env).make_evaluation()

    def test_factory_with_other_spaces_the_second_time_raises(self):
        sizes = iter((3, 4, 5))
        source = resolve(lambda: doubles.ImageEnv((next(sizes), 4, 1)))
        with pytest.raises(ValueError, match=r"\(4, 4, 1\).* not .*\(3, 4, 1\)"):
            source.make_evaluation()
        source.make(0)
        with pytest.raises(ValueError, match=r"other spaces: .*\(5, 4, 1\)"):
            source.make(1)

    def test_evaluation_never_uses_a_lane(self):
        for env in (CARTPOLE, CountingEnv, gymnasium.make(CARTPOLE), Gym021Env, Gym026Env):
            source = resolve(env)
            training, evaluation = source.make(0), source.make_evaluation()
            assert evaluation.unwrapped is not training.unwrapped
            training.reset(seed=1)
            before = copy.deepcopy(training.step(0)[0])
            evaluation.reset(seed=2)
            assert not np.shares_memory(before, evaluation.step(0)[0])

    def test_render_mode_is_set_or_raises(self):
        assert resolve(CARTPOLE).make_evaluation(render_mode="rgb_array").render_mode == "rgb_array"
        assert resolve(gymnasium.make(CARTPOLE)).make_evaluation(render_mode="rgb_array").render_mode == "rgb_array"
        with pytest.raises(ValueError, match="render_mode=None, not 'rgb_array'"):
            resolve(CountingEnv).make_evaluation(render_mode="rgb_array")

    def test_render_mode_is_passed_to_a_factory_that_accepts_it(self):
        source = resolve(functools.partial(gymnasium.make, CARTPOLE))
        assert source.make(0).render_mode is None

        def factory(render_mode=None):
            return gymnasium.make(CARTPOLE, render_mode=render_mode)

        assert resolve(factory).make_evaluation(render_mode="rgb_array").render_mode == "rgb_array"

    def test_close_closes_made_environments_and_not_the_users_object(self):
        mine = CountingEnv()
        resolve(mine).close()
        assert mine.closed == 0
        built = []
        source = resolve(lambda: built.append(CountingEnv()) or built[-1])
        source.make(0)
        source.make(1)
        evaluation = source.make_evaluation()
        source.close()
        assert [env.closed for env in built] == [1, 1, 0]
        assert evaluation is built[2]
        assert source.make(0) is built[3]

    def test_all_environments_are_closed_if_one_raises(self):
        class Failing(CountingEnv):
            def close(self):
                super().close()
                raise RuntimeError("no room")

        built = []
        source = resolve(lambda: built.append(Failing()) or built[-1])
        source.make(0)
        source.make(1)
        with pytest.raises(RuntimeError, match="no room"):
            source.close()
        assert [env.closed for env in built] == [1, 1]

    def test_closed_environment_is_not_used_again(self):
        source = resolve(CountingEnv)
        source.close()
        assert source.make(0).closed == 0


class TestVector:
    @pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
    def test_vector_environment_is_accepted(self, mode):
        vector = doubles.branching_vector(3, mode)
        source = resolve(vector)
        assert source.open_vector() is vector
        assert source.num_envs == 3
        assert source.action_space == spaces.Discrete(4)
        assert source.observation_space.shape == (3,)
        assert autoreset_mode(source.open_vector()) == mode
        with pytest.raises(ValueError, match="steps its lanes together"):
            source.make(0)
        assert isinstance(source.make_evaluation(), BranchingEnv)
        source.close()
        assert not vector.closed

    def test_vector_environment_of_a_factory_is_closed(self):
        source = resolve(lambda: doubles.branching_vector(2, "SameStep"))
        vector = source.open_vector()
        source.close()
        assert vector.closed

    @pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
    def test_sync_vector_environment_runs_as_lanes(self, mode):
        vector = gymnasium.vector.SyncVectorEnv([BranchingEnv] * 3, autoreset_mode=mode)
        source = resolve(vector)
        assert (source.steps_together, source.num_envs) == (False, 3)
        assert [source.make(lane) for lane in range(3)] == list(vector.envs)
        assert source.make_evaluation() not in vector.envs
        source.close()
        assert not vector.closed

    def test_sync_vector_environment_of_a_factory_is_made_again_after_close(self):
        made = []
        source = resolve(lambda: made.append(gymnasium.vector.SyncVectorEnv([CountingEnv] * 2)) or made[-1])
        assert source.make(1) is made[0].envs[1]
        source.close()
        assert made[0].closed
        assert source.make(1) is made[1].envs[1]

    def test_spec_of_a_vector_environment_makes_evaluation_environments(self):
        vector = gymnasium.make_vec(CARTPOLE, 2, vectorization_mode="vector_entry_point", max_episode_steps=7)
        source = resolve(vector)
        assert source.make_evaluation().spec.max_episode_steps == 7
        assert source.describe()["id"] == CARTPOLE
        assert source.describe()["kwargs"] == {}
        assert source.describe()["max_episode_steps"] == 7
        vector.close()

    def test_vector_wrapper_is_not_dropped(self):
        vector = gymnasium.wrappers.vector.NormalizeObservation(gymnasium.make_vec(CARTPOLE, num_envs=2))
        source = resolve(vector)
        with pytest.raises(ValueError, match=r"NormalizeObservation .*vector"):
            source.make_evaluation()
        assert "id" not in source.describe()

    def test_wrapper_of_each_environment_is_not_dropped(self):
        vector = gymnasium.vector.SyncVectorEnv([lambda: Doubled(gymnasium.make(CARTPOLE))] * 2)
        assert layer_names(resolve(vector).make_evaluation())[0] == "Doubled"
        vector = gymnasium.make_vec(CARTPOLE, 2, vectorization_mode="sync", wrappers=[Doubled])
        assert "id" not in resolve(vector).describe()

    def test_vector_environment_of_another_library_raises(self):
        class Many(Gym026Env):
            num_envs = 4

        with pytest.raises(ValueError, match="Many steps several environments"):
            resolve(Many())

    def test_missing_autoreset_mode_raises(self):
        vector = doubles.branching_vector(2, "SameStep")
        vector.metadata = {}
        with pytest.raises(ValueError, match=r"autoreset_mode'\] must .*None"):
            autoreset_mode(vector)


class OffsetEnv(gymnasium.Env):
    """Echoes the action: actions are in `action_space`, observations in `observation_space`."""

    def __init__(self, observation_space, action_space) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.start, {}

    def step(self, action):
        assert action in self.action_space, action
        return action - self.action_space.start + self.observation_space.start, 0.0, False, False, {}


class TestStart:
    @pytest.mark.parametrize(
        ("observation_space", "action_space", "last"),
        [
            (spaces.Discrete(3, start=-2), spaces.Discrete(3, start=5), 2),
            (spaces.MultiDiscrete([2, 3], start=[1, -1]), spaces.MultiDiscrete([2, 3], start=[0, 4]), np.array([1, 2])),
        ],
        ids=["Discrete", "MultiDiscrete"],
    )
    def test_error_has_a_line_that_works(self, observation_space, action_space, last):
        env = OffsetEnv(observation_space, action_space)
        for name in ("observation_space", "action_space"):
            with pytest.raises(ValueError, match=f"env: {name} must start at zero") as refused:
                resolve(env)
            line = str(refused.value).partition("env = ")[2]
            env = eval(line, {"gymnasium": gymnasium, "env": env})
        lane = resolve(env).make(0)
        assert np.array_equal(lane.reset(seed=1)[0], np.zeros_like(last))
        for action in (np.zeros_like(last), last):
            assert np.array_equal(lane.step(action)[0], action)
        assert lane.reset()[0] in lane.observation_space

    @pytest.mark.parametrize(
        "space",
        [
            spaces.Dict(image=spaces.Box(0, 1, (2,)), token=spaces.MultiDiscrete([3, 3], start=[1, -1])),
            spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2, start=1)]),
        ],
    )
    def test_part_is_named(self, space):
        with pytest.raises(ValueError, match=r"(\['token'\]|agent '1') must start"):
            resolve((space, spaces.Tuple([spaces.Discrete(2)] * 2)))

    def test_vector_environment_raises(self):
        vector = gymnasium.vector.SyncVectorEnv(
            [lambda: OffsetEnv(spaces.Discrete(3), spaces.Discrete(3, start=1))] * 2
        )
        with pytest.raises(ValueError, match="action_space must start at zero"):
            resolve(vector)


class TestAdapters:
    """Each argument of `env=` is opened by one kind of source."""

    @pytest.mark.parametrize(
        ("env", "expected"),
        [
            ((spaces.Discrete(2), spaces.Discrete(2)), SpacesSource),
            (CARTPOLE, ScalarSource),
            (CountingEnv(), ScalarSource),
            (Gym021Env(), ScalarSource),
            (games.TicTacToe(), ScalarSource),
            (doubles.branching_vector(2, "SameStep"), VectorSource),
            (functional_cartpole(), FunctionalSource),
            (RegisteredVector(CARTPOLE), MakerSource),
        ],
    )
    def test_first_adapter_that_matches_opens_the_argument(self, env, expected):
        assert next(adapter for adapter in ADAPTERS if adapter.matches(env)) is expected
        assert type(resolve(env)) is expected

    @pytest.mark.parametrize("env", [3, None, CountingEnv, spaces.Discrete(2), lambda: CountingEnv()])
    def test_factories_and_other_objects_match_no_adapter(self, env):
        assert not any(adapter.matches(env) for adapter in ADAPTERS)

    def test_factory_has_the_source_of_what_it_makes(self):
        assert type(resolve(lambda: doubles.branching_vector(2, "SameStep"))) is VectorSource
        assert type(resolve(functional_cartpole)) is FunctionalSource

    def test_new_kind_needs_one_class_and_one_entry(self, monkeypatch):
        class Numbered(ScalarSource):
            @classmethod
            def matches(cls, env):
                return isinstance(env, int)

            @classmethod
            def open(cls, env, build=None):
                single = CountingEnv()
                return Opened(
                    (single.observation_space, single.action_space), cls, single, lambda mode: CountingEnv(), True
                )

        monkeypatch.setattr(source_module, "ADAPTERS", (Numbered, *ADAPTERS))
        assert isinstance(resolve(7).make(1), CountingEnv)

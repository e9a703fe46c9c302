"""The encoding of observations for networks, and the checks of what environments return."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from noterl.collect import ScalarLanes, VectorLanes
from noterl.envs import BitFlip, ClassicEnv, resolve
from noterl.envs.checking.checker import Checker
from noterl.envs.checking.vector import check_step
from noterl.envs.ends import InvalidStepError
from noterl.envs.multi_agent.parallel import ListEnv, ParallelEnv
from noterl.envs.observation import ObservationEncoder, at, copy_observation
from noterl.random import Generators
from tests.support.doubles import CountingEnv, Gym021Env, LeavingTeam, ListTeam, TogetherVectorEnv

pytestmark = pytest.mark.backend_free

NESTED = spaces.Dict(
    {
        "gear": spaces.Discrete(3),
        "inner": spaces.Dict({"grid": spaces.Box(-1.0, 1.0, (2, 2), np.float64), "on": spaces.MultiBinary(2)}),
        "pair": spaces.MultiDiscrete([2, 3]),
    }
)
SPACES = [
    spaces.Discrete(4),
    spaces.MultiDiscrete([3, 2, 4]),
    spaces.MultiDiscrete([[2, 3], [4, 2]]),
    spaces.MultiBinary([2, 3]),
    spaces.Box(-1.0, 1.0, ()),
    NESTED,
]


def batched(samples: list[Any]) -> Any:
    """Return observations as a vector environment does: a batch of each part."""
    if isinstance(samples[0], dict):
        return {name: batched([sample[name] for sample in samples]) for name in samples[0]}
    return np.stack([np.asarray(sample) for sample in samples])


class TestObservationEncoder:
    @pytest.mark.parametrize("space", SPACES, ids=str)
    def test_vector_equals_that_of_gymnasiums_flatten(self, space: Any) -> None:
        space.seed(3)
        encoder, samples = ObservationEncoder(space), [space.sample() for _ in range(6)]
        expected = np.stack([spaces.flatten(space, sample) for sample in samples]).astype(np.float32)
        assert np.array_equal(encoder.stack(samples), expected)
        assert np.array_equal(encoder(batched(samples)), expected)
        assert encoder(batched(samples)).dtype == np.float32 and encoder.dtype == np.float32
        twice = batched([batched(samples[:3]), batched(samples[3:])])  # [K, B, ...], as from a memory
        assert np.array_equal(encoder(twice), expected.reshape(2, 3, -1))
        assert encoder.space.shape == expected.shape[1:] and not encoder.is_identity
        assert [encoder.axes(samples[0]), encoder.axes(batched(samples))] == [0, 1]

    def test_achieved_goal_is_left_out(self) -> None:
        env = BitFlip(3)
        encoder = ObservationEncoder(env.observation_space)
        observation = {"observation": [1, 0, 1], "achieved_goal": [1, 1, 1], "desired_goal": [0, 0, 1]}
        assert encoder(copy_observation(env.observation_space, observation)).tolist() == [1, 0, 1, 0, 0, 1]

    @pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
    def test_box_is_encoded_as_itself(self, dtype: Any) -> None:
        space = spaces.Box(0, 9, (2, 3), dtype)
        encoder, sample = ObservationEncoder(space), space.sample()
        assert encoder.is_identity and encoder(sample) is sample
        assert encoder.dtype == (np.uint8 if dtype == np.uint8 else np.float32)
        assert encoder.stack([sample, sample]).shape == (2, 2, 3)

    @pytest.mark.parametrize(
        ("observation", "got"),
        [
            ({"gear": 1}, r"\{'gear': \(\)\}"),
            (np.ones(3), r"\(3,\)"),
            ({**NESTED.sample(), "pair": np.ones((4, 2), np.int64)}, r"'pair': \(4, 2\)"),
        ],
    )
    def test_wrong_shape_raises(self, observation: Any, got: str) -> None:
        with pytest.raises(ValueError, match=rf"sight must .*got .*{got}"):
            ObservationEncoder(NESTED).axes(observation, "sight")

    def test_result_of_reset_raises(self) -> None:
        with pytest.raises(ValueError, match="sight must"):
            ObservationEncoder(spaces.Box(-1.0, 1.0, (2,))).axes((np.zeros(2), {}), "sight")

    @pytest.mark.parametrize(
        ("space", "message"),
        [
            (spaces.Dict({"a": spaces.Dict({"b": spaces.Text(3)})}), r"\['a'\]\['b'\] must be a Box"),
            (spaces.Dict({}), "is empty"),
            (spaces.Box(0, 1, (3, 0)), "is empty"),
        ],
    )
    def test_unsupported_space_raises_with_its_name(self, space: Any, message: str) -> None:
        with pytest.raises(ValueError, match=f"env: observation_space.*{message}"):
            ObservationEncoder(space)


class TestCopies:
    def test_lanes_keep_a_copy_and_its_encoding(self) -> None:
        class Nested(CountingEnv):
            observation_space = NESTED

            def __init__(self) -> None:
                self.sample = NESTED.sample()
                super().__init__()
                self.observation_space = NESTED

            def _observation(self) -> Any:
                return self.sample

        lanes = ScalarLanes(resolve(Nested), 1, Generators(0))
        lanes.reset(0, 0, 0)
        environment: Any = lanes.environments[0]
        expected = ObservationEncoder(NESTED)(environment.sample)
        assert np.array_equal(lanes.observations(), expected[None])
        before = lanes.get_state()["lanes"][0]["observation"]
        environment.sample["inner"]["on"][:] = 7
        assert np.array_equal(ObservationEncoder(NESTED)(before), expected)
        assert np.array_equal(lanes.observations(), expected[None])

    def test_copy_has_the_types_of_the_space(self) -> None:
        mine = copy_observation(NESTED, {**NESTED.sample(), "gear": 2})
        assert mine["gear"].dtype == np.int64 and mine["inner"]["grid"].dtype == np.float64

    def test_at_returns_one_of_a_batch(self) -> None:
        samples = [copy_observation(NESTED, NESTED.sample()) for _ in range(3)]
        assert np.array_equal(
            ObservationEncoder(NESTED)(at(batched(samples), 1)), ObservationEncoder(NESTED)(samples[1])
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"inner": {"grid": np.full((2, 2), np.nan)}},
            r"\['inner'\]\['grid'\] .*3 at step 9 is",
        ),
        ({"inner": {"grid": np.ones(4)}}, r"\['grid'\] .*3 at step 9 .*shape \(4,\)"),
        ({"inner": {}}, r"\['inner'\] .*3 at step 9 .*key 'grid'"),
    ],
)
def test_invalid_part_is_named(change: Any, message: str) -> None:
    checker = Checker(NESTED)
    sample = NESTED.sample()
    checker.observation(sample, 3, 9)
    with pytest.raises(InvalidStepError, match=message):
        checker.observation({**sample, **change}, 3, 9)


def test_bit_flip_is_encoded_as_bits_and_goal() -> None:
    assert ObservationEncoder(functools.partial(BitFlip, 5)().observation_space).space.shape == (10,)


@pytest.mark.parametrize(
    ("space", "good", "bad", "message"),
    [
        (spaces.Box(0, 9, (3,), np.int64), [1, 2, 3], 5, r"has the shape \(\), but its space has the shape \(3,\)"),
        (spaces.Box(0, 255, (4, 4), np.uint8), np.zeros((4, 4), np.uint8), np.zeros((4, 3)), r"has the shape \(4, 3\)"),
        (spaces.MultiBinary(3), np.ones(3, np.int8), np.ones(1, np.int8), r"has the shape \(1,\)"),
        (spaces.MultiDiscrete([3, 2]), [2, 1], [2, 1, 0], r"has the shape \(3,\)"),
        (spaces.Discrete(3), 2, 7, r"is not in Discrete\(3\): 7"),
    ],
)
def test_value_of_another_space_raises(space: Any, good: Any, bad: Any, message: str) -> None:
    for whole, wrap in ((space, lambda value: value), (spaces.Dict({"a": space}), lambda value: {"a": value})):
        checker = Checker(whole)
        checker.observation(wrap(good), 3, 9)
        with pytest.raises(InvalidStepError, match=rf"^observation.* 3 at step 9 {message}"):
            checker.observation(wrap(bad), 3, 9)


def test_reward_beyond_any_float_raises() -> None:
    with pytest.raises(InvalidStepError, match=r"^reward .*3 at step 9 .*float32"):
        Checker(spaces.Discrete(2)).reward(10**400, 3, 9)


def test_observation_of_objects_raises() -> None:
    checker = Checker(spaces.Box(-1.0, 1.0, (2,)))
    with pytest.raises(InvalidStepError, match=r"^observation .*3 at step 9 must"):
        checker.observation(np.array([0.5, object()]), 3, 9)


class WordsEnv(CountingEnv):
    """Returns a word or None instead of a bool at its third step."""

    def __init__(self, ends: tuple[Any, Any]) -> None:
        super().__init__()
        self.ends, self.total = ends, 0

    def step(self, action: Any) -> Any:
        self.total += 1
        observation, reward, *ends, info = super().step(action)
        return (observation, reward, *(self.ends if self.total == 3 else ends), info)


BAD_ENDS = {
    "str": (("False", False), "terminated"),
    "none": ((False, None), "truncated"),
    "array": ((np.array([True, False]), False), "terminated"),
    "empty": ((False, []), "truncated"),
}


@pytest.mark.parametrize(("ends", "name"), BAD_ENDS.values(), ids=BAD_ENDS)
def test_end_that_is_not_a_bool_raises(ends: Any, name: str) -> None:
    lanes = ScalarLanes(resolve(lambda: WordsEnv(ends)), 1, Generators(0))
    lanes.reset(0, 0, 0)
    with pytest.raises(InvalidStepError, match=f"{name} must be a bool, got"):
        for step in range(3):
            lanes.begin_round(np.zeros(1, np.int64))
            lanes.tick(step)


# NumPy before 2.4 takes an array of one number as the number.
@pytest.mark.parametrize(
    "reward", [None, "1", np.ones(2), *([np.ones(1)] if np.lib.NumpyVersion(np.__version__) >= "2.4.0" else [])]
)
def test_reward_that_is_not_a_number_raises(reward: Any) -> None:
    with pytest.raises(InvalidStepError, match=r"^reward of environment 3 at step 9 must"):
        Checker(spaces.Discrete(2)).reward(reward, 3, 9)


class TestFloat32:
    """Networks and memories hold float32, so a float64 beyond its range is refused with the environment's name."""

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("value", [1e39, -1e39])
    def test_observation_beyond_float32_raises(self, dtype: Any, value: float) -> None:
        checker = Checker(spaces.Box(-np.inf, np.inf, (3,), dtype))
        with pytest.raises(InvalidStepError, match=r"^observation .*step 9 exceeds float32"):
            checker.observation(np.array([0.0, value, 1.0]), 3, 9)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
    def test_large_observation_is_accepted(self, dtype: Any) -> None:
        largest = min(np.finfo(np.float32).max, np.finfo(dtype).max if dtype != np.int64 else 2**62)
        for space in (spaces.Box(-np.inf, np.inf, (4, 5), np.float32), spaces.Box(-np.inf, np.inf, (4, 5), np.float64)):
            Checker(space).observation(np.full((4, 5), largest, dtype), 3, 9)
            Checker(space).observation(np.full((4, 5), largest, dtype).tolist(), 3, 9)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_observation_that_is_not_finite_raises(self, dtype: Any, value: float) -> None:
        checker = Checker(spaces.Box(-np.inf, np.inf, (3,), np.float64))
        with pytest.raises(InvalidStepError, match=r"^observation .*3 at step 9 .*finite: "):
            checker.observation(np.array([0.0, value, -value], dtype), 3, 9)

    @pytest.mark.parametrize("reward", [1e39, -1e39, np.float64(1e39), 10**39])
    def test_reward_beyond_float32_raises(self, reward: Any) -> None:
        with pytest.raises(InvalidStepError, match=r"^reward .*9 .*float32.*1(e\+39|0{39})"):
            Checker(spaces.Discrete(2)).reward(reward, 3, 9)
        Checker(spaces.Discrete(2)).reward(3.4e38, 3, 9)


class TestBounds:
    """Training accepts observations outside of the bounds, and warns once."""

    @pytest.mark.parametrize(
        ("space", "inside", "outside"),
        [
            (spaces.Box(-1, 1, (2,)), [1, -1], [0, 1.5]),
            (spaces.Box(-1, 1, (2,)), np.array([1 + 1e-9, 0]), np.array([-1.001, 0])),
            (spaces.Box(-np.inf, 1, (2,)), [-1e9, 1], [0, 2]),
            (spaces.Box(0, 100, (2,), np.uint8), np.uint8([0, 100]), np.uint8([0, 101])),
            (spaces.MultiDiscrete([2, 3]), np.array([1, 2]), np.array([1, 3])),
            (spaces.MultiBinary(2), np.array([0, 1], np.int8), np.array([0, 2], np.int8)),
            (spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(0, 1, (1,))), {"a": 1, "b": [1.0]}, {"a": 1, "b": [2.0]}),
        ],
    )
    def test_observation_outside_of_the_bounds_warns_once(self, space: Any, inside: Any, outside: Any) -> None:
        checker = Checker(space, warn_outside=True)
        checker.observation(inside, 0, 1)
        with pytest.warns(RuntimeWarning, match=r"^observation .*3 at step 9 .*bounds") as caught:
            for _ in range(3):
                checker.observation(outside, 3, 9)
        assert len(caught) == 1
        Checker(space).observation(outside, 3, 9)

    def test_late_observations_are_sampled(self) -> None:
        checker = Checker(spaces.Box(-1, 1, (2,)), warn_outside=True)
        for step in range(2000):
            checker.observation(np.zeros(2, np.float32), 0, step)
        with pytest.warns(RuntimeWarning, match="bounds") as caught:
            for step in range(100):
                checker.observation(np.full(2, 3, np.float32), 0, step)
        assert len(caught) == 1

    @pytest.mark.parametrize("kind", [ScalarLanes, VectorLanes])
    def test_lanes_warn_once(self, kind: Any) -> None:
        def factory() -> CountingEnv:
            env = CountingEnv()
            env.observation_space = spaces.Box(0, 1, (2,))
            return env

        if kind is ScalarLanes:
            lanes: Any = ScalarLanes(resolve(factory), 2, Generators(0))
        else:
            lanes = VectorLanes(resolve(TogetherVectorEnv([factory] * 2)), Generators(0))
        for lane in range(2):
            lanes.reset(lane, lane, 0)
        with pytest.warns(RuntimeWarning, match="bounds") as caught:
            for step in range(1, 3):
                lanes.begin_round(np.zeros(2, np.int64))
                while lanes.actions is not None:
                    lanes.tick(step)
        assert len(caught) == 1


@pytest.mark.parametrize("end", ["False", None, b"", np.str_(""), float("nan"), {}, np.ones(2, bool)])
def test_end_that_is_no_bool_raises_on_each_path(end: Any) -> None:
    """Their truth says nothing: "False" would end each episode."""

    class Classic(Gym021Env):
        def step(self, action: Any) -> Any:
            observation, reward, _, info = super().step(action)
            return observation, reward, end, info

    class Parallel(LeavingTeam):
        def step(self, actions: Any) -> Any:
            observations, rewards, _, *others = super().step(actions)
            return observations, rewards, dict.fromkeys(observations, end), *others

    class Listed(ListTeam):
        def step(self, actions: Any) -> Any:
            observations, rewards, _, *others = super().step(list(actions))
            return observations, rewards, [end] * len(rewards), *others

    message = r"must be (a bool|\d bools), got"
    for env in (ClassicEnv(Classic()), ParallelEnv(Parallel()), ListEnv(Listed())):
        env.reset(seed=1)
        with pytest.raises(InvalidStepError, match=message):
            env.step(env.action_space.sample())
    for ends in ([end, False], np.array([end, end])) if np.ndim(end) == 0 else ():
        with pytest.raises(InvalidStepError, match=rf"^terminations {message}"):
            check_step("NextStep", np.zeros(2, bool), np.ones(2), ends, np.zeros(2, bool), {})
        with pytest.raises(InvalidStepError, match=rf"^truncations {message}"):
            check_step("NextStep", np.zeros(2, bool), np.ones(2), np.zeros(2, bool), ends, {})
    with pytest.raises(InvalidStepError, match=rf"^truncated {message}"):
        Checker(spaces.Discrete(2)).step((0, 1.0, False, end, {}), 0, 1)

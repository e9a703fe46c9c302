"""Spaces of classic gym, spaces that an algorithm does not support, and descriptions of environments in files."""

from __future__ import annotations

import sys
from collections import OrderedDict

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from noterl.envs import EnvSource, check_spaces, from_description, resolve
from noterl.envs.observation import ObservationEncoder
from noterl.envs.spaces import convert
from tests.support import doubles
from tests.support.doubles import CountingEnv, Gym021Env
from tests.support.encoding import through_json

pytestmark = pytest.mark.backend_free

CARTPOLE = "CartPole-v1"


def layer_names(env) -> list[str]:
    names = []
    while env is not None:
        names.append(type(env).__name__)
        env = vars(env).get("env")
    return names


class TestSpaces:
    def test_nested_classic_spaces_are_converted(self):
        parts = OrderedDict(z=doubles.Box(0, 1, (2,)), a=doubles.Discrete(3))
        classic = type("Dict", (), {})()
        classic.spaces = parts
        converted = convert(classic, "observation_space")
        assert list(converted.spaces.items()) == [("z", spaces.Box(0, 1, (2,))), ("a", spaces.Discrete(3))]
        binary = type("MultiBinary", (), {"n": 4})()
        several = type("MultiDiscrete", (), {"nvec": np.array([2, 3])})()
        both = type("Tuple", (), {"spaces": (binary, several)})()
        assert convert(both, "x") == spaces.Tuple([spaces.MultiBinary(4), spaces.MultiDiscrete([2, 3])])

    def test_broken_classic_space_is_named(self):
        with pytest.raises(ValueError, match=r"^env: action_space .*cannot be read"):
            convert(type("Discrete", (), {})(), "action_space")

    def test_check_spaces_names_the_space(self):
        box, discrete = spaces.Box(-1, 1, (2,)), spaces.Discrete(3)
        check_spaces("DQN", box, discrete)
        check_spaces("SAC", box, box, actions=("Box",), bounded_actions=True)
        with pytest.raises(ValueError, match=r"^env: DQN .*got Box.*; use SAC$"):
            check_spaces("DQN", box, box, hint="use SAC")
        with pytest.raises(ValueError, match=r"^env: DQN .*; use PPO, SAC or TD3$"):
            check_spaces("DQN", box, box)
        with pytest.raises(ValueError, match=r"observation space, got Discrete\(3\)$"):
            check_spaces("DQN", discrete, discrete, observations=("Box", "Dict"))
        with pytest.raises(ValueError, match="takes actions with finite bounds"):
            check_spaces("SAC", box, spaces.Box(-1, np.inf, (1,)), actions=("Box",), bounded_actions=True)


class TestDescription:
    def rebuilt(self, env) -> EnvSource:
        return from_description(through_json(resolve(env).describe()))

    def test_description_keeps_arguments_and_limit(self):
        env = gymnasium.make("FrozenLake-v1", is_slippery=False, max_episode_steps=11)
        source = self.rebuilt(env)
        made = source.make(0)
        assert made.spec.max_episode_steps == 11
        assert made.spec.kwargs["is_slippery"] is False
        assert source.make_evaluation().spec.id == "FrozenLake-v1"
        assert source.describe() == resolve(env).describe()

    def test_description_keeps_a_removed_limit(self):
        source = self.rebuilt(gymnasium.make(CARTPOLE, max_episode_steps=-1))
        assert "TimeLimit" not in layer_names(source.make(0))

    def test_render_mode_is_not_part_of_the_task(self):
        assert resolve(gymnasium.make(CARTPOLE, render_mode="rgb_array")).describe()["kwargs"] == {}

    @pytest.mark.parametrize(
        "env",
        [
            CountingEnv(),
            Gym021Env(),
            gymnasium.wrappers.FlattenObservation(gymnasium.make(CARTPOLE)),
            gymnasium.make("FrozenLake-v1", desc=np.array([list("SF"), list("FG")])),
            (spaces.Box(0, 1, (2,)), spaces.Discrete(2)),
        ],
        ids=["no spec", "classic", "wrapped", "not JSON", "spaces"],
    )
    def test_description_without_id_has_only_the_spaces(self, env):
        source = self.rebuilt(env)
        assert source.observation_space == resolve(env).observation_space
        assert source.action_space == resolve(env).action_space
        with pytest.raises(ValueError, match=r"only the spaces .*pass env="):
            source.make(0)

    def test_spaces_of_subclasses_are_described_by_their_base_classes(self):
        box = type("MyBox", (spaces.Box,), {})(-1, 1, (2,))
        number = type("MyDiscrete", (spaces.Discrete,), {})(3)
        nested = type("MyDict", (spaces.Dict,), {})({"a": box, "b": spaces.Tuple([number])})
        described = through_json(resolve((nested, number)).describe())
        assert described["observation_space"] == spaces.Dict(
            {"a": spaces.Box(-1, 1, (2,)), "b": spaces.Tuple([spaces.Discrete(3)])}
        )
        assert type(described["action_space"]) is spaces.Discrete

    def test_unknown_id_leaves_the_spaces(self):
        described = {**resolve(CARTPOLE).describe(), "id": "NotHere-v3"}
        source = from_description(described)
        assert source.action_space == spaces.Discrete(2)
        with pytest.raises(ValueError, match="NotHere-v3 is not registered here"):
            source.make_evaluation()

    def test_id_with_a_module_raises(self):
        described = {**resolve(CARTPOLE).describe(), "id": "antigravity:CartPole-v1"}
        with pytest.raises(ValueError, match="would import a module"):
            from_description(described)
        assert "antigravity" not in sys.modules

    @pytest.mark.parametrize("changed", [{"id": 3}, {"kwargs": [1]}, {"max_episode_steps": "x"}, {"action_space": 3}])
    def test_malformed_description_raises(self, changed):
        with pytest.raises(ValueError, match="description"):
            from_description({**resolve(CARTPOLE).describe(), **changed})

    @pytest.mark.parametrize(
        "kwargs",
        [
            *({name: 1} for name in ("id", "render_mode", "entry_point", "additional_wrappers", "max_episode_steps")),
            *({name: 1} for name in ("env_id", "disable_env_checker", "no_such_argument", "self", "")),
            {1: 2},
        ],
        ids=str,
    )
    def test_keyword_that_the_environment_does_not_take_raises(self, kwargs):
        described = resolve(CARTPOLE).describe()
        from_description({**described, "kwargs": {"sutton_barto_reward": True}}).make(0)
        with pytest.raises(ValueError, match="description: kwargs"):
            from_description({**described, "kwargs": kwargs})

    def test_keywords_of_an_environment_whose_package_is_missing_are_kept(self, monkeypatch):
        spec = gymnasium.envs.registration.EnvSpec("Missing-v0", entry_point="no_such_module:Env")
        monkeypatch.setitem(gymnasium.registry, spec.id, spec)
        described = {**resolve(CARTPOLE).describe(), "id": spec.id, "kwargs": {"size": 3}}
        assert from_description(described).action_space == spaces.Discrete(2)

    def test_description_must_be_a_dict(self):
        with pytest.raises(ValueError, match="description must be a dict, got 3"):
            from_description(3)

    def test_environment_with_other_spaces_than_the_description_raises(self):
        described = {**resolve(CARTPOLE).describe(), "action_space": spaces.Discrete(5)}
        with pytest.raises(ValueError, match="other spaces"):
            from_description(described).make(0)


def test_error_of_a_tuple_names_the_wrapper():
    parts = spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)])
    with pytest.raises(ValueError, match=r"FlattenObservation\(env\)$"):
        check_spaces("DQN", parts, spaces.Discrete(2))
    with pytest.raises(ValueError, match=r"gymnasium\.wrappers\.TransformAction"):
        check_spaces("DQN", spaces.Box(0, 1, (1,)), parts)
    with pytest.raises(ValueError, match=r"FlattenObservation"):
        ObservationEncoder(spaces.Dict({"parts": parts}))

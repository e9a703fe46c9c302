"""Environments and their arguments on the command line."""

from __future__ import annotations

import pickle

import pytest

from noterl.cli.environment import environment_of
from noterl.cli.errors import UsageError
from noterl.envs import BitFlip

pytestmark = pytest.mark.backend_free


def test_id_without_arguments_stays_a_string() -> None:
    assert environment_of("CartPole-v1") == "CartPole-v1"
    assert environment_of("gymnasium.envs.toy_text:CliffWalking-v1") == "gymnasium.envs.toy_text:CliffWalking-v1"


def test_keywords_reach_the_environment() -> None:
    env = environment_of("FrozenLake-v1(is_slippery=False, map_name='8x8')")()
    assert env.spec.kwargs["is_slippery"] is False and env.observation_space.n == 64


def test_function_of_a_module_is_called() -> None:
    env = environment_of("noterl.envs:BitFlip(5)")()
    assert isinstance(env, BitFlip) and env.action_space.n == 5


def test_factory_makes_the_same_environment_in_another_process() -> None:
    factory = environment_of("Pendulum-v1(g=5.0)")
    env = pickle.loads(pickle.dumps(factory))(render_mode="rgb_array")
    assert env.render_mode == "rgb_array" and env.unwrapped.g == 5.0
    assert factory.options == {"env": "Pendulum-v1(g=5.0)"}


def test_atari_games_have_a_prefix() -> None:
    assert environment_of("atari:Pong") == "atari:Pong"  # read later, when the extra is needed
    with pytest.raises(UsageError, match="keywords"):
        environment_of("atari:Pong(3)")
    with pytest.raises(UsageError, match="stak"):
        environment_of("atari:Pong(stak=3)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FrozenLake-v1(3)", "keywords"),
        ("FrozenLake-v1(x=y())", "literals"),
        ("CartPoll-v1(x=1)", "CartPole"),
    ],
)
def test_wrong_text_raises(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        factory = environment_of(text)
        assert not isinstance(factory, str)
        factory()


def test_usage_errors_are_value_errors() -> None:
    assert issubclass(UsageError, ValueError)

"""The typed dicts of options, which constructors name for editors, and the signatures, which the command line reads."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

import noterl
from noterl.agent import AgentOptions
from noterl.agents.actor_critic import ActorCritic, ActorCriticOptions

pytestmark = pytest.mark.backends("torch")

AGENTS = [noterl.A2C, noterl.ACER, noterl.AlphaZero, noterl.DDPG, noterl.DQN, noterl.MADDPG, noterl.PPO, noterl.SAC]
AGENTS += [noterl.TD3, noterl.TRPO, noterl.QRDQN, noterl.C51, noterl.IQN, noterl.TQC, noterl.PQN, noterl.Rainbow]
AGENTS += [noterl.TD3BC, noterl.ReBRAC, noterl.IQL, noterl.CQL, noterl.CrossQ]


def arguments(cls: type) -> dict[str, inspect.Parameter]:
    return {name: each for name, each in inspect.signature(cls).parameters.items() if name != "env"}


@pytest.mark.parametrize(("cls", "options"), [(noterl.Agent, AgentOptions), (ActorCritic, ActorCriticOptions)])
def test_options_are_the_arguments_of_the_class_with_their_types(cls: type, options: type) -> None:
    assert set(options.__annotations__) == set(arguments(cls))
    hints = get_type_hints(options)
    for name, parameter in arguments(cls).items():
        assert hints[name] == eval(parameter.annotation, {**vars(inspect.getmodule(cls))}), name


@pytest.mark.parametrize("cls", AGENTS)
def test_signature_of_a_constructor_is_complete(cls: type) -> None:
    kinds = {each.kind for each in arguments(cls).values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}
    assert {"seed", "normalize_observation", "normalize_reward", "network", "gamma"} <= set(arguments(cls))

"""Agents whose networks have a memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import pytest

import noterl
from noterl import envs, networks
from tests.support.doubles import ImageEnv
from tests.support.masked_env import MaskedWalk
from tests.support.parts import actor_of
from tests.support.states import assert_same_state

SMALL: dict[str, Any] = {"recurrent_units": 8, "hidden": (8,), "rollout_steps": 8, "seed": 1}


class Forgets(keras.layers.Layer):
    """A cell whose output is its input."""

    state_spec: ClassVar[dict[str, tuple[int, ...]]] = {"nothing": (1,)}

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.built = True

    def call(self, inputs: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return 1.0 * inputs, state


def on_pendulum(seed: int, recurrent: Any = None) -> noterl.PPO:
    agent = noterl.PPO(
        "Pendulum-v1", hidden=(8,), rollout_steps=12, epochs=2, recurrent=recurrent, value_clip=0.2, seed=seed
    )
    agent.compile(batch_size="rollout")
    return agent


def a2c(seed: int, recurrent: Any = None) -> noterl.A2C:
    agent = noterl.A2C("CartPole-v1", hidden=(8,), rollout_steps=12, recurrent=recurrent, seed=seed)
    agent.compile()
    return agent


@pytest.mark.parametrize("build", [on_pendulum, a2c])
def test_agent_with_a_cell_that_forgets_equals_the_memoryless_one(build: Any) -> None:
    usual, recurrent = build(3), build(3, Forgets)
    for agent in (usual, recurrent):
        agent.fit(steps=72, num_envs=3, verbose=0)
    assert recurrent.updates == usual.updates > 0
    for name in ("actor", "critic"):
        for weight, other in zip(
            networks.variables(getattr(recurrent, name)), networks.variables(getattr(usual, name)), strict=True
        ):
            np.testing.assert_allclose(host(weight), host(other), rtol=2e-4, atol=2e-5)


def host(variable: Any) -> np.ndarray:
    return noterl.backends.current().fetch(variable)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_acting_in_numpy_is_acting_by_the_network(kind: str) -> None:
    agent = noterl.PPO(envs.hide("CartPole-v1", [1, 3]), recurrent=kind, **SMALL)
    agent.compile(batch_size=16)
    agent.fit(steps=48, num_envs=2, verbose=0)
    forward, rng = actor_of(agent).forward, np.random.default_rng(0)
    assert forward.in_numpy
    forward.stale = True
    state = {name: rng.normal(size=(3, 8)).astype(np.float32) for name in agent.state_spec}
    observations = rng.normal(size=(3, 4)).astype(np.float32)
    output, after = forward.with_state(observations, state)
    expected, expected_after = forward.compiled((observations, state))
    np.testing.assert_allclose(output, expected, atol=1e-5)
    for name, value in expected_after.items():
        np.testing.assert_allclose(after[name], value, atol=1e-5)


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Box actions": ("Pendulum-v1", {}),
    "masks": (MaskedWalk, {}),
    "Dict": (lambda: envs.PreviousStep(envs.hide("CartPole-v1", [1])), {}),
    "shared": ("CartPole-v1", {"shared": True}),
    "two optimizers": ("CartPole-v1", {"optimizers": 2}),
    "normalized": ("CartPole-v1", {"normalize_observation": True, "normalize_reward": True}),
    "whole rollouts": ("CartPole-v1", {"sequence_length": 8}),
    "images": (lambda: ImageEnv((36, 36, 1)), {}),
    "own cell": ("CartPole-v1", {"recurrent": networks.recurrent("gru", 4)}),
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", KINDS)
def test_agent_learns_on_every_kind_of_environment(tmp_path: Path, kind: str) -> None:
    env, options = KINDS[kind]
    agents = []
    for _ in range(2):
        agent = noterl.PPO(env, **{"recurrent": "lstm", "epochs": 2, **SMALL, **options})
        agent.compile(batch_size=16)
        agents.append(agent)
    whole, agent = agents
    before = [host(weight) for weight in networks.variables(agent.actor)]
    whole.fit(steps=52, num_envs=2, verbose=0)
    agent.fit(steps=26, num_envs=2, verbose=0)
    agent.save(tmp_path / "agent.noterl")
    agent.restore(tmp_path / "agent.noterl")
    agent.fit(steps=26, num_envs=2, verbose=0)
    assert_same_state(agent, whole)
    assert any((host(w) != old).any() for w, old in zip(networks.variables(agent.actor), before, strict=True))
    assert agent.evaluate(episodes=1)["lengths"][0] > 0


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recurrent": "rnn"}, "recurrent must be 'gru', 'lstm' or a function"),
        ({"recurrent": 3}, "recurrent must be 'gru', 'lstm' or a function"),
        ({"recurrent": lambda inputs: None}, "recurrent: the function must return a cell"),
        ({"recurrent": "gru", "recurrent_units": 0}, "recurrent_units must be a positive int"),
        ({"sequence_length": 4}, "sequence_length must be left out without recurrent"),
        ({"recurrent": "gru", "network": networks.mlp(4, [], 2)}, "network must be None with recurrent"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        noterl.PPO("CartPole-v1", **options)

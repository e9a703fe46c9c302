"""One seed names every generator, and nobody else's generator is touched."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest

import noterl
from noterl import networks
from noterl.backends import current
from noterl.random import Generators, construction, network_generator
from tests.support.states import assert_same_state, differences, one_lane


def draw(generators: Generators, name: str) -> list[int]:
    return generators(name).integers(2**62, size=4).tolist()


def test_a_generator_depends_on_seed_and_name_alone() -> None:
    first, second = Generators(7), Generators(7)
    wanted = {name: draw(first, name) for name in ("exploration", "sampler", "environment/0", "environment/1")}
    assert {name: draw(second, name) for name in reversed(wanted)} == wanted
    assert len({tuple(drawn) for drawn in wanted.values()}) == len(wanted), "two names share their numbers"
    assert draw(Generators(8), "sampler") != wanted["sampler"]
    assert first("sampler") is first("sampler")


def test_values_are_those_of_other_releases() -> None:
    # Whoever changes these changes every run of every user.
    expected = [270078886389795477, 2062605945179061412, 2645126220004488650, 4367794894164410551]
    assert draw(Generators(7), "exploration") == expected


def test_without_a_seed_every_run_has_its_own() -> None:
    first, second = Generators(), Generators(None)
    assert first.seed != second.seed and 0 <= first.seed < 2**63
    assert draw(Generators(first.seed), "sampler") == draw(first, "sampler")


@pytest.mark.parametrize("seed", [-1, 1.0, "7", True, np.float64(3), [1]])
def test_what_is_no_seed_is_refused_by_name(seed: Any) -> None:
    generators = Generators(3)
    with pytest.raises(ValueError, match=r"seed must be a non-negative int or None, got "):
        Generators(seed)
    with pytest.raises(ValueError, match="seed must be"):
        generators.reseed(seed)
    assert draw(generators, "a") == draw(Generators(3), "a")


def test_seeds_may_be_large_and_of_numpy() -> None:
    assert draw(Generators(2**100), "a") != draw(Generators(2**100 + 1), "a")
    assert draw(Generators(np.uint8(200)), "a") == draw(Generators(200), "a")
    assert type(Generators(np.int64(3)).seed) is int


def test_reseeding_starts_every_generator_afresh() -> None:
    generators = Generators(1)
    draw(generators, "a")
    generators.reseed(2)
    assert draw(generators, "a") == draw(Generators(2), "a")


def test_a_state_is_taken_by_the_objects_that_were_handed_out() -> None:
    generators = Generators(1)
    draw(generators, "a")
    state = generators.get_state()
    expected = [draw(generators, name) for name in ("a", "b")]
    other = Generators(5)
    held = other("a"), other("b")
    draw(other, "b")
    other.set_state(state)
    assert (other("a"), other("b")) == held and other.seed == 1
    # "b" had not been asked for when the state was taken: it starts out as it would have there.
    assert [draw(other, name) for name in ("a", "b")] == expected


MALFORMED: list[Any] = [
    None,
    {},
    {"seed": 3},
    {"seed": None, "states": {}},
    {"seed": -3, "states": {}},
    {"seed": 3, "states": [1]},
    {"seed": 3, "states": {"a": None}},
    {"seed": 3, "states": {"a": np.random.MT19937(0).state}},
    {"seed": 3, "states": {"a": {**np.random.PCG64(0).state, "state": {"state": 2**200, "inc": 1}}}},
    {"seed": 3, "states": {"b": np.random.PCG64(0).state, "a": {"bit_generator": "PCG64"}}},
]


@pytest.mark.parametrize("state", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_state_changes_nothing(state: Any) -> None:
    generators = Generators(1)
    draw(generators, "a")
    before = generators.get_state()
    with pytest.raises(ValueError, match="state of the generators is malformed"):
        generators.set_state(state)
    assert not differences(before, generators.get_state())


def global_states() -> list[Any]:
    states = [random.getstate(), np.random.get_state()[1].tolist()]  # noqa: NPY002 (it is the one that must not be touched)
    if "torch" in sys.modules:
        import torch

        states.append(torch.random.get_rng_state().tolist())
    return states


def layers() -> Any:
    """Return a network of Keras layers, which draw from Keras's own seeds."""
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(6), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    )


@noterl.register
class LayersAgent(noterl.DQN):
    """An agent that builds its network of Keras layers, with dropout."""

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, network=layers(), seed=seed)


def test_nobody_elses_generator_is_touched() -> None:
    before = global_states()
    agent = one_lane()
    agent.fit(steps=40, num_envs=2, verbose=0)
    agent.evaluate(episodes=1)
    agent.get_state()
    LayersAgent("CartPole-v1", seed=1)
    assert agent.updates > 0
    assert global_states() == before


def test_an_agent_that_fails_to_be_built_leaves_the_generators_too() -> None:
    before = global_states()
    with pytest.raises(ValueError, match="gamma"):
        noterl.DQN("CartPole-v1", hidden=(4,), gamma=2.0)
    assert global_states() == before


def test_layers_of_the_user_come_from_the_seed() -> None:
    weights = []
    for seed in (1, 1, 2):
        random.random()  # what was drawn before must not matter
        agent = LayersAgent("CartPole-v1", seed=seed)
        weights.append(agent.get_state()["variables"]["q"])
    assert not differences(weights[0], weights[1])
    assert differences(weights[0], weights[2])


def test_a_seed_of_fit_is_the_seed_of_layers_too() -> None:
    states = []
    for seed, afresh in ((1, 7), (2, 7), (1, 8)):
        agent = LayersAgent("CartPole-v1", seed=seed)
        agent.fit(steps=1, seed=afresh, verbose=0)
        found = [one for one in networks.variables(agent.q) if one.path.endswith("seed_generator_state")]
        states.append([current().fetch(one).tolist() for one in found])
    assert states[0] == states[1] != states[2] and len(states[0]) == 1


@pytest.mark.backends("torch")
def test_modules_of_the_user_come_from_the_seed() -> None:
    from torch import nn

    weights = []
    for seed in (1, 1, 2):
        with construction(seed):
            module = nn.Linear(4, 2)
        weights.append(module.weight.detach().numpy())
    assert np.array_equal(weights[0], weights[1]) and not np.array_equal(weights[0], weights[2])


def test_default_networks_are_drawn_from_the_generator_of_the_agent() -> None:
    first, second, third = (noterl.DQN("CartPole-v1", hidden=(4,), seed=seed) for seed in (1, 1, 2))
    states = [agent.get_state()["variables"] for agent in (first, second, third)]
    assert not differences(states[0], states[1])
    assert differences(states[0], states[2])
    assert network_generator() is not network_generator(), "outside of an agent it is a fresh one"


def test_without_a_seed_agents_differ() -> None:
    first, second = (noterl.DQN("CartPole-v1", hidden=(4,)) for _ in range(2))
    assert first.generators.seed != second.generators.seed
    assert differences(first.get_state()["variables"], second.get_state()["variables"])
    for agent in (first, second):
        agent.fit(steps=20, verbose=0)
    observations = [agent.get_state()["replay"]["columns"]["observation"][0] for agent in (first, second)]
    assert not np.array_equal(*observations)


def test_the_seed_that_was_drawn_names_the_run() -> None:
    first = noterl.DQN("CartPole-v1", hidden=(4,))
    first.fit(steps=20, verbose=0)
    second = noterl.DQN("CartPole-v1", hidden=(4,), seed=first.generators.seed)
    second.fit(steps=20, verbose=0)
    assert_same_state(first, second)


def test_watching_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    silent, watched = one_lane(), one_lane()
    silent.fit(steps=60, verbose=0)
    watched.fit(steps=30, verbose=2, log_every=1)
    watched.evaluate(episodes=2)
    watched.evaluate(episodes=2, deterministic=False, seed=4)
    watched.act(np.zeros(4, np.float32))
    watched.act(np.zeros(4, np.float32), deterministic=False)
    watched.summary()
    watched.fit(steps=30, verbose=1)
    assert_same_state(silent, watched)


def test_evaluation_has_seeds_of_its_own() -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=5)
    first = agent.evaluate(episodes=4)
    assert np.array_equal(first["returns"], agent.evaluate(episodes=4, num_envs=3)["returns"])
    explored = [agent.evaluate(episodes=4, deterministic=False, seed=seed)["returns"] for seed in (1, 1, 2)]
    assert np.array_equal(explored[0], explored[1]) and not np.array_equal(explored[0], explored[2])


def test_importing_draws_nothing_and_seeds_nothing() -> None:
    script = """
import random, numpy
states = lambda: (random.getstate(), numpy.random.get_state()[1].tolist())
before = states()
import noterl, noterl.random
assert states() == before
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)

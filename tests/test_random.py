"""One seed determines every generator of an agent, and global generators are not changed."""

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


def sample(generators: Generators, name: str) -> list[int]:
    return generators(name).integers(2**62, size=4).tolist()


def test_generator_depends_only_on_seed_and_name() -> None:
    first, second = Generators(7), Generators(7)
    wanted = {name: sample(first, name) for name in ("exploration", "sampler", "environment/0", "environment/1")}
    assert {name: sample(second, name) for name in reversed(wanted)} == wanted
    assert len({tuple(numbers) for numbers in wanted.values()}) == len(wanted), "two names have the same numbers"
    assert sample(Generators(8), "sampler") != wanted["sampler"]
    assert first("sampler") is first("sampler")


def test_random_numbers_do_not_change_between_releases() -> None:
    # A change of these numbers changes every run of every user.
    expected = [270078886389795477, 2062605945179061412, 2645126220004488650, 4367794894164410551]
    assert sample(Generators(7), "exploration") == expected


def test_without_a_seed_each_object_has_its_own() -> None:
    first, second = Generators(), Generators(None)
    assert first.seed != second.seed and 0 <= first.seed < 2**63
    assert sample(Generators(first.seed), "sampler") == sample(first, "sampler")


@pytest.mark.parametrize("seed", [-1, 1.0, "7", True, np.float64(3), [1]])
def test_invalid_seed_raises(seed: Any) -> None:
    generators = Generators(3)
    with pytest.raises(ValueError, match="seed must be"):
        Generators(seed)
    with pytest.raises(ValueError, match="seed must be"):
        generators.reseed(seed)
    assert sample(generators, "a") == sample(Generators(3), "a")


def test_large_and_numpy_seeds_are_accepted() -> None:
    assert sample(Generators(2**100), "a") != sample(Generators(2**100 + 1), "a")
    assert sample(Generators(np.uint8(200)), "a") == sample(Generators(200), "a")
    assert type(Generators(np.int64(3)).seed) is int


def test_reseed_restarts_every_generator() -> None:
    generators = Generators(1)
    sample(generators, "a")
    generators.reseed(2)
    assert sample(generators, "a") == sample(Generators(2), "a")


def test_set_state_keeps_the_generator_objects() -> None:
    generators = Generators(1)
    sample(generators, "a")
    state = generators.get_state()
    expected = [sample(generators, name) for name in ("a", "b")]
    other = Generators(5)
    held = other("a"), other("b")
    sample(other, "b")
    other.set_state(state)
    assert (other("a"), other("b")) == held and other.seed == 1
    # "b" did not exist when the state was saved, so it starts from the beginning.
    assert [sample(other, name) for name in ("a", "b")] == expected


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
def test_malformed_state_changes_nothing(state: Any) -> None:
    generators = Generators(1)
    sample(generators, "a")
    before = generators.get_state()
    with pytest.raises(ValueError, match="state of the generators is malformed"):
        generators.set_state(state)
    assert not differences(before, generators.get_state())


def global_states() -> list[Any]:
    states = [random.getstate(), np.random.get_state()[1].tolist()]  # noqa: NPY002 (the generator that must not change)
    if "torch" in sys.modules:
        import torch

        states.append(torch.random.get_rng_state().tolist())
    return states


def layers() -> Any:
    """Return a network of Keras layers, whose default seeds are Keras's."""
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(6), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    )


@noterl.register
class LayersAgent(noterl.DQN):
    """An agent with a network of Keras layers and dropout."""

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, network=layers(), seed=seed)


@pytest.mark.backends("torch")
def test_agent_does_not_change_global_generators() -> None:
    before = global_states()
    agent = one_lane()
    agent.fit(steps=40, num_envs=2, verbose=0)
    agent.evaluate(episodes=1)
    agent.get_state()
    LayersAgent("CartPole-v1", seed=1)
    assert agent.updates > 0
    assert global_states() == before


def test_failed_construction_restores_global_generators() -> None:
    before = global_states()
    with pytest.raises(ValueError, match="gamma"):
        noterl.DQN("CartPole-v1", hidden=(4,), gamma=2.0)
    assert global_states() == before


def test_weights_of_user_layers_depend_on_the_seed() -> None:
    weights = []
    for seed in (1, 1, 2):
        random.random()  # numbers that were generated before must not matter
        agent = LayersAgent("CartPole-v1", seed=seed)
        weights.append(agent.get_state()["variables"]["q"])
    assert not differences(weights[0], weights[1])
    assert differences(weights[0], weights[2])


def test_default_seed_of_a_subclass_seeds_layers() -> None:
    class Seeded(noterl.DQN):
        def __init__(self, env: Any, *, seed: int | None = 7) -> None:
            super().__init__(env, hidden=(4,), seed=seed)

    agents = [Seeded("CartPole-v1"), Seeded("CartPole-v1"), Seeded("CartPole-v1", seed=np.int64(7))]
    states = [agent.get_state()["variables"]["q"] for agent in agents]
    assert not differences(states[0], states[1]) and not differences(states[0], states[2])


def test_seed_of_fit_seeds_layers() -> None:
    states = []
    for seed, fit_seed in ((1, 7), (2, 7), (1, 8)):
        agent = LayersAgent("CartPole-v1", seed=seed)
        agent.fit(steps=1, seed=fit_seed, verbose=0)
        found = [one for one in networks.variables(agent.q) if one.path.endswith("seed_generator_state")]
        states.append([current().fetch(one).tolist() for one in found])
    assert states[0] == states[1] != states[2] and len(states[0]) == 1


@pytest.mark.backends("torch")
def test_weights_of_user_modules_depend_on_the_seed() -> None:
    from torch import nn

    weights = []
    for seed in (1, 1, 2):
        with construction(seed):
            module = nn.Linear(4, 2)
        weights.append(module.weight.detach().numpy())
    assert np.array_equal(weights[0], weights[1]) and not np.array_equal(weights[0], weights[2])


def test_weights_of_default_networks_depend_on_the_seed() -> None:
    first, second, third = (noterl.DQN("CartPole-v1", hidden=(4,), seed=seed) for seed in (1, 1, 2))
    states = [agent.get_state()["variables"] for agent in (first, second, third)]
    assert not differences(states[0], states[1])
    assert differences(states[0], states[2])
    assert network_generator() is not network_generator(), "outside of an agent it is a new one"


def test_without_a_seed_agents_differ() -> None:
    first, second = (noterl.DQN("CartPole-v1", hidden=(4,)) for _ in range(2))
    assert first.generators.seed != second.generators.seed
    assert differences(first.get_state()["variables"], second.get_state()["variables"])
    for agent in (first, second):
        agent.fit(steps=20, verbose=0)
    observations = [agent.get_state()["replay"]["columns"]["observation"][0] for agent in (first, second)]
    assert not np.array_equal(*observations)


def test_run_can_be_repeated_with_its_random_seed() -> None:
    first = noterl.DQN("CartPole-v1", hidden=(4,))
    first.fit(steps=20, verbose=0)
    second = noterl.DQN("CartPole-v1", hidden=(4,), seed=first.generators.seed)
    second.fit(steps=20, verbose=0)
    assert_same_state(first, second)


@pytest.mark.backends("torch")
def test_observing_does_not_change_training(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_evaluation_uses_its_own_seeds() -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=5)
    first = agent.evaluate(episodes=4)
    assert np.array_equal(first["returns"], agent.evaluate(episodes=4, num_envs=3)["returns"])
    explored = [agent.evaluate(episodes=4, deterministic=False, seed=seed)["returns"] for seed in (1, 1, 2)]
    assert np.array_equal(explored[0], explored[1]) and not np.array_equal(explored[0], explored[2])


def test_import_does_not_change_global_generators() -> None:
    script = """
import random, numpy
states = lambda: (random.getstate(), numpy.random.get_state()[1].tolist())
before = states()
import noterl, noterl.random
assert states() == before
"""
    subprocess.run([sys.executable, "-c", script], check=True)

"""SimBa's layers equal their formula, for every agent on vectors."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import noterl
from noterl import networks
from noterl.backends import current
from noterl.learning.update import add_random_numbers
from tests.support.batches import CONTINUOUS, VECTOR, random_batch
from tests.support.parts import actor_of, learner_of, run_updates, sample_batch

torch_only = pytest.mark.backends("torch")


def normalized(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    return (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * gamma + beta


def reference(x: np.ndarray, weights: list[np.ndarray], blocks: int) -> np.ndarray:
    """Return Lee et al. (2025), section 4, in float64."""
    remaining = [np.array(weight, float) for weight in weights]

    def take(count: int) -> list[np.ndarray]:
        return [remaining.pop(0) for _ in range(count)]

    kernel, bias = take(2)
    x = x @ kernel + bias
    for _ in range(blocks):
        gamma, beta, first, first_bias, second, second_bias = take(6)
        assert first.shape[1] == 4 * first.shape[0]
        x = x + np.maximum(normalized(x, gamma, beta) @ first + first_bias, 0) @ second + second_bias
    gamma, beta, kernel, bias = take(4)
    assert not remaining
    return normalized(x, gamma, beta) @ kernel + bias


@pytest.mark.parametrize("blocks", [1, 2])
def test_network_equals_the_formula_and_acts_in_numpy(blocks: int) -> None:
    agent = noterl.DQN(VECTOR, network=networks.simba(width=6, blocks=blocks), seed=1)
    agent.build()
    rng = np.random.default_rng(0)
    weights = [weight + rng.normal(scale=0.3, size=weight.shape) for weight in networks.get_weights(agent.q)]
    networks.set_weights(agent.q, [weight.astype(np.float32) for weight in weights])
    weights, x = networks.get_weights(agent.q), rng.normal(size=(4, 5)).astype(np.float32)
    expected = reference(x, weights, blocks)
    result = current().fetch(agent.q(keras.ops.convert_to_tensor(x)))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    actor = actor_of(agent)
    actor.mark_stale()
    assert actor.forward.in_numpy
    np.testing.assert_allclose(actor.outputs(x)[0], expected, rtol=1e-4, atol=1e-5)


def test_copies_have_the_same_outputs() -> None:
    network = noterl.DQN(VECTOR, network=networks.simba(width=6), seed=1).q
    x = keras.ops.ones((2, 5))
    np.testing.assert_array_equal(*(current().fetch(each(x)) for each in (network, networks.clone(network))))


@torch_only
@pytest.mark.parametrize("name", ["PPO", "A2C", "TRPO", "SAC", "TD3", "DDPG", "TQC", "QRDQN"])
def test_agents_take_the_description(name: str, tmp_path: Any) -> None:
    env = VECTOR if name == "QRDQN" else CONTINUOUS
    agent = getattr(noterl, name)(env, network=networks.simba(width=6), seed=1)
    first = agent.q.parts["network"] if name == "QRDQN" else agent.actor
    assert any(type(module).__name__ == "Residual" for module in first)
    agent.save(tmp_path / "agent.noterl")
    loaded = noterl.load(tmp_path / "agent.noterl")
    for left, right in zip(agent.get_weights().values(), loaded.get_weights().values(), strict=True):
        np.testing.assert_array_equal(left, right)
    agent.export(tmp_path / "policy", "numpy")
    agent.export(tmp_path / "policy", "torch")


@torch_only
def test_a_pair_of_descriptions_is_for_actor_and_critics() -> None:
    agent = noterl.SAC(CONTINUOUS, network=(networks.simba(4), networks.simba(8, blocks=2)), critics=3, seed=1)
    assert networks.get_weights(agent.actor)[0].shape == (5, 4)
    assert [networks.get_weights(critic)[0].shape for critic in agent.critics] == [(7, 8)] * 3
    agent.compile(replay=noterl.Replay(64), batch_size=4)
    run_updates(agent, add_random_numbers(agent, random_batch(1, 6, CONTINUOUS), 1), 1)


@torch_only
def test_normalized_observations_reach_replayed_data() -> None:
    agent = noterl.SAC("Pendulum-v1", network=networks.simba(width=6), normalize_observation=True, seed=1)
    agent.compile(batch_size=8, learning_starts=30)
    agent.fit(steps=60, verbose=0)
    sample = learner_of(agent).sample(1)
    stored = agent.replay.gather(sample, gamma=0.99).observation
    statistics = agent.spaces.normalizers.observation
    batch = learner_of(agent).gather(sample)
    expected = (stored - statistics.mean) / np.sqrt(statistics.variance + 1e-8)
    np.testing.assert_allclose(batch.observation, expected, rtol=1e-3, atol=1e-3)
    assert np.abs(batch.observation - stored).max() > 0.1 and len(sample_batch(agent, 1).weight) == 1


@pytest.mark.parametrize(
    ("arguments", "message"), [({"width": 0}, "width .*got 0"), ({"blocks": 1.5}, r"blocks .*got 1\.5")]
)
@torch_only
def test_bad_argument_raises_with_its_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        networks.simba(**arguments)


@torch_only
def test_block_with_other_units_than_its_inputs_raises() -> None:
    layers = [{"layer": "dense", "units": 4}, {"layer": "residual", "units": 5}]
    with pytest.raises(ValueError, match=r"a residual block must have \(4,\) units"):
        noterl.DQN(VECTOR, network=networks.NetworkDescription({"layers": layers}))
    for layer in ({"layer": "residual"}, {"layer": "layer_norm", "units": 3}, {"layer": "residual", "units": 0}):
        with pytest.raises(ValueError, match="units"):
            networks.NetworkDescription({"layers": [layer]})

"""CrossQ and batch renormalization: they equal float64 references, in training and in inference mode."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import networks
from noterl.backends import current
from noterl.backends.renorm import WARM_UP
from noterl.learning.update import add_random_numbers
from noterl.networks.graph import Graph, add_network
from noterl.replay import Prioritized
from noterl.training.distribution import check_strategy
from tests.support import reference_values as reference
from tests.support.batches import CONTINUOUS, VECTOR, copied, differences, random_batch, row
from tests.support.parts import actor_of, run_updates
from tests.support.representatives import representatives

torch_only = pytest.mark.backends("torch")
RATE, SIZE = 0.05, 6
# A layer has five weights, of which the first two are trained: scale, offset, mean, variance and number of updates.
RENORM = 5
AFTER = float(WARM_UP + 1)


def make(**arguments: Any) -> Any:
    fixed = {"hidden": (4,), "critic_hidden": (4,), "gamma": 0.9, "temperature": 0.3, "policy_delay": 1, "seed": 5}
    agent = noterl.CrossQ(CONTINUOUS, **{**fixed, **arguments})
    replay = noterl.Replay(64, sampler=Prioritized())
    agent.compile(keras.optimizers.SGD(RATE), replay=replay, batch_size=4, learning_starts=0)
    agent.build()
    return agent


def randomize(network: Any, updates: float) -> None:
    """Give a network other scales, offsets and statistics."""
    rng = np.random.default_rng(3)
    weights = networks.get_weights(network)
    for place, weight in enumerate(weights):
        if weight.ndim == 1 and place % (RENORM + 2) < RENORM:
            is_positive = place % (RENORM + 2) in (0, 3)
            values = rng.uniform(0.2, 2.0, weight.shape) if is_positive else rng.normal(scale=0.5, size=weight.shape)
            weights[place] = values.astype(np.float32)
        elif weight.ndim == 0:
            weights[place] = np.float32(updates)
    networks.set_weights(network, weights)


class Stack:
    """A stack of dense layers with batch renormalization (Ioffe, 2017, algorithm 1), in float64."""

    def __init__(self, network: Any) -> None:
        self.weights = [np.array(weight, float) for weight in networks.get_weights(network)]
        self.constants: dict[int, Any] = {}  # r and d of the layers, through which no gradient flows

    @property
    def trained(self) -> list[np.ndarray]:
        return [weight for place, weight in enumerate(self.weights) if place % (RENORM + 2) not in (2, 3, 4)]

    def __call__(self, x: np.ndarray, training: bool, update: bool = False) -> np.ndarray:
        for place in range(0, len(self.weights), RENORM + 2):
            gamma, beta, mean, variance, updates, kernel, bias = self.weights[place : place + RENORM + 2]
            x = np.maximum(x, 0.0) if place else x
            if training:
                own_mean, own_variance = x.mean(axis=0), x.var(axis=0, ddof=1)
                own, running = np.sqrt(own_variance + 1e-3), np.sqrt(variance + 1e-3)
                if place not in self.constants:
                    scale, offset = np.clip(own / running, 1 / 3, 3), np.clip((own_mean - mean) / running, -5, 5)
                    self.constants[place] = (scale, offset) if updates > WARM_UP else (1.0, 0.0)
                scale, offset = self.constants[place]
                y = (x - own_mean) / own * scale + offset
                if update:
                    mean += 0.01 * (own_mean - mean)
                    variance += 0.01 * (own_variance - variance)
                    updates += 1
            else:
                y = (x - mean) / np.sqrt(variance + 1e-3)
            x = (y * gamma + beta) @ kernel + bias
        return x

    def descend(self, loss: Any) -> None:
        """Make a step of gradient descent on the trained weights."""
        weights = self.trained

        def changed(values: list[np.ndarray]) -> float:
            for old, new in zip(weights, values, strict=True):
                old[...] = new
            return float(loss())

        before = [weight.copy() for weight in weights]
        for weight, old, slope in zip(weights, before, reference.gradients(changed, before), strict=True):
            weight[...] = old - RATE * slope


def sampled(outputs: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return actions of the policy and the logarithms of their densities."""
    mean, log_std = np.split(outputs, 2, axis=1)
    std, noise = np.exp(np.clip(log_std, -20, 2)), np.array(noise, float)
    action = np.tanh(mean + std * noise)
    density = np.exp(-0.5 * noise**2) / (np.sqrt(2 * np.pi) * std)
    return action, np.sum(np.log(density) - np.log(1 - action**2), axis=1)


def assert_equal(network: Any, stack: Stack) -> None:
    for left, right in zip(networks.get_weights(network), stack.weights, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=5e-6)


@pytest.mark.parametrize("updates", [0.0, AFTER], ids=["warm-up", "after"])
def test_layer_equals_the_formula(updates: float) -> None:
    network = networks.batch_renormalized(networks.mlp(3, [5], 2))
    randomize(network, updates)
    stack = Stack(network)
    rows = np.random.default_rng(1).normal(1.0, 2.0, (SIZE, 3)).astype(np.float32)
    with networks.inference_mode(network):
        frozen = current().fetch(network(rows if keras.backend.backend() != "torch" else keras.ops.array(rows)))
    np.testing.assert_allclose(frozen, stack(rows.astype(float), training=False), rtol=1e-4, atol=1e-5)
    assert_equal(network, stack)
    with networks.training_mode([network]):
        outputs = current().fetch(network(keras.ops.array(rows)))
    np.testing.assert_allclose(outputs, stack(rows.astype(float), training=True, update=True), rtol=1e-4, atol=1e-5)
    assert_equal(network, stack)
    assert float(networks.get_weights(network)[4]) == updates + 1


@pytest.mark.parametrize("updates", representatives([0.0, AFTER], AFTER))
def test_update_equals_the_reference(updates: float) -> None:
    """0 updates are within the warm-up."""
    agent = make()
    for network in (agent.actor, *agent.critics):
        randomize(network, updates)
    batch = add_random_numbers(agent, random_batch(1, SIZE, CONTINUOUS), 1)
    data = row(batch, 0)
    actor, critics = Stack(agent.actor), [Stack(critic) for critic in agent.critics]
    low, high = (np.asarray(side, float) for side in (agent.action_space.low, agent.action_space.high))

    observation, following = (np.array(rows, float) for rows in (data.observation, data.next_observation))
    next_action, log_density = sampled(actor(following, training=False), data.extra["next_noise"])
    taken = 2 * (np.asarray(data.action, float) - low) / (high - low) - 1
    rows = np.concatenate([np.concatenate([observation, taken], 1), np.concatenate([following, next_action], 1)])
    next_q = np.min([critic(rows, training=True)[SIZE:, 0] for critic in critics], axis=0)
    target = data.reward + data.discount * (next_q - 0.3 * log_density)

    def critic_loss(critic: Stack) -> float:
        return np.mean(data.weight * 0.5 * (critic(rows, training=True)[:SIZE, 0] - target) ** 2)

    loss = sum(map(critic_loss, critics))
    errors = [np.abs(critic(rows, training=True)[:SIZE, 0] - target) for critic in critics]
    for critic in critics:
        moved = Stack(agent.critics[0])
        moved.weights = [weight.copy() for weight in critic.weights]
        moved(rows, training=True, update=True)  # with the weights before the step
        critic.descend(functools.partial(critic_loss, critic))
        for place in range(0, len(critic.weights), RENORM + 2):
            critic.weights[place + 2 : place + 5] = moved.weights[place + 2 : place + 5]

    def actor_loss() -> float:
        action, log_density = sampled(actor(observation, training=True), data.extra["noise"])
        inputs = np.concatenate([observation, action], axis=1)
        return np.mean(0.3 * log_density - np.min([critic(inputs, training=False)[:, 0] for critic in critics], axis=0))

    expected = actor_loss()
    moved = Stack(agent.actor)
    moved(observation, training=True, update=True)
    actor.descend(actor_loss)
    for place in range(0, len(actor.weights), RENORM + 2):
        actor.weights[place + 2 : place + 5] = moved.weights[place + 2 : place + 5]

    result, fetch = run_updates(agent, batch, 1), current().fetch
    np.testing.assert_allclose(fetch(result.logs["loss"])[0], loss, rtol=1e-4)
    np.testing.assert_allclose(fetch(result.logs["actor_loss"])[0], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(fetch(result.feedback["td_error"])[0], np.mean(errors, axis=0), rtol=2e-4, atol=1e-5)
    for network, stack in ((agent.actor, actor), *zip(agent.critics, critics, strict=True)):
        assert_equal(network, stack)


@pytest.mark.backends("jax", "torch")
def test_statistics_stay_in_float32_under_bfloat16() -> None:
    agent = make()
    agent.compile(keras.optimizers.SGD(RATE), replay=64, batch_size=4, learning_starts=0, precision="bfloat16")
    agent.build()
    batch = add_random_numbers(agent, random_batch(1, SIZE, CONTINUOUS), 1)
    run_updates(agent, batch, 1)
    for network in (agent.actor, *agent.critics):
        assert all(weight.dtype == np.float32 for weight in networks.get_weights(network))
    mean = networks.get_weights(agent.actor)[2]
    np.testing.assert_allclose(mean, 0.01 * batch.observation[0].mean(axis=0), rtol=1e-5, atol=1e-8)


def test_copy_moves_trained_weights_and_copies_statistics() -> None:
    network = networks.batch_renormalized(networks.mlp(3, [4], 2))
    target = networks.clone(network)
    before = networks.get_weights(target)
    randomize(network, 7.0)
    networks.set_weights(network, [weight + 1 for weight in networks.get_weights(network)])
    networks.copy(network, target, tau=0.25)
    for place, values in enumerate(
        zip(before, networks.get_weights(network), networks.get_weights(target), strict=True)
    ):
        old, new, found = values
        is_statistic = place % (RENORM + 2) in (2, 3, 4)
        np.testing.assert_allclose(found, new if is_statistic else old + 0.25 * (new - old), rtol=1e-6)


def test_numpy_acting_equals_the_network_and_changes_no_statistics() -> None:
    agent = noterl.CrossQ(CONTINUOUS, hidden=(6, 5), critic_hidden=(4,), seed=5)
    randomize(agent.actor, AFTER)
    before = networks.get_weights(agent.actor)
    observation = np.random.default_rng(2).normal(size=(7, 5)).astype(np.float32)
    forward = actor_of(agent).forward
    assert forward.in_numpy
    expected = Stack(agent.actor)(observation.astype(float), training=False)
    np.testing.assert_allclose(forward(observation), expected, rtol=1e-4, atol=1e-5)
    agent.act(observation)
    assert all(map(np.array_equal, before, networks.get_weights(agent.actor)))


@torch_only
@pytest.mark.parametrize("case", ["folded", "far from zero"])
def test_export_folds_the_layers_into_dense_ones(case: str, tmp_path: Path) -> None:
    agent = make(hidden=(6, 5))
    randomize(agent.actor, 1.0)
    if case == "far from zero":  # in one dense layer, the digits of such inputs would cancel
        weights = networks.get_weights(agent.actor)
        weights[2] += 1_000
        networks.set_weights(agent.actor, weights)
    agent.export(tmp_path / "policy", "numpy")  # compares with the agent
    graph = Graph()
    graph.outputs["y"] = add_network(graph, agent.actor, graph.add("input", name="x", shape=(5,), dtype="float32"))
    kinds = [node.kind for node in graph.with_values().nodes]
    dense = ["input", "dense", "relu", "dense", "relu", "dense"]
    assert kinds == (dense if case == "folded" else ["input", "batch_norm", *dense[1:]])


@torch_only
def test_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    def agent() -> Any:
        made = noterl.CrossQ("Pendulum-v1", hidden=(8,), critic_hidden=(8,), seed=1)
        made.compile(batch_size=8, learning_starts=10, replay=200)
        return made

    whole = agent()
    whole.fit(steps=150, verbose=0)
    first = agent()
    first.fit(steps=61, verbose=0)
    first.save(tmp_path / "agent.noterl")
    resumed = noterl.load(tmp_path / "agent.noterl")
    resumed.fit(steps=89, verbose=0)
    assert differences(copied(whole.get_state()), copied(resumed.get_state())) == []
    assert [float(networks.get_weights(each)[4]) for each in (whole.critics[0], whole.actor)] == [140.0, 46.0]


@torch_only
def test_defaults_are_those_of_the_issue() -> None:
    agent = noterl.CrossQ("Pendulum-v1", seed=1)
    assert agent.target_critics == [] and agent.update_period == 3
    kernels = [weight.shape for weight in networks.get_weights(agent.critics[1]) if weight.ndim == 2]
    assert kernels == [(4, 512), (512, 512), (512, 1)]
    assert [weight.shape for weight in networks.get_weights(agent.actor) if weight.ndim == 2][1] == (256, 256)
    agent.compile()
    agent.build()
    betas = {name: float(each.beta_1) for name, each in agent._parts.learner.optimizers.items()}
    assert betas == {"actor": 0.5, "critic": 0.5, "temperature": 0.9}


@torch_only
def test_networks_of_a_description_and_images_have_the_layers() -> None:
    def renormalized(network: Any) -> int:
        return sum(type(module).__name__ == "BatchRenorm" for module in network.modules())

    described = noterl.CrossQ(CONTINUOUS, network=networks.simba(4), seed=1)
    assert [renormalized(each) for each in (described.actor, *described.critics)] == [2, 2, 2]
    env = (spaces.Box(0, 255, (36, 36), np.uint8), CONTINUOUS[1])
    images = noterl.CrossQ(env, critic_hidden=(4,), seed=1)
    assert [renormalized(each) for each in (images.actor, images.critics[0])] == [2, 2]
    own = (networks.mlp(5, [4], 4), networks.mlp(7, [4], 1), networks.mlp(7, [3], 1))
    agent = make(network=own, critics_in_target=1, hidden=(3,))
    assert renormalized(agent.actor) == 0
    run_updates(agent, add_random_numbers(agent, random_batch(1, SIZE, CONTINUOUS), 1), 1)


@torch_only
def test_variance_of_a_dead_unit_and_of_one_row_has_a_finite_gradient() -> None:
    agent = make()
    for network in (agent.actor, *agent.critics):
        randomize(network, AFTER)
        weights = networks.get_weights(network)
        weights[RENORM] *= 0.0  # all hidden units have the bias as value
        networks.set_weights(network, weights)
    result = run_updates(agent, add_random_numbers(agent, random_batch(2, 1, CONTINUOUS), 2), 2)
    assert result.applied == 2


@torch_only
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recurrent": "gru"}, "recurrent must be left out with CrossQ"),
        ({"critic_hidden": 8}, "^critic_hidden .*got 8"),
    ],
)
def test_invalid_argument_raises(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**arguments)


@torch_only
def test_what_crossq_cannot_do_raises() -> None:
    with pytest.raises(ValueError, match="Box"):
        noterl.CrossQ(VECTOR)
    agent = make()
    with pytest.raises(ValueError, match="target_update must be None, because CrossQ defines no "):
        agent.compile(target_update=0.005)
    with pytest.raises(ValueError, match=r"strategy must be None, because CrossQ needs .* got 'ddp'"):
        check_strategy(SimpleNamespace(replicas=2, word="ddp"), agent._parts.build()[0])  # type: ignore[arg-type]

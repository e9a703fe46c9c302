"""The NumPy copy of a network has the network's outputs and current weights; other networks use the compiled call."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces
from keras import layers, ops

import noterl
from noterl import networks
from noterl.backends import current
from tests.support.batches import IMAGE, VECTOR, Corridor, random_batch, small_dqn
from tests.support.parts import actor_of, run_updates
from tests.support.representatives import representatives

pytestmark = pytest.mark.backends("torch")

OBSERVATIONS = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)


def forward(agent: noterl.Agent, observations: np.ndarray) -> np.ndarray:
    """Return the network's own output, without the actor."""
    return current().fetch(agent.forward(ops.convert_to_tensor(observations)))


def assert_acts_as_the_network(agent: noterl.Agent, observations: np.ndarray = OBSERVATIONS) -> None:
    actor_of(agent).forward.stale = True
    expected = forward(agent, observations)
    values = actor_of(agent).forward(observations)
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
    actions = agent.act(observations)
    assert actions.tolist() == values.argmax(-1).tolist()
    # If values differ only by rounding, NumPy and the framework may choose different ones.
    taken = np.take_along_axis(expected, actions[:, None], axis=-1)[:, 0]
    np.testing.assert_allclose(taken, expected.max(-1), rtol=1e-4, atol=1e-5)


def keras_network(*stack: Any) -> keras.Sequential:
    return keras.Sequential([keras.Input((5,)), *stack, layers.Dense(3)])


IN_NUMPY = {
    "no hidden layer": [],
    "relu": [layers.Dense(8, activation="relu")],
    "tanh": [layers.Dense(8, activation="tanh")],
    "elu": [layers.Dense(8, activation="elu")],
    "silu": [layers.Dense(8, activation="silu")],
    "sigmoid": [layers.Dense(8, activation="sigmoid"), layers.Dense(4)],
    "activations as layers": [layers.Activation("relu"), layers.Dense(8), layers.ReLU(), layers.Activation("tanh")],
    "flatten": [layers.Flatten(), layers.Dense(8, activation="relu")],
    "gelu": [layers.Dense(8, activation="gelu")],
    "without bias": [layers.Dense(8, use_bias=False)],
    "normalization": [layers.Dense(8), layers.LayerNormalization(), layers.BatchNormalization()],
    "leaky": [layers.Dense(8), layers.LeakyReLU(0.1)],
    "dropout": [layers.Dense(8), layers.Dropout(0.5)],  # acting is inference
    "regularizer": [layers.Dense(8, kernel_regularizer="l2")],
}


@keras.saving.register_keras_serializable("tests")
def waves(x):
    return ops.sin(x)


COMPILED = {
    "cut off relu": [layers.Dense(8), layers.ReLU(max_value=0.1)],
    "relu with a threshold": [layers.Dense(8), layers.ReLU(threshold=0.5)],
    "a function of the user's": [layers.Dense(8, activation=waves)],
    "convolution": [layers.Reshape((5, 1, 1)), layers.Conv2D(2, 1, data_format="channels_last"), layers.Flatten()],
}


@pytest.mark.filterwarnings("ignore:network .* has regularizers")
@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("stack", IN_NUMPY.values(), ids=IN_NUMPY)
def test_passed_network_acts_in_numpy(stack: list) -> None:
    agent = small_dqn(network=keras_network(*stack))
    assert actor_of(agent).forward.in_numpy
    assert_acts_as_the_network(agent)


@pytest.mark.parametrize("stack", COMPILED.values(), ids=COMPILED)
def test_network_with_unsupported_layer_acts_compiled(stack: list) -> None:
    agent = small_dqn(network=keras_network(*stack))
    assert not actor_of(agent).forward.in_numpy
    assert_acts_as_the_network(agent)


@keras.saving.register_keras_serializable("tests")
class Dense(layers.Layer):
    """A layer with the name of a supported one and another computation."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.scale


def test_layer_with_the_name_of_a_supported_one_acts_compiled() -> None:
    agent = small_dqn(network=keras_network(Dense()))
    assert not actor_of(agent).forward.in_numpy
    assert_acts_as_the_network(agent)


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("hidden", representatives([[8], [8, 6]], [8, 6]))
@pytest.mark.parametrize("dueling", [False, True])
def test_default_networks_act_in_numpy(dueling: bool, hidden: list[int]) -> None:
    agent = small_dqn(dueling=dueling, hidden=hidden)
    assert actor_of(agent).forward.in_numpy
    assert_acts_as_the_network(agent)
    run_updates(agent, random_batch(4, 8), 4)
    assert_acts_as_the_network(agent)


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_images_act_compiled() -> None:
    agent = small_dqn(IMAGE)
    assert not actor_of(agent).forward.in_numpy
    images = np.random.default_rng(0).integers(0, 256, (3, 36, 36, 2), dtype=np.uint8)
    assert_acts_as_the_network(agent, images)
    run_updates(agent, random_batch(2, 4, IMAGE), 2)
    assert_acts_as_the_network(agent, images)
    assert agent.act(images[0]) == agent.act(images)[0]


def test_bytes_that_are_not_an_image_act_as_the_network() -> None:
    agent = small_dqn((spaces.Box(0, 255, (6,), np.uint8), spaces.Discrete(3)))
    assert_acts_as_the_network(agent, np.random.default_rng(0).integers(0, 256, (4, 6), dtype=np.uint8))


def test_acting_does_not_change_observations() -> None:
    agent = small_dqn(network=keras_network(layers.Activation("relu"), layers.Dense(4)))
    batch = OBSERVATIONS.copy()
    agent.act(batch)
    assert np.array_equal(batch, OBSERVATIONS)


def test_large_values_give_no_warning_or_error() -> None:
    for activation in ("sigmoid", "silu", "elu"):
        agent = small_dqn(network=keras_network(layers.Dense(8, activation=activation)))
        assert actor_of(agent).forward.in_numpy
        assert_acts_as_the_network(agent, OBSERVATIONS * 1e3)


def test_saturated_units_give_the_actions_of_the_network() -> None:
    agent = small_dqn(network=keras_network(layers.Dense(8, activation="sigmoid")))
    weights = networks.get_weights(agent.q)
    weights[0][:] = -0.1  # sigmoid(-90) is 1e-39 or 0, depending on the framework
    networks.set_weights(agent.q, weights)
    assert_acts_as_the_network(agent, np.full((1, 5), 180.0, np.float32))


class TargetFirst(noterl.Agent):
    """Its target network comes first, and starts with the weights of the online one."""

    memory, head = "replay", noterl.heads.Q()

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        online = networks.mlp(self.observation_size, (8,), self.action_size)
        self.parts = {"target": networks.clone(online), "online": online}

    def forward(self, observation):
        return self.parts["online"](observation)

    def loss(self, batch):
        return ops.mean(ops.square(self.parts["online"](batch.observation)))


class Averaged(TargetFirst):
    """Acts by the mean of two networks, so neither alone gives its outputs."""

    def forward(self, observation):
        return 0.5 * (self.parts["online"](observation) + self.parts["target"](observation))


def test_acting_network_is_distinguished_from_its_target() -> None:
    agent = TargetFirst(VECTOR, seed=1)
    agent.act(OBSERVATIONS)
    assert actor_of(agent).forward.in_numpy
    before = networks.get_weights(agent.parts["target"])
    networks.set_weights(agent.parts["online"], [weight + 0.3 for weight in before])
    assert_acts_as_the_network(agent)
    for left, right in zip(before, networks.get_weights(agent.parts["target"]), strict=True):
        assert np.array_equal(left, right), "looking for the network must not change the target"


def test_combination_of_networks_acts_compiled() -> None:
    agent = Averaged(VECTOR, seed=1)
    agent.act(OBSERVATIONS)
    assert not actor_of(agent).forward.in_numpy
    assert_acts_as_the_network(agent)


class WithHiddenOperation(TargetFirst):
    """Its forward pass applies an operation that has no effect at first, such as a scale of 1."""

    def __init__(self, env: Any, *, kind: str, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.kind = kind
        self.scale = self.hyperparameter("scale", 1.0)
        self.share = self.hyperparameter("share", noterl.schedules.Linear(1.0, 0.0, steps=10), minimum=0.0, maximum=1.0)
        self.bias = keras.Variable(np.zeros(3, "float32"), name="bias")

    def forward(self, observation):
        if self.kind.startswith("bounded"):
            bound = float(self.kind.removeprefix("bounded by "))
            observation = ops.clip(observation, -bound, bound)
        values = super().forward(observation)
        return {"scaled": values * self.scale, "shared": values * self.share, "shifted": values + self.bias}.get(
            self.kind, values
        )


@pytest.mark.parametrize("kind", ["scaled", "shared", "shifted", "bounded by 5", "bounded by 100"])
def test_operation_beside_the_network_acts_compiled(kind: str) -> None:
    agent = WithHiddenOperation(VECTOR, kind=kind, seed=1)
    agent.act(OBSERVATIONS)
    assert not actor_of(agent).forward.in_numpy
    assert (float(agent.scale), float(agent.share)) == (1.0, 1.0), (
        "looking for the network must not change hyperparameters"
    )
    assert not current().fetch(agent.bias).any()
    agent.scale = -1.0
    agent.bias.assign([0.0, 0.0, 100.0])
    assert_acts_as_the_network(agent, 300 * OBSERVATIONS)


class SetWeights(noterl.Callback):
    """Changes the weights between two actions."""

    def on_episode_end(self, episode, logs):
        weights = [weight * 0.9 + 0.05 for weight in networks.get_weights(self.agent.q)]
        networks.set_weights(self.agent.q, weights)


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_acting_uses_current_weights_during_training(monkeypatch, tmp_path) -> None:
    agent = noterl.DQN(lambda: Corridor(), hidden=(8,), seed=1)
    agent.compile(
        replay=noterl.Replay(200), batch_size=8, learning_starts=5, update_every=3, updates=2, target_update=7
    )
    agent.build()
    assert actor_of(agent).forward.in_numpy
    call, compared_values = type(actor_of(agent).forward).__call__, []

    def compared(actor, observations):
        values = call(actor, observations)
        np.testing.assert_allclose(values, forward(agent, observations), rtol=1e-4, atol=1e-5)
        compared_values.append(values)
        return values

    monkeypatch.setattr(type(actor_of(agent).forward), "__call__", compared)
    agent.fit(steps=60, verbose=0, callbacks=[SetWeights()])
    assert len(compared_values) >= 54
    agent.save_weights(tmp_path / "weights.safetensors")
    agent.fit(steps=30, verbose=0)
    agent.load_weights(tmp_path / "weights.safetensors")
    agent.act(OBSERVATIONS[:, :3])
    agent.evaluate(episodes=1)
    state = agent.get_state()
    agent.fit(steps=10, verbose=0)
    agent.set_state(state)
    agent.act(OBSERVATIONS[:, :3])


def test_weights_set_by_the_user_apply_to_the_next_action() -> None:
    agent = small_dqn()
    agent.act(OBSERVATIONS)
    for bias in ([0, 0, 50], [0, 50, 0]):
        weights = [np.zeros_like(weight) for weight in networks.get_weights(agent.q)]
        weights[-1] = np.array(bias, np.float32)
        networks.set_weights(agent.q, weights)
        assert agent.act(OBSERVATIONS[0]) == np.argmax(bias)


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("updates", representatives([1, 3], 3))
def test_weights_reported_by_updates_equal_the_variables_bit_for_bit(updates: int) -> None:
    agent = small_dqn(hidden=(64,))
    for seed in range(3):
        actor_of(agent).forward.weights_updated(
            run_updates(agent, random_batch(updates, 4, seed=seed), updates).weights
        )
        agent.act(OBSERVATIONS)
        reported = actor_of(agent).forward._weights
        actor_of(agent).forward.stale = True
        agent.act(OBSERVATIONS)
        for weights, own in zip(reported, actor_of(agent).forward._weights, strict=True):
            np.testing.assert_array_equal(weights, own)


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_acting_follows_the_statistics_of_a_batch_normalization() -> None:
    agent = small_dqn(network=keras_network(layers.Dense(8), layers.BatchNormalization(momentum=0.5)))
    forward_pass = actor_of(agent).forward
    before = forward_pass(OBSERVATIONS)
    forward_pass.weights_updated(run_updates(agent, random_batch(3, 4), 3).weights)
    values = forward_pass(OBSERVATIONS)
    assert forward_pass.in_numpy and not np.allclose(values, before)
    np.testing.assert_allclose(values, forward(agent, OBSERVATIONS), rtol=1e-4, atol=1e-5)


def test_one_observation_gives_an_int_and_a_batch_an_array() -> None:
    agent = small_dqn()
    batch = agent.act(OBSERVATIONS)
    assert batch.shape == (6,) and np.issubdtype(batch.dtype, np.integer)
    for observation, action in zip(OBSERVATIONS, batch, strict=True):
        single = agent.act(observation)
        assert type(single) is int and single == action
    assert agent.act(OBSERVATIONS[0].tolist()) == batch[0]
    assert agent.act(OBSERVATIONS.astype(np.float64)).tolist() == batch.tolist()
    assert agent.act(OBSERVATIONS[:1]).shape == (1,)


@pytest.mark.parametrize("shape", [(), (4,), (6,), (5, 1), (2, 4), (2, 3, 5), (0,)])
def test_observation_of_wrong_shape_raises(shape: tuple[int, ...]) -> None:
    agent = noterl.DQN(VECTOR, hidden=(8,))
    agent.compile(replay=noterl.Replay(100))
    with pytest.raises(ValueError, match=r"observation .*\(5,\)"):
        agent.act(np.zeros(shape))


def test_exploring_acts_by_the_policy() -> None:
    agent = small_dqn()
    agent.compile(policy=noterl.policies.EpsGreedyQPolicy(1.0), replay=noterl.Replay(64))
    explored = [agent.act(OBSERVATIONS[0], deterministic=False) for _ in range(60)]
    assert set(explored) == {0, 1, 2}
    assert {agent.act(OBSERVATIONS[0]) for _ in range(20)} == {agent.act(OBSERVATIONS[0])}


@pytest.mark.parametrize("policy", ["EpsGreedyQPolicy", "BoltzmannGumbelQPolicy"])
def test_act_without_deterministic_does_not_change_training(policy: str) -> None:
    agents = noterl.DQN(VECTOR, hidden=(8,), seed=1), noterl.DQN(VECTOR, hidden=(8,), seed=1)
    for agent in agents:
        agent.compile(policy=getattr(noterl.policies, policy)(5.0 if "Gumbel" in policy else 0.5))
    before = str(actor_of(agents[0]).explorer.get_state())
    actions = [[agent.act(OBSERVATIONS, deterministic=False).tolist() for _ in range(3)] for agent in agents]
    assert actions[0] == actions[1] and actions[0][0] != actions[0][1]
    assert str(actor_of(agents[0]).explorer.get_state()) == before


@pytest.mark.backends("torch")
def test_torch_network_acts_in_numpy_if_supported() -> None:
    import torch
    from torch import nn

    def agent_of(*stack: nn.Module) -> noterl.DQN:
        torch.manual_seed(0)
        return small_dqn(network=nn.Sequential(*stack))

    supported = agent_of(
        nn.Flatten(), nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8, bias=False), nn.ReLU(), nn.SiLU(), nn.Linear(8, 3)
    )
    assert actor_of(supported).forward.in_numpy
    assert_acts_as_the_network(supported)
    run_updates(supported, random_batch(4, 8), 4)
    assert_acts_as_the_network(supported)
    for unsupported in (
        agent_of(nn.Linear(5, 8), nn.LeakyReLU(), nn.Linear(8, 3)),
        agent_of(nn.Linear(5, 8), nn.Softplus(beta=2.0), nn.Linear(8, 3)),
        agent_of(nn.Sequential(nn.Linear(5, 8), nn.ReLU()), nn.Linear(8, 3)),
        agent_of(nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 3)),
    ):
        assert not actor_of(unsupported).forward.in_numpy
        assert_acts_as_the_network(unsupported)

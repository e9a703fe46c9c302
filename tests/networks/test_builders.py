"""Network builders: shapes, outputs and initial weights; cloning, copying, reading and writing of any network."""

from __future__ import annotations

import zlib
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from noterl import networks
from noterl.backends import current
from noterl.networks.layers import ACTIVATIONS as ALL_ACTIVATIONS
from noterl.random import construction
from tests.support import reference_numpy as reference
from tests.support.representatives import representatives


def run(network: Any, observations: np.ndarray) -> np.ndarray:
    return current().fetch(network(ops.convert_to_tensor(observations)))


def shapes(network: Any) -> list[tuple[int, ...]]:
    return [weight.shape for weight in networks.get_weights(network)]


def doubles(weights: list[np.ndarray]) -> list[np.ndarray]:
    return [weight.astype(np.float64) for weight in weights]


def test_mlp_has_the_requested_sizes() -> None:
    network = networks.mlp(4, (16, 8), 2)
    assert shapes(network) == [(4, 16), (16,), (16, 8), (8,), (8, 2), (2,)]
    assert shapes(networks.mlp(4, [], 2)) == [(4, 2), (2,)]
    assert shapes(networks.mlp((2, 3), [5], 2)) == [(6, 5), (5,), (5, 2), (2,)]
    assert shapes(networks.mlp(np.int64(4), [np.int64(5)], np.int64(2))) == [(4, 5), (5,), (5, 2), (2,)]


def test_mlp_equals_the_reference() -> None:
    network, x = networks.mlp((2, 3), (7, 5), 2), np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32)
    expected = reference.mlp((7, 5)).forward(x.reshape(4, 6).astype(np.float64), doubles(networks.get_weights(network)))
    np.testing.assert_allclose(run(network, x), expected, rtol=1e-4, atol=1e-5)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# The hidden unit's value for the input x; here gelu is its tanh approximation, with a larger tolerance.
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "linear": lambda x: x,
    "softplus": lambda x: np.log1p(np.exp(x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * (np.exp(x) - 1)),
    "relu6": lambda x: np.clip(x, 0, 6),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
}


def test_every_activation_is_tested() -> None:
    assert set(ACTIVATIONS) == set(ALL_ACTIVATIONS)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_equals_its_formula(name: str) -> None:
    network = networks.mlp(1, [1], 1, activation=name)
    one, zero = np.ones((1, 1), np.float32), np.zeros(1, np.float32)
    networks.set_weights(network, [one, zero, one, zero])
    x = np.linspace(-3, 3, 13, dtype=np.float32)[:, None]
    tolerance = 1e-3 if name == "gelu" else 1e-6
    np.testing.assert_allclose(run(network, x), ACTIVATIONS[name](x.astype(np.float64)), atol=tolerance)


def test_dueling_mlp_shares_all_but_the_last_hidden_layer() -> None:
    network = networks.dueling_mlp(4, (16, 8), 3)
    trunk, value, advantage = [(4, 16), (16,)], [(16, 8), (8,), (8, 1), (1,)], [(16, 8), (8,), (8, 3), (3,)]
    assert shapes(network) == trunk + value + advantage
    assert shapes(networks.dueling_mlp(4, (8,), 3)) == [(4, 8), (8,), (8, 1), (1,), (4, 8), (8,), (8, 3), (3,)]
    assert shapes(networks.dueling_mlp((2, 2), (8,), 3))[0] == (4, 8)


@pytest.mark.parametrize("hidden", [(8,), (9, 8), ()])
def test_dueling_mlp_returns_value_plus_centered_advantage(hidden: tuple[int, ...]) -> None:
    network, x = networks.dueling_mlp(4, hidden, 3), np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    weights = doubles(networks.get_weights(network))
    if hidden:
        expected = reference.dueling_mlp(hidden).forward(x.astype(np.float64), weights)
    else:
        advantage = x @ weights[2] + weights[3]
        expected = x @ weights[0] + weights[1] + advantage - advantage.mean(-1, keepdims=True)
    np.testing.assert_allclose(run(network, x), expected, rtol=1e-4, atol=1e-5)


CONVOLUTIONS = [(8, 8, 4, 32), (32,), (4, 4, 32, 64), (64,), (3, 3, 64, 64), (64,)]


def test_nature_cnn_has_the_sizes_of_the_paper() -> None:
    assert shapes(networks.nature_cnn((84, 84, 4), 6)) == [*CONVOLUTIONS, (3136, 512), (512,), (512, 6), (6,)]
    stream = [(3136, 512), (512,)]
    assert shapes(networks.nature_cnn((84, 84, 4), 6, dueling=True)) == [
        *CONVOLUTIONS, *stream, (512, 1), (1,), *stream, (512, 6), (6,),
    ]  # fmt: skip


@pytest.mark.parametrize("size", [(44, 37), pytest.param((45, 53), marks=pytest.mark.backends("torch"))])
def test_images_are_scaled_and_flattened_by_rows_columns_and_channels(size: tuple[int, int]) -> None:
    """Torch stores channels first; the image sizes give different numbers of rows and columns."""
    network = networks.nature_cnn((*size, 1), 2)
    images = np.random.default_rng(0).integers(0, 256, (2, *size, 1), dtype=np.uint8)
    expected = reference.nature_cnn(False).forward(images.astype(np.float64), doubles(networks.get_weights(network)))
    np.testing.assert_allclose(run(network, images), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(run(network, images.astype(np.float32)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dueling", representatives([False, True], True))
def test_channels_first_images_give_the_same_outputs(dueling: bool) -> None:
    last, first = (networks.nature_cnn(shape, 2, dueling=dueling) for shape in ((44, 37, 3), (3, 44, 37)))
    networks.set_weights(first, networks.get_weights(last))
    images = np.random.default_rng(0).integers(0, 256, (2, 44, 37, 3), dtype=np.uint8)
    expected = run(last, images)
    assert np.abs(expected).max() > 0
    for network in (first, networks.clone(first)):
        np.testing.assert_allclose(run(network, np.moveaxis(images, -1, 1)), expected, rtol=1e-5, atol=1e-6)


def test_share_trunk_supports_channels_first_images() -> None:
    actor = networks.nature_cnn((3, 44, 37), 2, gain=0.01)
    assert shapes(networks.share_trunk(actor, 1, gain=1.0)) == [*shapes(actor)[:-2], (512, 1), (1,)]


def test_initial_weights_are_uniform_within_one_over_sqrt_inputs() -> None:
    for network in (networks.mlp(100, (200,), 50), networks.nature_cnn((36, 36, 4), 3)):
        limit = 0.0
        for weight in networks.get_weights(network):
            if weight.ndim > 1:  # a bias has the limit of the kernel before it
                limit = 1.0 / np.sqrt(np.prod(weight.shape[:-1]))
            assert 0.5 * limit < np.abs(weight).max() <= limit or weight.size < 10
            if weight.size > 5000:
                # Uniform on [-limit, limit]: mean 0 and standard deviation limit / sqrt(3).
                assert np.abs(weight).max() > 0.99 * limit
                assert abs(weight.mean()) < 5 * limit / np.sqrt(3 * weight.size)
                assert weight.std() == pytest.approx(limit / np.sqrt(3), rel=0.05)


def test_networks_built_outside_an_agent_differ() -> None:
    first, second = networks.mlp(4, [8], 2), networks.mlp(4, [8], 2)
    assert not np.array_equal(networks.get_weights(first)[0], networks.get_weights(second)[0])


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: networks.mlp(0, [8], 2), "inputs"),
        (lambda: networks.mlp((3, 0), [8], 2), "inputs"),
        (lambda: networks.mlp(4, [8, -1], 2), "hidden"),
        (lambda: networks.mlp(4, [8.0], 2), "hidden"),
        (lambda: networks.mlp(4, [True], 2), "hidden"),
        (lambda: networks.mlp(4, 8, 2), "hidden"),
        (lambda: networks.mlp(4, [8], 0), "outputs"),
        (lambda: networks.dueling_mlp(4, [8], "2"), "outputs"),
        (lambda: networks.mlp(4, [8], 2, activation="swish2"), "activation"),
        (lambda: networks.dueling_mlp(4, [8], 2, activation=None), "activation"),
        (lambda: networks.nature_cnn((35, 84, 4), 2), "36x36"),
        (lambda: networks.nature_cnn((4, 35, 84), 2), "36x36"),
        (lambda: networks.nature_cnn((84,), 2), "height, width, channels"),
        (lambda: networks.nature_cnn((84, 84, 4), 0), "outputs"),
        (lambda: networks.nature_cnn(None, 2), "shape .*got None"),
        (lambda: networks.mlp(None, [8], 2), "inputs .*got None"),
        (lambda: networks.dueling_mlp(2.5, [8], 2), r"inputs .*got 2\.5"),
        (lambda: networks.mlp(4, [8], 2, gain=-1), "gain .*got -1"),
        (lambda: networks.nature_cnn((84, 84, 4), 2, gain="x"), "gain .*got 'x'"),
        (lambda: networks.mlp(4, [8], 2, log_std=np.nan), "log_std .*got nan"),
    ],
)
def test_bad_argument_raises_with_its_name(build: Any, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        build()


def sequential() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(5, activation="relu"), layers.Dense(2)])


def functional() -> keras.Model:
    first, second = keras.Input((4,)), layers.Dense(5, activation="tanh")
    return keras.Model(first, layers.Dense(2)(layers.Concatenate()([second(first), first])))


@keras.saving.register_keras_serializable("tests")
class Subclassed(keras.Model):
    def __init__(self, units: int = 3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units, self.first, self.last = units, layers.Dense(units), layers.Dense(2)

    def call(self, x):
        return self.last(self.first(x))

    def get_config(self):
        return {"units": self.units}


def subclassed() -> keras.Model:
    network = Subclassed()
    network(np.zeros((1, 4), np.float32))
    return network


def normalized() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(5), layers.BatchNormalization(), layers.Dense(2)])


BUILDS = {
    "mlp": lambda: networks.mlp(4, [5], 2),
    "dueling": lambda: networks.dueling_mlp(4, [5, 6], 2),
    "sequential": sequential,
    "functional": functional,
    "subclassed": subclassed,
    "normalized": normalized,
}


@pytest.mark.parametrize("cloned", [False, True])
def test_clone_does_not_use_random_numbers(cloned: bool) -> None:
    with construction(3):
        first = networks.dueling_mlp(4, [5], 2)
        if cloned:
            networks.clone(first)
        second = networks.mlp(1, [], 3)
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence(3, spawn_key=(zlib.crc32(b"networks"),))))
    expected.random(sum(weight.size for weight in networks.get_weights(first)))
    np.testing.assert_allclose(networks.get_weights(second)[0][0], expected.uniform(-1, 1, 3).astype(np.float32))


@pytest.mark.parametrize("name", representatives(BUILDS, "dueling", "normalized"))
def test_clone_is_equal_and_independent_and_not_trainable(name: str) -> None:
    network = BUILDS[name]()
    networks.set_weights(network, [weight + 0.1 for weight in networks.get_weights(network)])
    trained = len(networks.trainable_variables(network))
    clone, x = networks.clone(network), np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    assert networks.trainable_variables(clone) == []
    assert len(networks.trainable_variables(network)) == trained > 0
    for left, right in zip(networks.get_weights(network), networks.get_weights(clone), strict=True):
        assert np.array_equal(left, right)
    before = run(network, x)
    np.testing.assert_allclose(run(clone, x), before, rtol=1e-6)
    networks.set_weights(clone, [weight * 0 for weight in networks.get_weights(clone)])
    assert np.array_equal(run(network, x), before)
    assert not run(clone, x).any()


class WithoutConfig(keras.Model):
    def __init__(self, unit: layers.Layer, last: layers.Layer) -> None:
        super().__init__()
        self.unit, self.last = unit, last

    def call(self, x):
        return self.last(self.unit(x))


def test_clone_raises_for_network_without_config() -> None:
    network = WithoutConfig(layers.Dense(2), layers.Dense(1))
    network(np.zeros((1, 4), np.float32))
    with pytest.raises(ValueError, match="without_config"):
        networks.clone(network)


def filled(network: Any, value: float) -> Any:
    networks.set_weights(network, [np.full_like(weight, value) for weight in networks.get_weights(network)])
    return network


@pytest.mark.parametrize("tau", [0.0, 0.25, 0.005, 1.0])
def test_copy_moves_the_target_by_tau(tau: float) -> None:
    rng = np.random.default_rng(0)
    source, target = networks.mlp(4, [5], 2), networks.mlp(4, [5], 2)
    networks.set_weights(source, [rng.normal(size=shape).astype(np.float32) for shape in shapes(source)])
    old, new = networks.get_weights(target), networks.get_weights(source)
    networks.copy(source, target, tau)
    for before, aim, after in zip(old, new, networks.get_weights(target), strict=True):
        expected = tau * aim.astype(np.float64) + (1 - tau) * before.astype(np.float64)
        if tau in (0.0, 1.0):
            assert np.array_equal(after, expected.astype(np.float32))
        np.testing.assert_allclose(after, expected, rtol=1e-6, atol=1e-7)
    for before, after in zip(new, networks.get_weights(source), strict=True):
        assert np.array_equal(before, after)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("tau", [2, -1, np.nan, "x", True, np.float32(1.5)])
def test_copy_raises_for_bad_tau(tau: Any) -> None:
    source, target = filled(networks.mlp(4, [5], 2), 1.0), filled(networks.mlp(4, [5], 2), 2.0)
    with pytest.raises(ValueError) as raised:
        networks.copy(source, target, tau)
    assert str(raised.value) == f"tau must be a finite number of at least 0 and at most 1, got {tau!r}"
    assert all((weight == 2.0).all() for weight in networks.get_weights(target))


def test_copy_raises_for_values_that_are_not_networks() -> None:
    network = networks.mlp(4, [5], 2)
    for pair, name in (((network, 3), "target"), ((None, network), "source")):
        with pytest.raises(ValueError, match=rf"^{name} .*got {[3, None][name == 'source']}$"):
            networks.copy(*pair)


def test_copy_inside_of_averaging_uses_the_coefficient_and_checks_each_pair() -> None:
    source, target, other = (filled(networks.mlp(4, [5], 2), value) for value in (1.0, 2.0, 4.0))
    polyak = networks.PolyakAveraging(0.5)
    with networks.averaging(polyak):
        for pair, value in (((source, target), 1.5), ((source, target), 1.25), ((source, other), 2.5)):
            networks.copy(*pair)
            assert all((weight == value).all() for weight in networks.get_weights(pair[1]))
        with pytest.raises(ValueError, match="architecture"):
            networks.copy(source, networks.mlp(4, [6], 2))
        networks.copy(source, other, 1)
        assert all((weight == 1.0).all() for weight in networks.get_weights(other)), "a number means that number"
    networks.copy(source, target)
    assert all((weight == 1.0).all() for weight in networks.get_weights(target))


def test_copies_do_not_share_storage() -> None:
    source, target = filled(networks.mlp(4, [5], 2), 1.0), filled(networks.mlp(4, [5], 2), 2.0)
    networks.copy(source, target)
    filled(source, 3.0)
    assert all((weight == 1.0).all() for weight in networks.get_weights(target))


def test_copy_assigns_variables_that_are_not_floats() -> None:
    source, target = keras.random.SeedGenerator(3), keras.random.SeedGenerator(4)
    networks.copy(source, target, 0.5)
    assert np.array_equal(current().fetch(source.state), current().fetch(target.state))


@pytest.mark.parametrize("other", [lambda: networks.mlp(4, [5, 5], 2), lambda: networks.mlp(4, [5], 1)])
def test_copy_raises_for_another_architecture(other: Any) -> None:
    source, target = networks.mlp(4, [5], 2), other()
    before = networks.get_weights(target)
    for tau in (1.0, 0.5):
        with pytest.raises(ValueError, match="source and target"):
            networks.copy(source, target, tau)
    assert shapes(target) == [weight.shape for weight in before]


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_get_weights_returns_copies_that_can_be_set(build: Any) -> None:
    network = build()
    before = networks.get_weights(network)
    kept = [weight.copy() for weight in before]
    filled(network, 0.5)
    for weight, value in zip(before, kept, strict=True):
        assert np.array_equal(weight, value), "get_weights must return copies"
    for weight in before:
        weight += 1.0
    assert all((weight == 0.5).all() for weight in networks.get_weights(network))
    networks.set_weights(network, kept)
    for weight, value in zip(networks.get_weights(network), kept, strict=True):
        assert np.array_equal(weight, value)


def test_set_weights_with_wrong_shapes_raises_and_changes_nothing() -> None:
    network = networks.mlp(4, [5], 2)
    before = networks.get_weights(network)
    for wrong in (before[:-1], [*before[:-1], np.zeros(3, np.float32)], [before[0].T, *before[1:]], []):
        with pytest.raises(ValueError, match=r"weights .*shapes"):
            networks.set_weights(network, [np.zeros_like(weight) for weight in wrong])
    for left, right in zip(before, networks.get_weights(network), strict=True):
        assert np.array_equal(left, right)


def test_variables_of_networks_variables_and_seed_generators() -> None:
    variable, generator = keras.Variable(np.zeros(3, np.float32)), keras.random.SeedGenerator(1)
    assert networks.variables(variable) == [variable]
    assert networks.variables(generator) == [generator.state]
    assert networks.trainable_variables(generator) == []
    assert networks.trainable_variables(keras.Variable(np.zeros(3, np.float32), trainable=False)) == []
    model = normalized()
    assert len(networks.variables(model)) == 8 and len(networks.trainable_variables(model)) == 6
    model.layers[0].trainable = False
    assert len(networks.variables(model)) == 8 and len(networks.trainable_variables(model)) == 4
    dropout = keras.Sequential([keras.Input((4,)), layers.Dense(2), layers.Dropout(0.5)])
    assert len(networks.variables(dropout)) == 3, "the seed of a dropout layer must be a variable"
    assert len(networks.seed_states(dropout)) == 1
    assert [weight.shape for weight in networks.get_weights(dropout)] == [(4, 2), (2,)]


def test_networks_with_and_without_dropout_have_the_same_weights() -> None:
    network = networks.mlp(4, [5], 2, dropout=0.5)
    assert [weight.shape for weight in networks.get_weights(network)] == [(4, 5), (5,), (5, 2), (2,)]
    renormalized = [networks.batch_renormalized(networks.mlp(4, [5], 2, dropout=rate)) for rate in (0.0, 0.5)]
    shapes = [[weight.shape for weight in networks.get_weights(network)] for network in renormalized]
    assert shapes[0] == shapes[1]


def test_variables_returns_the_same_objects() -> None:
    network = networks.mlp(4, [5], 2)
    assert [id(variable) for variable in networks.variables(network)] == list(map(id, networks.variables(network)))


def test_values_that_are_not_networks_raise() -> None:
    for other in (3, "network", None, lambda x: x, [networks.mlp(4, [5], 2)]):
        assert not networks.is_network(other)
        with pytest.raises(ValueError, match="network"):
            networks.variables(other)


def test_model_without_variables_raises_with_its_name() -> None:
    network = keras.Sequential([layers.Dense(5), layers.Dense(2)], name="shapeless")
    for function in (networks.variables, networks.trainable_variables, networks.get_weights, networks.clone):
        with pytest.raises(ValueError, match=r"'shapeless'.*Input"):
            function(network)

"""Networks in files: which are stored, that they are built again, and that a hostile file builds no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces
from keras import layers, ops

import noterl
from noterl import networks, saving
from noterl.networks.config import StoredNetwork, stored
from noterl.saving import FileError
from noterl.utils import codec
from tests.support.representatives import representatives
from tests.support.states import assert_same_state

pytestmark = pytest.mark.backends("torch")

BOX, DISCRETE = spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(2)


@pytest.mark.parametrize(
    "layer", [lambda: layers.BatchNormalization(renorm=True), lambda: layers.Dropout(0.5, noise_shape=(None, 1))]
)
def test_layers_with_further_arguments_are_not_stored(layer: Any, tmp_path: Path) -> None:
    agent = noterl.DQN((BOX, DISCRETE), network=keras.Sequential([keras.Input((4,)), layer(), layers.Dense(2)]), seed=1)
    agent.save(tmp_path / "agent.noterl")
    with pytest.raises(ValueError, match=r"network=.*which a file cannot hold"):
        noterl.load(tmp_path / "agent.noterl")


def sequential() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(6),
            layers.LayerNormalization(epsilon=1e-4),
            layers.Activation("gelu"),
            layers.Dropout(0.1, seed=7),
            layers.Dense(5, "tanh", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Dense(2),
        ]
    )


def functional() -> keras.Model:
    """Return a model with two branches of equal shapes."""
    inputs = keras.Input((4,))
    first, second = layers.Dense(4, "relu")(inputs), layers.Dense(4, "tanh")(inputs)
    joined = layers.Concatenate()([second, layers.Add()([first, inputs])])
    return keras.Model(inputs, layers.Dense(2)(joined))


def convolutional() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Rescaling(1 / 255),
            layers.Conv2D(4, 3, strides=2, padding="same", activation="relu", data_format="channels_last"),
            layers.MaxPooling2D(2, data_format="channels_last"),
            layers.Flatten(data_format="channels_last"),
            layers.Dense(2),
        ]
    )


MODELS = {"Sequential": sequential, "Functional": functional, "images": convolutional}


def through_codec(value: Any) -> Any:
    return codec.copy(value.get_config())


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("kind", representatives(MODELS, "Functional"))
def test_model_is_built_again_with_the_same_outputs(kind: str) -> None:
    model = MODELS[kind]()
    configuration = stored({"network": model})["network"]
    assert isinstance(configuration, StoredNetwork)
    again = StoredNetwork.from_config(through_codec(configuration))
    assert type(again) is type(model)
    again.set_weights(model.get_weights())
    inputs = np.random.default_rng(0).normal(size=(5, *model.input_shape[1:])).astype(np.float32)
    np.testing.assert_array_equal(ops.convert_to_numpy(again(inputs)), ops.convert_to_numpy(model(inputs)))
    assert stored({"network": again})["network"].get_config() == configuration.get_config()


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize(
    "build",
    [
        lambda: networks.mlp(4, [3], 2, activation="tanh"),
        lambda: networks.dueling_mlp((4,), [3, 3], 2),
        lambda: networks.nature_cnn((36, 36), 2),
        lambda: networks.default_critic(spaces.Box(0, 255, (36, 36), np.uint8), [4], 2),
    ],
)
def test_network_of_the_builders_is_built_again(build: Any) -> None:
    network = build()
    again = StoredNetwork.from_config(through_codec(stored({"q": [network]})["q"][0]))
    shapes = [[weight.shape for weight in networks.get_weights(each)] for each in (network, again)]
    assert shapes[0] == shapes[1]


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize(
    "build", representatives([sequential, functional, lambda: networks.mlp(4, [5], 2)], functional)
)
def test_agent_with_own_network_is_loaded(build: Any, tmp_path: Path) -> None:
    agent = noterl.DQN("CartPole-v1", network=build(), seed=1)
    agent.compile(batch_size=8, learning_starts=10, update_every=1, updates=1, replay=noterl.Replay(100))
    agent.fit(steps=20, verbose=0)
    agent.save(tmp_path / "a.noterl")
    again = noterl.load(tmp_path / "a.noterl")
    assert_same_state(agent, again)
    for each in (agent, again):
        each.fit(steps=15, verbose=0)
    assert_same_state(agent, again)


def test_frozen_layers_stay_frozen() -> None:
    model = functional()
    model.layers[1].trainable = False
    again = StoredNetwork.from_config(through_codec(stored({"network": model})["network"]))
    assert len(again.trainable_variables) == len(model.trainable_variables) == 4


class Doubling(layers.Layer):
    """A layer that is not in the list."""

    def call(self, inputs: Any) -> Any:
        return 2.0 * inputs


def shared_layer() -> keras.Model:
    inputs, layer = keras.Input((4,)), layers.Dense(4)
    return keras.Model(inputs, layer(layer(inputs)))


def doubled(times: int) -> keras.Model:
    inputs = outputs = keras.Input((4,))
    for _ in range(times):
        outputs = layers.Concatenate()([outputs, outputs])
    return keras.Model(inputs, outputs)


def with_operation() -> keras.Model:
    inputs = keras.Input((4,))
    return keras.Model(inputs, layers.Dense(2)(inputs) * 2.0)


@pytest.mark.parametrize(
    "build",
    [
        lambda: keras.Sequential([keras.Input((4,)), Doubling()]),
        lambda: keras.Sequential([keras.Input((4,)), layers.Dense(2, kernel_regularizer="l2")]),
        lambda: keras.Sequential([keras.Input((4,)), layers.Dense(2, activation=lambda x: x)]),
        shared_layer,
        with_operation,
        lambda: doubled(24),
    ],
)
def test_other_models_stay_as_they_are(build: Any) -> None:
    model = build()
    assert stored({"network": model})["network"] is model


def test_networks_that_share_weights_stay_as_they_are() -> None:
    first, second = functional(), functional()
    assert stored({"network": (first, second)})["network"][0] is not first
    assert stored({"network": [first, first]})["network"] == [first, first]


def config(**changes: Any) -> dict[str, Any]:
    return {"kind": "Sequential", "shape": [4], "layers": [["Dense", {"units": 2, "use_bias": True}, [-1]]], **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "Model"}, "kind"),
        ({"kind": "plan"}, "plan"),
        ({"kind": "plan", "layers": ("sequential", [("dense", 2, "os.system")])}, "activation"),
        ({"kind": "plan", "layers": ("sequential", [("dense", -2, "relu")])}, "known layers"),
        ({"kind": "plan", "layers": ("sequential", [("lambda", 2)])}, "known layers"),
        ({"shape": [0]}, "shape"),
        ({"shape": ["x"]}, "shape"),
        ({"layers": [["Lambda", {"function": "print"}, [-1]]]}, "cannot hold the layer 'Lambda'"),
        ({"layers": [["TextVectorization", {"vocabulary": "/etc/passwd"}, [-1]]]}, "cannot hold the layer"),
        ({"layers": [["StringLookup", {}, [-1]]]}, "cannot hold the layer"),
        ({"layers": [["Dense", {"units": 2, "activation": "os.system"}, [-1]]]}, "activation"),
        ({"layers": [["Dense", {"units": 2, "kernel_initializer": {"module": "os"}}, [-1]]]}, "kernel_initializer"),
        ({"layers": [["Dense", {"units": {"module": "os"}}, [-1]]]}, "arguments"),
        ({"layers": [["Dense", {"units": 2}, [0]]]}, "precede"),
        ({"layers": [["Dense", {"units": 2}, []]]}, "precede"),
        ({"layers": [["Concatenate", {}, [n - 1] * 2] for n in range(40)]}, "at most 67,108,864 outputs"),
        ({"kind": "plan", "layers": ("sequential", [("encoders", [(0, 4, []), (0, 4, [])])])}, "columns.*after 4"),
    ],
)
def test_hostile_configuration_raises(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StoredNetwork.from_config(config(**changes))


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "entry",
    [
        ["Dense", {"units": 10**9}, [-1]],
        ["Reshape", {"target_shape": [2, 2]}, [-1]],
    ],
)
def test_large_layers_of_a_file_are_not_built(entry: list[Any], tmp_path: Path) -> None:
    agent = noterl.DQN("CartPole-v1", network=sequential(), seed=1)
    agent.save(tmp_path / "a.noterl")
    document = saving.read(tmp_path / "a.noterl")
    conv = ["Conv2D", {"filters": 10**7, "kernel_size": [1, 1]}, [0]]
    found = [entry] if entry[0] == "Dense" else [["Reshape", {"target_shape": [2, 2, 1]}, [-1]], conv]
    document["config"]["network"].arguments["layers"] = found
    saving.write(tmp_path / "b.noterl", document)
    with pytest.raises(FileError, match="larger networks"):
        noterl.load(tmp_path / "b.noterl")

"""Layers are in training mode in updates, and in inference mode in acting, targets and `prepare`, on every backend."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import numpy as np
import pytest

import noterl
from noterl import networks
from tests.support.batches import VECTOR, Corridor, copied, differences, part, random_batch
from tests.support.parts import run_updates


@keras.saving.register_keras_serializable("noterl_tests")
class Mode(keras.layers.Layer):
    """Records the training modes in which the layer is called, by whether it is trainable."""

    recorded: ClassVar[set[tuple[bool, Any]]] = set()

    def call(self, inputs: Any, training: Any = None) -> Any:
        self.recorded.add((self.trainable, training))
        return inputs


class Subclassed(keras.Model):
    """Calls its layers without passing the mode on."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.mode, self.dense = Mode(), keras.layers.Dense(3)

    def call(self, inputs: Any) -> Any:
        return self.dense(self.mode(inputs))

    def build(self, shape: Any) -> None:
        self.dense.build(shape)
        self.built = True


def keras_network(*layers: Any, outputs: int = 3, size: int = 5) -> keras.Sequential:
    return keras.Sequential([keras.Input((size,)), *layers, keras.layers.Dense(outputs)])


def agent_with(network: Any) -> noterl.DQN:
    """Return an agent with this network, whose target moves after every update."""
    agent = noterl.DQN(VECTOR, network=network, seed=1)
    agent.compile(replay=noterl.Replay(64), batch_size=4, learning_starts=0, target_update=0.1)
    return agent


@pytest.mark.parametrize("make", [lambda: keras_network(Mode()), Subclassed], ids=["sequential", "subclassed"])
def test_trained_network_is_in_training_mode_only_in_updates(make: Any) -> None:
    network = make()
    if not network.built:
        network.build((None, 5))
    agent = agent_with(network)
    agent.build()
    Mode.recorded.clear()
    run_updates(agent, random_batch(2, 4), 2)
    assert Mode.recorded == {(True, True), (False, False)}
    Mode.recorded.clear()
    agent.act(np.zeros(5, np.float32))
    agent.act(np.zeros((3, 5), np.float32))
    assert not any(training for _, training in Mode.recorded)
    assert type(agent.q) is type(network)


def test_prepare_runs_in_inference_mode() -> None:
    modes: set[Any] = set()

    class Recording(noterl.PPO):
        def prepare(self, rollout):
            Mode.recorded.clear()
            fields = super().prepare(rollout)
            modes.update(training for _, training in Mode.recorded)
            return fields

    actor, critic = keras_network(Mode(), outputs=2, size=3), keras_network(Mode(), outputs=1, size=3)
    agent = Recording(Corridor, network=(actor, critic), rollout_steps=8, epochs=1, seed=1)
    agent.fit(steps=8, verbose=0)
    assert agent.updates and modes and True not in modes
    assert (True, True) in Mode.recorded


def test_dropout_changes_training() -> None:
    def trained(rate: float) -> list[np.ndarray]:
        first = keras.layers.Dense(8, "relu", kernel_initializer=keras.initializers.GlorotUniform(1))
        second = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(2))
        network = keras.Sequential([keras.Input((5,)), first, keras.layers.Dropout(rate, seed=3), second])
        run_updates(agent_with(network), random_batch(4, 8), 4)
        return networks.get_weights(second)

    assert np.array_equal(trained(0.9)[0], trained(0.9)[0])
    assert not np.array_equal(trained(0.0)[0], trained(0.9)[0])


def test_statistics_of_batch_normalization_are_trained_saved_and_undone(tmp_path: Any) -> None:
    network = keras_network(keras.layers.BatchNormalization())
    agent, batch = agent_with(network), random_batch(6, 8)
    normalization = network.layers[0]
    agent.build()
    start = copied(agent.get_state())
    run_updates(agent, batch, 6)
    assert np.abs(networks.get_weights(network)[2]).max() > 0
    end = copied(agent.get_state())
    agent.set_state(start)
    for first in range(0, 6, 2):
        run_updates(agent, part(batch, first, first + 2), 2)
    assert differences(end, agent.get_state()) == []
    agent.set_state(start)
    run_updates(agent, part(batch, 0, 3), 3)
    agent.save_weights(tmp_path / "weights.safetensors")
    middle = copied(agent.get_state())
    batch.reward[3] = np.nan
    assert int(run_updates(agent, part(batch, 3, 6), 3).applied) == 0
    assert differences(middle, agent.get_state()) == []
    run_updates(agent, random_batch(2, 8), 2)
    agent.load_weights(tmp_path / "weights.safetensors")
    assert np.array_equal(keras.ops.convert_to_numpy(normalization.moving_mean), middle["variables"]["q"][2])

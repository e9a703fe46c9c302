"""Networks of one's own with an input for each part of a Dict observation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import networks

SPACE = spaces.Dict(
    {
        "eye": spaces.Box(0, 255, (6, 6, 1), np.uint8),
        "gear": spaces.Discrete(3),
        "inner": spaces.Dict({"speed": spaces.Box(-1, 1, (2,))}),
    }
)
SIZE = 36 + 3 + 2


class DictEnv(gymnasium.Env):
    observation_space = SPACE

    def __init__(self, actions: spaces.Space[Any]) -> None:
        self.action_space = actions

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 1.0, False, bool(self.np_random.random() < 0.2), {}


def discrete() -> DictEnv:
    return DictEnv(spaces.Discrete(4))


def continuous() -> DictEnv:
    return DictEnv(spaces.Box(-1, 1, (2,)))


def model(outputs: int, actions: int = 0) -> Any:
    """Return a Keras model of a dict, with a convolution for the image."""
    inputs: dict[str, Any] = {
        "eye": keras.Input((6, 6, 1), name="eye"),
        "gear": keras.Input((3,), name="gear"),
        "inner": {"speed": keras.Input((2,), name="speed")},
    }
    eye = keras.layers.Flatten()(keras.layers.Conv2D(2, 3, data_format="channels_last")(inputs["eye"]))
    joined = [eye, inputs["gear"], inputs["inner"]["speed"]]
    if actions:
        inputs["action"] = keras.Input((actions,), name="action")
        joined.append(inputs["action"])
    return keras.Model(inputs, keras.layers.Dense(outputs)(keras.layers.Concatenate()(joined)))


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(0, 9, (count, SIZE)).astype(np.float32)


def test_network_receives_the_parts_of_the_vector() -> None:
    own = model(4)
    network = networks.multi_input(own, SPACE)
    vector = rows(5)
    parts = {"eye": vector[:, :36].reshape(5, 6, 6, 1), "gear": vector[:, 36:39], "inner": {"speed": vector[:, 39:]}}
    convert = keras.ops.convert_to_numpy
    np.testing.assert_allclose(convert(network(vector)), convert(own(parts)), rtol=1e-6)
    copied = networks.clone(network)
    np.testing.assert_allclose(convert(copied(vector)), convert(own(parts)), rtol=1e-6)
    assert [weight.shape for weight in networks.get_weights(network)] == [
        weight.shape for weight in networks.get_weights(own)
    ]


@pytest.mark.backends("torch")
def test_agent_learns_with_a_network_of_several_inputs() -> None:
    agent = noterl.DQN(discrete, network=networks.multi_input(model(4), SPACE), seed=1)
    agent.compile(replay=noterl.Replay(16), batch_size=4, learning_starts=4, update_every=2, updates=1)
    before = agent.get_weights()
    agent.fit(steps=10, verbose=0)
    after = agent.get_weights()
    assert agent.updates > 0
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    restored = noterl.DQN(discrete, network=networks.multi_input(model(4), SPACE), seed=2)
    restored.compile(replay=noterl.Replay(16), batch_size=4, learning_starts=4, update_every=2, updates=1)
    restored.set_state(agent.get_state())
    observation = discrete().reset(seed=3)[0]
    assert restored.act(observation) == agent.act(observation)


def test_critic_of_several_inputs_receives_the_action() -> None:
    critics = [networks.multi_input(model(1, actions=2), SPACE, actions=2) for _ in range(2)]
    actor = networks.multi_input(model(4), SPACE)
    agent = noterl.SAC(continuous, network=[actor, *critics], seed=1)
    agent.compile(replay=noterl.Replay(16), batch_size=4, learning_starts=4)
    agent.fit(steps=6, verbose=0)
    assert agent.updates > 0


@pytest.mark.backends("torch")
def test_module_of_torch_receives_the_parts() -> None:
    import torch

    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.nn.LazyLinear(4)

        def forward(self, parts: dict[str, Any]) -> Any:
            assert parts["eye"].shape[1:] == (6, 6, 1) and parts["inner"]["speed"].shape[1:] == (2,)
            return self.last(torch.cat([parts["eye"].flatten(1) / 255, parts["gear"]], dim=-1))

    agent = noterl.DQN(discrete, network=networks.multi_input(Own(), SPACE), seed=1)
    agent.compile(replay=noterl.Replay(16), batch_size=4, learning_starts=4, update_every=2, updates=1)
    agent.fit(steps=10, verbose=0)
    assert agent.updates > 0


@pytest.mark.backends("torch")
def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="space must be a Dict"):
        networks.multi_input(model(4), spaces.Box(-1, 1, (2,)))
    with pytest.raises(ValueError, match="actions"):
        networks.multi_input(model(4), SPACE, actions=-1)
    with pytest.raises(ValueError, match='named "action"'):
        networks.multi_input(model(4), spaces.Dict({"action": spaces.Discrete(2)}), actions=2)
    with pytest.raises(ValueError, match="multi_input"):
        noterl.DQN(discrete, network=model(4))


@pytest.mark.backends("jax")
def test_default_network_can_be_saved_by_keras(tmp_path: Path) -> None:
    space = spaces.Dict({"bytes": spaces.Box(0, 255, (4,), np.uint8), "speed": spaces.Box(-1, 1, (2,))})
    agent = noterl.DQN((space, spaces.Discrete(3)), hidden=(4,), dueling=True, seed=1)
    agent.q.save(tmp_path / "q.keras")
    loaded = keras.models.load_model(tmp_path / "q.keras")
    rows = np.random.default_rng(0).random((3, 6), np.float32)
    assert np.array_equal(np.asarray(agent.q(rows)), np.asarray(loaded(rows)))

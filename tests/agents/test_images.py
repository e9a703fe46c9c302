"""Images: which network the algorithms build for them, and that pixels are scaled."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from keras import ops

import noterl
from noterl import networks
from noterl.learning.update import add_random_numbers
from tests.support.batches import random_batch
from tests.support.parts import run_updates
from tests.support.representatives import representatives

pytestmark = pytest.mark.backends("torch")

DISCRETE, BOX = spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,), np.float32)
OFF_POLICY = {"SAC": BOX, "TD3": BOX, "DDPG": BOX}
AGENTS: dict[str, Any] = {"DQN": DISCRETE, "PPO": DISCRETE, "A2C": BOX, "ACER": DISCRETE, **OFF_POLICY}
SHAPES = [(36, 37, 3), (3, 36, 37), (36, 37), (3, 36, 37, 1)]


def pixels(shape: tuple[int, ...], dtype: Any = np.uint8, high: float = 255) -> spaces.Box:
    return spaces.Box(0, high, shape, dtype)


def build(name: str, space: spaces.Box, **arguments: Any) -> Any:
    return getattr(noterl, name)((space, AGENTS[name]), seed=1, **arguments)


def fetched(network: Any, inputs: np.ndarray) -> np.ndarray:
    return ops.convert_to_numpy(network(ops.convert_to_tensor(inputs)))


def has_layers(network: Any) -> bool:
    return len(networks.variables(network)) > 1  # a learned temperature has only one


@pytest.mark.parametrize("name", AGENTS)
def test_images_of_bytes_and_of_floats_get_convolutions(name: str) -> None:
    for space in (pixels((36, 36, 2)), pixels((36, 36, 2), np.float32, 1)):
        found = build(name, space).networks().values()
        assert all(networks.get_weights(network)[0].shape == (8, 8, 2, 32) for network in found if has_layers(network))


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("shape", representatives([(shape,) for shape in SHAPES], ((3, 36, 37, 1),)))
def test_images_of_all_shapes_have_the_same_outputs(shape: tuple[int, ...]) -> None:
    channels = 1 if len(shape) == 2 else 3
    images = np.random.default_rng(0).integers(0, 256, (2, 36, 37, channels), dtype=np.uint8)
    inputs = (images if shape[-1] == 3 else np.moveaxis(images, -1, 1)).reshape(2, *shape)
    first, last = networks.nature_cnn(shape, 4), networks.nature_cnn((36, 37, channels), 4)
    networks.set_weights(first, networks.get_weights(last))
    np.testing.assert_allclose(fetched(first, inputs), fetched(last, images), rtol=1e-4, atol=1e-6)
    assert networks.is_image_shape(shape)


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("shape", [(128,), (8, 8), (5, 6, 3)])
def test_bytes_for_dense_layers_are_divided_by_255(name: str, shape: tuple[int, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        agent, floats = build(name, pixels(shape), hidden=(4,)), build(name, pixels(shape, np.float32, 1), hidden=(4,))
    observations = np.random.default_rng(0).integers(0, 256, (5, *shape), dtype=np.uint8)
    ours, theirs = agent.networks(), floats.networks()
    for key in ours:
        if not has_layers(ours[key]):
            continue
        networks.set_weights(theirs[key], networks.get_weights(ours[key]))
        inputs, scaled = observations, (observations / 255).astype(np.float32)
        if "critic" in key and name in OFF_POLICY:
            actions = np.ones((5, 2), np.float32)
            flat = [np.hstack([part.reshape(5, -1).astype(np.float32), actions]) for part in (inputs, scaled)]
            inputs, scaled = flat
        np.testing.assert_allclose(fetched(ours[key], inputs), fetched(theirs[key], scaled), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OFF_POLICY)
def test_critic_of_images_receives_pixels_and_actions(name: str) -> None:
    agent = build(name, pixels((36, 36, 1)), hidden=())
    critic = agent.critic if name == "DDPG" else agent.critics[0]
    image = np.random.default_rng(0).integers(0, 256, (1, 36 * 36)).astype(np.float32)
    rows = [
        np.hstack([image * share, [[action, 0.0]]]).astype(np.float32) for share, action in ((1, 0), (0, 0), (1, 1))
    ]
    values = [float(fetched(critic, row)[0, 0]) for row in rows]
    assert len(set(values)) == 3 and max(map(abs, values)) < 5


@pytest.mark.backends("jax", "torch")
@pytest.mark.parametrize("name", representatives(OFF_POLICY, "DDPG"))
def test_updates_on_images_train_all_networks(name: str) -> None:
    env = (pixels((36, 36, 1)), BOX)
    agent = getattr(noterl, name)(env, hidden=(4,), seed=1)
    agent.compile(replay=noterl.Replay(8), batch_size=2, learning_starts=0, target_update=0.5)
    agent.build()
    before = agent.get_weights()
    run_updates(agent, add_random_numbers(agent, random_batch(2, 2, env), 2), 2)
    after = agent.get_weights()
    changed = {key.rpartition("/")[0] for key in before if not np.array_equal(before[key], after[key])}
    assert changed == {key.rpartition("/")[0] for key in before}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", AGENTS)
def test_flattened_images_warn(name: str) -> None:
    with pytest.warns(UserWarning, match=r"\(10, 10, 3\)"):
        build(name, pixels((10, 10, 3)), hidden=(4,))


@pytest.mark.parametrize("name", ["SAC", "IQL"])
def test_options_of_the_layers_of_critics_are_used(name: str) -> None:
    options: dict[str, Any] = {"hidden": (7,), "layer_norm": True, "dropout": 0.5, "seed": 1}
    critic = getattr(noterl, name)((pixels((36, 36, 2)), DISCRETE), **options).critics[0]
    kinds = [type(module).__name__ for module in critic]
    assert kinds[-5:] == ["Linear", "Dropout", "LayerNorm", "ReLU", "Linear"]


def test_critics_of_a_memory_have_hidden_layers_for_box_actions_only() -> None:
    options: dict[str, Any] = {"hidden": (7,), "recurrent": "gru", "recurrent_units": 4, "seed": 1}
    for space, shape in ((BOX, (4 + 2, 7)), (DISCRETE, (4, 3))):
        critic = noterl.SAC((pixels((36, 36, 2)), space), **options).critics[0]
        assert networks.get_weights(critic.parts["output"])[0].shape == shape
    with pytest.raises(ValueError, match="layer_norm and dropout must be left out with recurrent, images and Discrete"):
        noterl.SAC((pixels((36, 36, 2)), DISCRETE), layer_norm=True, **options)


def test_normalized_bytes_are_not_scaled() -> None:
    agent = build("DQN", pixels((128,)), hidden=(4,), normalize_observation=True)
    plain = networks.mlp(128, [4], 3)
    networks.set_weights(plain, networks.get_weights(agent.q))
    inputs = np.random.default_rng(0).normal(size=(3, 128)).astype(np.float32)
    np.testing.assert_allclose(fetched(agent.q, inputs), fetched(plain, inputs), rtol=1e-5)


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_maddpg_scales_bytes_for_actors_and_critics() -> None:
    def team(space: spaces.Box) -> Any:
        return noterl.MADDPG((spaces.Tuple([space, space]), spaces.Tuple([DISCRETE, BOX])), hidden=(4,), seed=1)

    agent, floats = team(pixels((6,))), team(pixels((6,), np.float32, 1))
    floats.set_weights(agent.get_weights())
    rng = np.random.default_rng(0)
    observations = [rng.integers(0, 256, (5, 6)).astype(np.float32) for _ in range(2)]
    scaled = [part / 255 for part in observations]
    actions, present = [np.ones((5, 3), np.float32), np.ones((5, 2), np.float32)], [np.ones(5, np.float32)] * 2
    tensor, array = ops.convert_to_tensor, ops.convert_to_numpy
    for index in range(2):
        found = [
            array(
                one._q(
                    one.critics, index, list(map(tensor, parts)), list(map(tensor, actions)), list(map(tensor, present))
                )
            )
            for one, parts in ((agent, observations), (floats, scaled))
        ]
        np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6)
        forward = [
            array(one.forward(tensor(parts[index]), index)) for one, parts in ((agent, observations), (floats, scaled))
        ]
        np.testing.assert_allclose(*forward, rtol=1e-4, atol=1e-6)


MIXED = spaces.Dict(
    {"eye": pixels((36, 36, 1)), "gear": spaces.Discrete(3), "memory": pixels((5,)), "speed": spaces.Box(-1, 1, (2,))}
)


def mixed(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "eye": rng.integers(0, 256, (count, 36, 36, 1), dtype=np.uint8),
        "gear": rng.integers(3, size=count),
        "memory": rng.integers(0, 256, (count, 5), dtype=np.uint8),
        "speed": rng.uniform(-1, 1, (count, 2)).astype(np.float32),
    }


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.backends("torch")
def test_dict_with_an_image_gets_convolutions_and_scaled_bytes(name: str) -> None:
    agent = build(name, MIXED, hidden=(8,))
    for key, network in agent.networks().items():
        weights = networks.get_weights(network)
        if has_layers(network):
            features = 256 + 3 + 5 + 2 + (2 if "critic" in key and name in OFF_POLICY else 0)
            assert weights[0].shape == (8, 8, 1, 32) and (features, 8) in [weight.shape for weight in weights]
    observation = mixed(4)
    whole = agent.act(observation)
    assert np.shape(whole)[0] == 4
    for part in ("eye", "memory"):
        encoded = [agent.spaces.encoder({**observation, part: observation[part] * share}) for share in (0, 1)]
        values = [fetched(agent.forward, array) for array in encoded]
        assert not np.array_equal(*values) and np.abs(values[1] - values[0]).max() < 10


@pytest.mark.backends("torch")
def test_agent_learns_from_a_dict_with_images() -> None:
    class MixedEnv(gymnasium.Env):
        observation_space, action_space = MIXED, DISCRETE

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
            super().reset(seed=seed)
            return {key: array[0] for key, array in mixed(1).items()}, {}

        def step(self, action: Any) -> Any:
            return {key: array[0] for key, array in mixed(1).items()}, 1.0, False, True, {}

    agent = noterl.DQN(MixedEnv, hidden=(8,), dueling=True, seed=1)
    agent.compile(replay=noterl.Replay(16), batch_size=4, learning_starts=4, update_every=2, updates=1)
    before = agent.get_weights()["q/000"].copy()
    agent.fit(steps=10, verbose=0)
    assert agent.updates > 0 and not np.array_equal(before, agent.get_weights()["q/000"])


def test_critics_of_maddpg_get_convolutions() -> None:
    image = pixels((36, 36, 1))
    team = spaces.Tuple([image, spaces.Box(-1, 1, (2,))]), spaces.Tuple([DISCRETE, BOX])
    agent = noterl.MADDPG(team, hidden=(4,), seed=1)
    for critic in agent.critics:
        kernels = [weight.shape for weight in networks.get_weights(critic) if weight.ndim > 1]
        assert [shape for shape in kernels if len(shape) == 4] == [(8, 8, 1, 32), (4, 4, 32, 64), (3, 3, 64, 64)]
        assert kernels[-2:] == [(256 + 2 + sum(agent.action_size), 4), (4, 1)]
    agent.compile(replay=noterl.Replay(20), batch_size=4)
    agent.build()


@pytest.mark.backends("torch")
def test_own_critics_of_maddpg_receive_scaled_bytes() -> None:
    team = spaces.Tuple([pixels((6,)), pixels((6,))]), spaces.Tuple([DISCRETE, BOX])
    size = 12 + sum(noterl.MADDPG(team, hidden=(4,)).action_size)
    agent = noterl.MADDPG(team, network=(None, [networks.mlp(size, [4], 1) for _ in range(2)]), hidden=(4,), seed=1)
    assert all(np.allclose(scale, 1 / 255) for scale in agent.scales)

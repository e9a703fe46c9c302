"""Networks passed to built-in agents, and the heads of user-defined agents: which fit, and which raise."""

from __future__ import annotations

from typing import Any

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium import spaces
from keras import ops

import noterl
from noterl import heads, losses, networks
from noterl.learning.gradient_noise import noise_batch
from noterl.noise import GaussianWhiteNoiseProcess
from tests.support.doubles import RandomWalkEnv
from tests.support.parts import learner_of

BOX = spaces.Box(-1.0, 1.0, (3,))


class Deterministic(noterl.Agent):
    """A user-defined agent with deterministic continuous actions."""

    memory, head, optimizer_names = "replay", heads.Deterministic(), ("actor", "critic")

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.actor = networks.mlp(self.observation_size, [4], self.action_size)
        self.critic = networks.mlp(self.observation_size + self.action_size, [4], 1)
        self.gamma = self.hyperparameter("gamma", 0.9)

    def forward(self, observation: Any) -> Any:
        return self.actor(observation)

    def update(self, batch: Any) -> Any:
        critic, feedback = self.minimize(self.critic_loss, self.critic, "critic", batch)
        self.minimize(self.actor_loss, self.actor, "actor", batch)
        return {"loss": critic}, feedback

    def value(self, observation: Any, action: Any) -> Any:
        return self.critic(ops.concatenate([observation, action], axis=-1))[:, 0]

    def critic_loss(self, batch: Any) -> Any:
        next_value = self.value(batch.next_observation, self.head.act(self.actor(batch.next_observation)))
        error = self.value(batch.observation, batch.action) - losses.td_target(batch.reward, batch.discount, next_value)
        return ops.mean(ops.square(error)), {"td_error": error}

    def actor_loss(self, batch: Any) -> Any:
        return -ops.mean(self.value(batch.observation, self.head.act(self.actor(batch.observation))))


@pytest.mark.backends("torch")
def test_user_agent_supports_the_action_spaces_of_its_head() -> None:
    agent = Deterministic(RandomWalkEnv, seed=1)
    agent.compile(noise=GaussianWhiteNoiseProcess(sigma=0.1, size=1), batch_size=4, learning_starts=8)
    agent.fit(steps=12, verbose=0)
    assert agent.updates > 0
    for head, action in ((heads.Gaussian(), BOX), (heads.Categorical(), spaces.MultiDiscrete([2, 3]))):
        kind = type("Mine", (noterl.Agent,), {"head": head})
        assert kind((BOX, action)).head.size in (6, 5)
    with pytest.raises(ValueError, match=r"head Q .*Discrete.*got Box"):
        type("Mine", (noterl.Agent,), {"head": heads.Q()})((BOX, BOX))


def small(inputs: int, outputs: int) -> Any:
    return networks.mlp(inputs, [4], outputs)


@pytest.mark.parametrize(
    ("kind", "action", "network"),
    [
        (noterl.PPO, BOX, lambda: small(3, 3)),  # means without deviations
        (noterl.PPO, BOX, lambda: (None, small(3, 2))),
        (noterl.A2C, spaces.Discrete(2), lambda: small(3, 3)),
        (noterl.DQN, spaces.Discrete(2), lambda: small(3, 3)),
        (noterl.DQN, spaces.Discrete(2), lambda: small(4, 2)),
        (noterl.SAC, spaces.Discrete(2), lambda: small(3, 5)),
        (noterl.TD3, BOX, lambda: small(3, 1)),
        (noterl.DDPG, BOX, lambda: (None, small(5, 1))),
    ],
)
def test_network_that_does_not_fit_raises(kind: Any, action: Any, network: Any) -> None:
    with pytest.raises(ValueError, match=rf"network .*{kind.__name__}"):
        kind((BOX, action), network=network(), seed=1)


def test_networks_of_several_agents_are_checked() -> None:
    team = spaces.Tuple([BOX, BOX]), spaces.Tuple([spaces.Discrete(2)] * 2)
    actors, critics = [small(3, 2), small(3, 2)], [small(10, 1), small(10, 1)]
    noterl.MADDPG(team, network=(actors, critics), seed=1)
    for wrong in (([small(3, 2), small(3, 3)], critics), (actors, [small(10, 1), small(9, 1)])):
        with pytest.raises(ValueError, match=r"network .*MADDPG"):
            noterl.MADDPG(team, network=wrong, seed=1)


def test_check_of_a_network_changes_nothing() -> None:
    network = small(3, 2)
    before = networks.get_weights(network)
    agent = noterl.DQN((BOX, spaces.Discrete(2)), network=network, seed=1)
    assert agent.schedule is None and agent.trace_counts.total() == 0
    assert all((old == new).all() for old, new in zip(before, networks.get_weights(network), strict=True))
    plain = noterl.DQN((BOX, spaces.Discrete(2)), hidden=(4,), seed=1)
    assert agent.generators.get_state() == plain.generators.get_state()


@pytest.mark.backends("torch")
class TestTorch:
    """Modules whose weights are not there yet, compiled modules and schedulers."""

    def test_lazy_layers_get_their_shapes(self) -> None:
        from torch import nn

        def lazy(outputs: int) -> Any:
            return nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(outputs))

        box = BOX, spaces.Box(-1.0, 1.0, (2,))
        agent = noterl.TD3(box, network=(lazy(2), lazy(1), lazy(1)), seed=1)
        assert [tuple(weight.shape) for weight in agent.critics[0].parameters()] == [(4, 5), (4,), (1, 4), (1,)]
        pairs = zip(agent.actor.parameters(), agent.target_actor.parameters(), strict=True)
        assert all((ours == theirs).all() for ours, theirs in pairs)
        dqn = noterl.DQN((BOX, spaces.Discrete(2)), network=lazy(2), seed=1)
        again = noterl.DQN((BOX, spaces.Discrete(2)), network=lazy(2), seed=1)
        dqn.build()
        assert {name: array.shape for name, array in dqn.get_weights().items()} == {
            name: array.shape for name, array in again.get_weights().items()
        }

    def test_lazy_layers_in_a_class_of_the_user_raise_a_hint(self) -> None:
        from torch import nn

        with pytest.raises(ValueError, match=r"network LazyLinear .*call it once"):
            networks.clone(nn.LazyLinear(3))

    @pytest.mark.parametrize("kind", [noterl.PPO, noterl.IQN])
    def test_batch_normalization_needs_no_second_row(self, kind: Any) -> None:
        from torch import nn

        class Pair(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.features = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8))
                self.policy, self.value = nn.Linear(8, 2), nn.Linear(8, 1)

            def forward(self, observation: Any) -> Any:
                features = self.features(observation)
                return self.policy(features), self.value(features)

        network = Pair() if kind is noterl.PPO else nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8))
        agent = kind((BOX, spaces.Discrete(2)), network=network, seed=1)
        agent.compile(batch_size=8)
        agent.build()

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, which torch.compile imports
    def test_compiled_module_raises(self) -> None:
        import torch

        compiled = torch.compile(small(3, 2))
        with pytest.raises(ValueError, match=r"^network .*torch\.compile"):
            noterl.DQN((BOX, spaces.Discrete(2)), network=compiled)

    def test_scheduler_raises(self) -> None:
        import torch

        agent = noterl.DQN((BOX, spaces.Discrete(2)), hidden=(4,), seed=1)
        optimizer = torch.optim.Adam(agent.q.parameters())
        for scheduler in (
            torch.optim.lr_scheduler.StepLR(optimizer, 10),
            torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
        ):
            with pytest.raises(ValueError, match=rf"^optimizer .*{type(scheduler).__name__}"):
                agent.compile(scheduler)

    def test_weights_are_exported_under_the_names_of_torch(self, tmp_path: Any) -> None:
        import torch
        from safetensors.torch import load_file

        agent = noterl.PPO((BOX, spaces.Discrete(2)), hidden=(4,), normalize_observation=True, seed=1)
        agent.save_weights(tmp_path / "torch.safetensors", layout="torch")
        found = load_file(tmp_path / "torch.safetensors")
        for name in ("actor", "critic"):
            module = getattr(agent, name)
            own = {key.removeprefix(f"{name}."): value for key, value in found.items() if key.startswith(f"{name}.")}
            fresh = networks.clone(module)
            with torch.no_grad():
                for parameter in fresh.parameters():
                    parameter.zero_()
            fresh.load_state_dict(own)
            pairs = zip(module.parameters(), fresh.parameters(), strict=True)
            assert all((ours == theirs).all() for ours, theirs in pairs)
        assert any(name.startswith("normalizers/") for name in found)


@pytest.mark.backends("jax", "tensorflow")
def test_layout_of_torch_needs_modules_of_torch(tmp_path: Any) -> None:
    agent = noterl.DQN((BOX, spaces.Discrete(2)), hidden=(4,), seed=1)
    with pytest.raises(ValueError, match=r"layout must be 'keras'.*'q'"):
        agent.save_weights(tmp_path / "a.safetensors", layout="torch")
    with pytest.raises(ValueError, match=r"layout must .*'onnx'"):
        agent.save_weights(tmp_path / "a.safetensors", layout="onnx")
    assert not list(tmp_path.iterdir())


class Integers(gymnasium.Env[Any, Any]):
    """Has observations of a dtype that networks do not take."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, dtype: str, high: int) -> None:
        self.observation_space = gymnasium.spaces.Box(0, high, (3,), np.dtype(dtype).type)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.high, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.high, 1.0, True, False, {}


@pytest.mark.parametrize(
    ("dtype", "high", "on_device"),
    [
        ("int16", 100, False),
        ("int16", 100, True),
        ("float16", 100, False),
        ("float16", 100, True),
        ("int64", 2**40, False),
    ],
)
@pytest.mark.filterwarnings("ignore:Replay.on_device=True. changes nothing")
def test_updates_and_acting_have_the_same_observations(dtype: str, high: int, on_device: bool) -> None:
    agent = noterl.DQN(lambda: Integers(dtype, high), hidden=(4,), seed=1)
    agent.compile(replay=noterl.Replay(20, on_device=on_device), batch_size=4, learning_starts=4, update_every=4)
    agent.fit(steps=8, verbose=0)
    learner = learner_of(agent)
    batch = noise_batch(learner, 1, np.random.default_rng(1))
    for observations in (batch.observation, batch.next_observation):
        assert keras.backend.standardize_dtype(observations.dtype) == "float32"
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(observations), np.float32(high))


def test_long_ints_stay_on_the_host() -> None:
    agent = noterl.DQN(lambda: Integers("int64", 2**40), hidden=(4,), seed=1)
    agent.compile(replay=noterl.Replay(20, on_device=True), batch_size=4)
    with pytest.raises(ValueError, match="on_device must"):
        agent.fit(steps=1, verbose=0)


@pytest.mark.backends("torch")
def test_flags_of_the_default_network_are_refused_beside_an_own_one() -> None:
    with pytest.raises(ValueError, match="dueling must be False"):
        noterl.DQN("CartPole-v1", dueling=True, network=networks.mlp(4, [4], 2))
    pair = networks.mlp(4, [4], 2), networks.mlp(4, [4], 1)
    for kind in (noterl.PPO, noterl.A2C):
        with pytest.raises(ValueError, match="shared must be False"):
            kind("CartPole-v1", shared=True, network=pair)
        kind("CartPole-v1", network=pair)


@pytest.mark.backends("jax")
def test_regularizers_without_effect_warn() -> None:
    layers = [keras.Input((3,)), keras.layers.Dense(2, kernel_regularizer=keras.regularizers.L2(0.1))]
    with pytest.warns(UserWarning, match=r"^network .*regularizers.*weight_decay"):
        noterl.DQN((BOX, spaces.Discrete(2)), network=keras.Sequential(layers))

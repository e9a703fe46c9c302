"""Behavior cloning: losses and updates equal NumPy references, and only the policy is trained."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import heads
from noterl.backends import current
from noterl.random import Generators
from noterl.types import Batch
from tests.support.demonstrations import CONTINUOUS, DISCRETE, OBSERVATIONS, demonstrations
from tests.support.representatives import representatives
from tests.support.states import assert_same_state, differences

RATE = 0.1


def tensor(value: Any) -> Any:
    return keras.ops.convert_to_tensor(value)


def log_softmax(values: np.ndarray) -> np.ndarray:
    return values - np.log(np.exp(values).sum(axis=-1, keepdims=True))


def large_margin(values: np.ndarray, action: np.ndarray) -> np.ndarray:
    taken = values[np.arange(len(values)), action]
    rivals = values + 0.8 * (np.arange(values.shape[1]) != action[:, None])
    return rivals.max(axis=1) - taken


def gaussian(values: np.ndarray, action: np.ndarray) -> np.ndarray:
    mean, log_std = np.split(values, 2, axis=1)
    error = (action - mean) / np.exp(log_std)
    return (0.5 * error**2 + log_std + 0.5 * np.log(2 * np.pi)).sum(axis=1)


def scaled(action: np.ndarray) -> np.ndarray:
    return (action - [0.0, 0.5]) / [2.0, 0.5]


def squashed(values: np.ndarray, action: np.ndarray) -> np.ndarray:
    inside = np.clip(scaled(action), -0.999, 0.999)
    values = np.concatenate([values[:, :2], np.clip(values[:, 2:], -20, 2)], axis=1)
    return gaussian(values, np.arctanh(inside)) + np.log(1 - inside**2).sum(axis=1)


# Head, action space, number of outputs, and the reference of the loss.
LOSSES: dict[str, tuple[Any, Any, int, Any]] = {
    "Q": (heads.Q(), spaces.Discrete(3), 3, large_margin),
    "Categorical": (
        heads.Categorical(),
        spaces.Discrete(3),
        3,
        lambda values, action: -log_softmax(values)[np.arange(len(values)), action],
    ),
    "PolicyValue": (
        heads.PolicyValue(),
        spaces.Discrete(3),
        4,
        lambda values, action: -log_softmax(values[:, :3])[np.arange(len(values)), action],
    ),
    "MultiDiscrete": (
        heads.Categorical(),
        spaces.MultiDiscrete([2, 3]),
        5,
        lambda values, action: (
            -(
                log_softmax(values[:, :2])[np.arange(len(values)), action[:, 0]]
                + log_softmax(values[:, 2:])[np.arange(len(values)), action[:, 1]]
            )
        ),
    ),
    "Bernoulli": (
        heads.Bernoulli(),
        spaces.MultiBinary(3),
        3,
        lambda values, action: np.logaddexp(0, (1 - 2 * action) * values).sum(axis=1),
    ),
    "Gaussian": (heads.Gaussian(), CONTINUOUS, 4, gaussian),
    "SquashedGaussian": (heads.SquashedGaussian(), CONTINUOUS, 4, squashed),
    "Deterministic": (
        heads.Deterministic(),
        CONTINUOUS,
        2,
        lambda values, action: np.square(np.tanh(values) - scaled(action)).mean(axis=1),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_of_each_head_equals_the_reference(name: str) -> None:
    head, space, outputs, reference = LOSSES[name]
    rng = np.random.default_rng(1)
    values = rng.normal(size=(16, outputs)).astype(np.float32)
    space.seed(1)
    action = np.stack([space.sample() for _ in range(16)])
    if isinstance(space, spaces.Box):
        action[:2] = space.low, space.high  # where the tanh has no inverse
    loss = head.bind(space).cloning_loss(tensor(values), tensor(action))
    expected = reference(values.astype(np.float64), action.astype(np.float64 if space is CONTINUOUS else np.int64))
    np.testing.assert_allclose(current().fetch(loss), expected, rtol=1e-4, atol=1e-5)


def linear(action_space: Any, kind: Any, **options: Any) -> Any:
    return kind((OBSERVATIONS, action_space), hidden=(), seed=3, **options)


def test_updates_equal_the_reference() -> None:
    agent, data = linear(spaces.Discrete(3), noterl.PPO), demonstrations(spaces.Discrete(3))
    kernel, bias = (np.array(weight, np.float64) for weight in noterl.networks.get_weights(agent.actor))
    losses = agent.pretrain(data, 5, batch_size=4, optimizer=keras.optimizers.SGD(RATE), verbose=0)["loss"]
    observations, actions = data.pairs()
    rows = (Generators(3)("pretrain").random((5, 4)) * len(data)).astype(np.int64)
    for k in range(5):
        inputs, taken = observations[rows[k]].astype(np.float64), np.eye(3)[actions[rows[k]]]
        log_policy = log_softmax(inputs @ kernel + bias)
        np.testing.assert_allclose(losses[k], -(taken * log_policy).sum(axis=1).mean(), rtol=1e-4)
        error = (np.exp(log_policy) - taken) / 4
        kernel, bias = kernel - RATE * inputs.T @ error, bias - RATE * error.sum(axis=0)
    for actual, expected in zip(noterl.networks.get_weights(agent.actor), (kernel, bias), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-6)


# Kind, action space, arguments, and the networks that pretraining changes.
AGENTS: dict[str, tuple[Any, Any, dict[str, Any], set[str]]] = {
    "DQN": (noterl.DQN, DISCRETE, {}, {"q", "target_q"}),
    "PPO with Box actions": (noterl.PPO, CONTINUOUS, {}, {"actor"}),
    "PPO with a shared trunk": (noterl.PPO, DISCRETE, {"shared": True}, {"actor", "critic"}),
    "TD3": (noterl.TD3, CONTINUOUS, {}, {"actor", "target_actor"}),
    "SAC": (noterl.SAC, CONTINUOUS, {}, {"actor"}),
    "TRPO": (noterl.TRPO, CONTINUOUS, {}, {"actor"}),
    "TRPO with MultiBinary actions": (noterl.TRPO, spaces.MultiBinary(2), {}, {"actor"}),
    "ACER": (noterl.ACER, DISCRETE, {}, {"actor", "average_actor"}),
    "AlphaZero": (noterl.AlphaZero, DISCRETE, {}, {"network"}),
}
TARGETS = {
    noterl.DQN: ("q", "target_q"),
    noterl.TD3: ("actor", "target_actor"),
    noterl.ACER: ("actor", "average_actor"),
}


@pytest.mark.parametrize("name", representatives(AGENTS, "DQN"))
def test_pretraining_changes_the_policy_and_its_target_only(name: str) -> None:
    kind, action_space, options, changed = AGENTS[name]
    agent, data = kind((OBSERVATIONS, action_space), hidden=(6,), seed=3, **options), demonstrations(action_space)
    before = agent.get_state()
    losses = agent.pretrain(data, 30, batch_size=8, optimizer=1e-2, verbose=0)["loss"]
    assert len(losses) == 30 and np.mean(losses[-5:]) < np.mean(losses[:5])
    after = agent.get_state()
    moved = {
        key
        for key, weights in after["variables"].items()
        if not all(map(np.array_equal, weights, before["variables"][key]))
    }
    assert moved == changed
    if kind in TARGETS:
        for own, target in zip(*(after["variables"][key] for key in TARGETS[kind]), strict=True):
            np.testing.assert_array_equal(own, target)
    for part in ("counters", "hyperparameters", "optimizers", "replay", "rollout"):
        assert not differences(before[part], after[part])
    assert agent.updates == 0


@pytest.mark.backends("torch")
def test_agent_acts_with_the_cloned_policy() -> None:
    agent, data = noterl.PPO((OBSERVATIONS, DISCRETE), hidden=(16,), seed=3), demonstrations(lengths=(12,))
    observations, actions = data.pairs()
    agent.act(observations)
    agent.pretrain(data, 400, batch_size=12, optimizer=1e-2, verbose=0)
    assert (agent.act(observations) == actions).all()


@pytest.mark.backends("torch")
def test_grouping_of_updates_continues_one_stream() -> None:
    agents = [linear(DISCRETE, noterl.PPO) for _ in range(2)]
    data = demonstrations()
    agents[0].pretrain(data, 300, batch_size=4, optimizer=keras.optimizers.SGD(RATE), verbose=0)
    for updates in (260, 40):
        agents[1].pretrain(data, updates, batch_size=4, optimizer=keras.optimizers.SGD(RATE), verbose=0)
    assert_same_state(*agents)


@pytest.mark.backends("torch")
def test_statistics_of_observations_start_with_the_demonstrations() -> None:
    agent, data = linear(DISCRETE, noterl.PPO, normalize_observation=True), demonstrations()
    agent.pretrain(data, 1, verbose=0)
    observations, _ = data.pairs()
    np.testing.assert_allclose(agent.spaces.normalizers.observation.mean, observations.mean(axis=0, dtype=np.float64))
    count = agent.spaces.normalizers.observation.count
    agent.pretrain(data, 1, verbose=0)
    assert agent.spaces.normalizers.observation.count == count == len(data)


@pytest.mark.backends("torch")
def test_verbosity_prints_the_final_loss(capsys: pytest.CaptureFixture[str]) -> None:
    agent = linear(DISCRETE, noterl.PPO)
    agent.pretrain(demonstrations(), 3, verbose=0)
    assert capsys.readouterr() == ("", "")
    losses = agent.pretrain(demonstrations(), 3, verbose=2)["loss"]
    assert capsys.readouterr().out.startswith("pretrain ended: 3 updates in ")
    assert len(losses) == 3
    agent.pretrain(demonstrations(), 3, verbose=1)
    out, err = capsys.readouterr()
    assert out.startswith("pretrain ended: 3 updates in ") and "3/3" in err


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"demonstrations": None}, "demonstrations must be"),
        ({"demonstrations": demonstrations(spaces.Discrete(5))}, "action_space"),
        ({"updates": 0}, "updates must be"),
        ({"batch_size": 2.5}, "batch_size must be"),
        ({"optimizer": "none"}, "optimizer"),
        ({"verbose": 3}, "verbose must be"),
    ],
)
def test_bad_argument_raises(change: dict[str, Any], message: str) -> None:
    agent = linear(DISCRETE, noterl.PPO)
    before = agent.get_state()
    with pytest.raises(ValueError, match=message):
        agent.pretrain(**{"demonstrations": demonstrations(), "updates": 2, "verbose": 0, **change})
    assert_same_state(agent, before)


@pytest.mark.backends("torch")
def test_several_agents_are_refused() -> None:
    env = spaces.Tuple([OBSERVATIONS] * 2), spaces.Tuple([CONTINUOUS] * 2)
    with pytest.raises(ValueError, match="demonstrations"):
        noterl.MADDPG(env, hidden=(4,), seed=3).pretrain(demonstrations(CONTINUOUS), 2)


class OwnHead(heads.Categorical):
    cloning_loss = heads.Head.cloning_loss


@pytest.mark.backends("torch")
def test_head_without_a_cloning_loss_raises() -> None:
    class Own(noterl.Agent):
        memory, head = "replay", OwnHead()

        def __init__(self, env: Any) -> None:
            super().__init__(env)
            self.net = noterl.networks.mlp(self.observation_size, [4], self.action_size)

        def forward(self, observation: Any) -> Any:
            return self.net(observation)

        def loss(self, batch: Batch) -> Any:
            return keras.ops.mean(self.net(batch.observation))

    with pytest.raises(ValueError, match="OwnHead"):
        Own((OBSERVATIONS, DISCRETE)).pretrain(demonstrations(), 2)


def test_schedule_of_the_learning_rate_is_followed_in_each_update() -> None:
    data = demonstrations(spaces.Discrete(3))
    changes = []
    for rate in (RATE, noterl.schedules.Linear(0.0, RATE, steps=1)):
        agent = linear(spaces.Discrete(3), noterl.PPO)
        before = noterl.networks.get_weights(agent.actor)[0]
        agent.pretrain(data, 3, batch_size=len(data), optimizer=keras.optimizers.SGD(rate), verbose=0)
        changes.append(np.abs(noterl.networks.get_weights(agent.actor)[0] - before).max())
    assert 0.4 * changes[0] < changes[1] < 0.9 * changes[0]  # two of three updates

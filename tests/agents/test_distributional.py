"""QRDQN, C51 and IQN: updates equal float64 references, and everything that DQN has works."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest

import noterl
from noterl import losses, networks
from noterl.backends import current
from noterl.policies import LinearEpsGreedyPolicy
from noterl.replay import Prioritized
from tests.support import reference_values as reference
from tests.support.batches import IMAGE, VECTOR, Corridor, random_batch, row
from tests.support.parts import actor_of, run_updates
from tests.support.representatives import representatives

torch_only = pytest.mark.backends("torch")
ACTIONS, HIDDEN = 3, (4, 3)
SMALL: dict[str, dict[str, Any]] = {
    "QRDQN": {"quantiles": 4},
    "C51": {"atoms": 5, "support": (-2, 2)},
    "IQN": {"fractions": 3, "acting_fractions": 4},
}
CASES = {
    **{name: (name, arguments) for name, arguments in SMALL.items()},
    **{f"{name}, double": (name, {**arguments, "double": True}) for name, arguments in SMALL.items()},
    "QRDQN, dueling": ("QRDQN", {**SMALL["QRDQN"], "dueling": True}),
    "C51, dueling": ("C51", {**SMALL["C51"], "dueling": True, "double": True}),
}


def make(name: str, env: Any = VECTOR, **arguments: Any) -> Any:
    agent = getattr(noterl, name)(env, **{"hidden": HIDDEN, "gamma": 0.9, "seed": 3, **arguments})
    replay = noterl.Replay(64, sampler=Prioritized())
    agent.compile(keras.optimizers.SGD(0.1), replay=replay, batch_size=6, target_update=500, learning_starts=0)
    agent.build()
    return agent


class Reference:
    """The loss of an agent and the feedback of each row, from the weights of its network and its target."""

    def __init__(self, agent: Any, batch: Any, target: list[np.ndarray], masks: np.ndarray) -> None:
        self.agent, self.batch, self.masks = agent, batch, masks
        self.target = [np.array(weight, np.float64) for weight in target]

    def atoms(self, observation: np.ndarray, weights: Any) -> np.ndarray:
        """Return the quantiles or logits `[Z, A]` of one observation."""
        agent, x = self.agent, np.array(observation, np.float64)[None]
        if "dueling" in agent.get_config():
            features = reference.relu(reference.mlp(x, weights[:2]))
            value, advantage = (reference.mlp(features, weights[start : start + 4]) for start in (2, 6))
            advantage = advantage.reshape(agent.num_atoms, ACTIONS)
            return value.T + advantage - advantage.mean(axis=1, keepdims=True)
        return reference.mlp(x, weights).reshape(agent.num_atoms, ACTIONS)

    def values(self, observation: np.ndarray, weights: Any) -> np.ndarray:
        """Return the action values `[A]`."""
        agent = self.agent
        if isinstance(agent, noterl.IQN):
            midpoints = (np.arange(agent.acting_fractions) + 0.5) / agent.acting_fractions
            return reference.implicit_quantiles(observation, midpoints, weights).mean(axis=0)
        atoms = self.atoms(observation, weights)
        if isinstance(agent, noterl.C51):
            support = np.linspace(*agent.support, agent.num_atoms)
            return np.array([reference.softmax(column) @ support for column in atoms.T])
        return atoms.mean(axis=0)

    def row_loss(self, index: int, weights: Any, chooser: Any) -> tuple[float, float]:
        """Return the loss and the feedback of a row."""
        agent, batch = self.agent, self.batch
        reward, discount, action = (float(batch.reward[index]), float(batch.discount[index]), batch.action[index])
        following = np.array(batch.next_observation[index], np.float64)
        observation = np.array(batch.observation[index], np.float64)
        best = np.argmax(np.where(self.masks[index], self.values(following, chooser), -np.inf))
        if isinstance(agent, noterl.IQN):
            fractions = batch.extra["fractions"][index].astype(np.float64)
            own = reference.implicit_quantiles(observation, fractions, weights)[:, action]
            others = batch.extra["target_fractions"][index].astype(np.float64)
            target = reference.implicit_quantiles(following, others, self.target)[:, best]
        else:
            own, target = self.atoms(observation, weights)[:, action], self.atoms(following, self.target)[:, best]
            fractions = (np.arange(agent.num_atoms) + 0.5) / agent.num_atoms
        if isinstance(agent, noterl.C51):
            support = np.linspace(*agent.support, agent.num_atoms)
            projected = reference.projection(reference.softmax(target), reward, discount, support)
            cross_entropy = -projected @ np.log(reference.softmax(own))
            positive = projected[projected > 0]
            return cross_entropy, cross_entropy + positive @ np.log(positive)
        target = reward + discount * target
        return reference.quantile_loss(own, target, fractions), abs(own.mean() - target.mean())

    def loss(self, weights: Any, chooser: Any) -> float:
        rows = range(len(self.batch.reward))
        return float(np.mean([self.batch.weight[i] * self.row_loss(i, weights, chooser)[0] for i in rows]))


@pytest.mark.parametrize("case", representatives(CASES, "QRDQN, double", "C51, dueling", "IQN"))
def test_update_equals_the_reference(case: str) -> None:
    name, arguments = CASES[case]
    agent = make(name, **arguments)
    state, rng = agent.get_state(), np.random.default_rng(0)
    for weights in state["variables"].values():
        for weight in weights:
            weight += rng.normal(scale=0.3, size=weight.shape).astype(np.float32)
    agent.set_state(state)
    batch, masks = random_batch(1, 6), rng.random((1, 6, ACTIONS)) < 0.7
    masks[..., 1] = True
    numbers = {field: rng.random((1, 6, 3)).astype(np.float32) for field in agent.random_spec}
    batch = batch._replace(extra={**numbers, "next_action_mask": masks})
    before, target = (networks.get_weights(network) for network in (agent.q, agent.target_q))
    truth = Reference(agent, row(batch, 0), target, masks[0])
    chooser = [np.array(weight, np.float64) for weight in (before if agent.double else target)]
    slopes = reference.gradients(lambda weights: truth.loss(weights, chooser), before)
    expected = truth.loss([np.array(weight, np.float64) for weight in before], chooser)
    feedback = [truth.row_loss(i, [np.array(w, np.float64) for w in before], chooser)[1] for i in range(6)]

    result = run_updates(agent, batch, 1)
    np.testing.assert_allclose(current().fetch(result.logs["loss"])[0], expected, rtol=1e-4)
    np.testing.assert_allclose(current().fetch(result.feedback["td_error"])[0], feedback, rtol=2e-4, atol=1e-5)
    for weight, old, slope in zip(networks.get_weights(agent.q), before, slopes, strict=True):
        np.testing.assert_allclose(weight, old - 0.1 * slope, rtol=1e-4, atol=2e-6)


def test_one_quantile_has_half_the_gradient_of_dqn() -> None:
    quantile, plain = make("QRDQN", quantiles=1), make("DQN", double=False)
    for source, target in ((plain.q, quantile.q), (plain.target_q, quantile.target_q)):
        networks.set_weights(target.parts["network"], networks.get_weights(source))
    plain.compile(**{**plain.compile_arguments, "optimizer": keras.optimizers.SGD(0.05)})
    plain.build()
    batch = random_batch(1, 6)
    for agent in (quantile, plain):
        run_updates(agent, batch, 1)
    for weight, expected in zip(networks.get_weights(quantile.q), networks.get_weights(plain.q), strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-7)


def test_projection_equals_the_algorithm_of_the_paper() -> None:
    rng = np.random.default_rng(1)
    support = np.linspace(-3, 5, 9)
    probability = rng.dirichlet(np.ones(9), 20)
    reward, discount = rng.normal(scale=4, size=20), rng.choice([0.0, 0.5, 0.97, 1.0], 20)
    reward[:3] = (1.0, -50.0, 50.0)  # exactly on an atom, and beyond both ends
    tensors = [keras.ops.convert_to_tensor(part.astype("float32")) for part in (probability, reward, discount, support)]
    result = current().fetch(losses.categorical_target(*tensors))
    expected = [reference.projection(*row, support) for row in zip(probability, reward, discount, strict=True)]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(result.sum(axis=1), 1.0, rtol=1e-5)


@torch_only
@pytest.mark.parametrize("name", SMALL)
def test_small_networks_act_in_numpy_and_images_have_their_own_sizes(name: str) -> None:
    assert actor_of(make(name)).forward.in_numpy
    image = getattr(noterl, name)(IMAGE, seed=1)
    sizes = {"QRDQN": (50, 200), "C51": (101, 51)}
    if name in sizes:
        assert (getattr(noterl, name)(VECTOR).num_atoms, image.num_atoms) == sizes[name]
    assert tuple(image.q(keras.ops.zeros((2, 36, 36, 2), "uint8")).shape) == (2, 3)
    assert image.defaults().capacity == 1_000_000


@torch_only
def test_default_support_is_that_of_the_paper_for_images() -> None:
    assert noterl.C51(IMAGE).q.support[[0, -1]].tolist() == [-10, 10]
    assert noterl.C51(VECTOR).q.support[[0, -1]].tolist() == [-100, 100]


@torch_only
@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("QRDQN", {"quantiles": 0}, "quantiles .*got 0"),
        ("QRDQN", {"loss": "huber"}, "loss must be left out with QRDQN"),
        ("C51", {"recurrent": "gru"}, "recurrent must be left out with C51, because its loss is that of single"),
        ("C51", {"atoms": 1}, "atoms .*got 1"),
        ("C51", {"support": (1, 1)}, r"support must be a pair .*got \(1, 1\)"),
        ("C51", {"support": 10}, "support must be a pair .*got 10"),
        ("IQN", {"fractions": 0}, "fractions .*got 0"),
        ("IQN", {"acting_fractions": 1.5}, r"acting_fractions .*got 1\.5"),
        ("IQN", {"dueling": True}, "dueling must be False for IQN"),
        ("QRDQN", {"network": keras.Sequential([keras.Input((5,)), keras.layers.Dense(7)])}, "network .*50 outputs"),
    ],
)
def test_bad_argument_raises_with_its_name(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(noterl, name)(VECTOR, **arguments).build()


@torch_only
def test_own_networks_are_wrapped() -> None:
    from torch import nn

    network = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4 * ACTIONS))
    agent = make("QRDQN", quantiles=4, network=network)
    assert agent.q.parts["network"] is network and actor_of(agent).forward.in_numpy
    encoder = nn.Sequential(nn.Linear(5, 7))
    assert tuple(make("IQN", network=encoder).q.features(keras.ops.zeros((2, 5))).shape) == (2, 7)


@torch_only
def test_targets_that_the_support_clips_are_logged_and_warned_of() -> None:
    agent = make("C51", atoms=5, support=(-1, 1))
    batch = random_batch(1, 6)._replace(reward=np.full((1, 6), 5.0, np.float32))
    assert current().fetch(run_updates(agent, batch, 1).logs["clipped"])[0] == 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent._counters.updates = 999
        agent.check_metrics({"clipped": 0.5})
    agent._counters.updates = 1_000
    with pytest.warns(UserWarning, match=r"support: for 1,000 updates, 50% .*\(-1, 1\)"):
        agent.check_metrics({"clipped": 0.5})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.check_metrics({"clipped": 0.5})  # once


@torch_only
@pytest.mark.parametrize("name", SMALL)
def test_policy_learns_the_corridor(name: str) -> None:
    agent = getattr(noterl, name)(Corridor, hidden=(32, 32), seed=4, **({"support": (-3, 3)} if name == "C51" else {}))
    agent.compile(
        keras.optimizers.Adam(3e-3), replay=noterl.Replay(2_000), policy=LinearEpsGreedyPolicy(1.0, 0.1, steps=400),
        batch_size=32, learning_starts=50, update_every=8, updates=8, target_update=40,
    )  # fmt: skip
    agent.fit(steps=900, verbose=0)
    assert agent.evaluate(episodes=20)["reward_mean"] > 0.75

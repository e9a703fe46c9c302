"""QRDQN, C51 and IQN: updates equal float64 references, and everything that DQN has works."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import noterl
from noterl import losses, networks
from noterl.backends import current
from noterl.learning.update import add_random_numbers
from noterl.policies import GreedyQPolicy, LinearEpsGreedyPolicy
from noterl.replay import Prioritized
from noterl.types import NOISE
from tests.support import reference_values as reference
from tests.support.batches import IMAGE, VECTOR, Corridor, random_batch, row
from tests.support.parts import actor_of, run_updates
from tests.support.representatives import representatives
from tests.support.states import assert_same_state

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
    "DQN, noisy": ("DQN", {"noisy": True, "double": True}),
    "QRDQN, noisy": ("QRDQN", {**SMALL["QRDQN"], "noisy": True}),
    "Rainbow": ("Rainbow", SMALL["C51"]),
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

    def atoms(self, observation: np.ndarray, weights: Any, noise: str) -> np.ndarray:
        """Return the quantiles, logits or values `[Z, A]` of one observation; `noise` names that of a noisy network."""
        agent, x = self.agent, np.array(observation, np.float64)[None]
        if agent.noisy:
            return self.noisy_atoms(x, weights, self.batch.extra[noise][0].astype(float))
        if agent.get_config().get("dueling"):
            features = reference.relu(reference.mlp(x, weights[:2]))
            value, advantage = (reference.mlp(features, weights[start : start + 4]) for start in (2, 6))
            advantage = advantage.reshape(agent.num_atoms, ACTIONS)
            return value.T + advantage - advantage.mean(axis=1, keepdims=True)
        return reference.mlp(x, weights).reshape(agent.num_atoms, ACTIONS)

    def noisy_atoms(self, x: np.ndarray, weights: Any, noise: np.ndarray) -> np.ndarray:
        """Return Fortunato et al. (2018), equation 9, with the whole noisy weight of each layer."""
        dueling, remaining = isinstance(self.agent, noterl.Rainbow), list(weights[2:])
        features, streams = reference.relu(reference.mlp(x, weights[:2])), []
        for _ in range(2 if dueling else 1):
            y = features
            for layer in range(2):
                kernel, bias, sigma, sigma_bias, _, _ = (remaining.pop(0) for _ in range(6))
                inputs, outputs = kernel.shape
                scaled = np.sign(noise) * np.sqrt(np.abs(noise))
                before, after, noise = scaled[:inputs], scaled[inputs : inputs + outputs], noise[inputs + outputs :]
                y = reference.relu(y) if layer else y
                y = y @ (kernel + sigma * np.outer(before, after)) + bias + sigma_bias * after
            streams.append(y)
        assert not remaining and not len(noise)
        atoms = streams[-1].reshape(-1, ACTIONS)
        return streams[0].T + atoms - atoms.mean(axis=1, keepdims=True) if dueling else atoms

    def values(self, observation: np.ndarray, weights: Any, noise: str) -> np.ndarray:
        """Return the action values `[A]`."""
        agent = self.agent
        if isinstance(agent, noterl.IQN):
            midpoints = (np.arange(agent.acting_fractions) + 0.5) / agent.acting_fractions
            return reference.implicit_quantiles(observation, midpoints, weights).mean(axis=0)
        atoms = self.atoms(observation, weights, noise)
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
        noise = "selecting_noise" if agent.double else "target_noise"
        best = np.argmax(np.where(self.masks[index], self.values(following, chooser, noise), -np.inf))
        if isinstance(agent, noterl.IQN):
            fractions = batch.extra["fractions"][index].astype(np.float64)
            own = reference.implicit_quantiles(observation, fractions, weights)[:, action]
            others = batch.extra["target_fractions"][index].astype(np.float64)
            target = reference.implicit_quantiles(following, others, self.target)[:, best]
        else:
            own = self.atoms(observation, weights, "noise")[:, action]
            target = self.atoms(following, self.target, "target_noise")[:, best]
            fractions = (np.arange(len(own)) + 0.5) / len(own)
        if type(agent) is noterl.DQN:
            error = float(own[0] - (reward + discount * target[0]))
            return reference.huber(error), error
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
        return float(np.mean([float(self.batch.weight[i]) * self.row_loss(i, weights, chooser)[0] for i in rows]))


@pytest.mark.parametrize("case", representatives(CASES, "IQN", "Rainbow"))
def test_update_equals_the_reference(case: str) -> None:
    name, arguments = CASES[case]
    agent = make(name, **arguments)
    state, rng = agent.get_state(), np.random.default_rng(0)
    for network, weights in state["variables"].items():
        for weight in weights if not network.endswith(("_inputs", "_outputs")) else ():
            weight += rng.normal(scale=0.3, size=weight.shape).astype(np.float32)
    agent.set_state(state)
    batch, masks = random_batch(1, 6), rng.random((1, 6, ACTIONS)) < 0.7
    masks[..., 1] = True
    batch = add_random_numbers(agent, batch._replace(extra={"next_action_mask": masks}), 1)
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
    assert all((part == 0).all() for network in (agent.q, agent.target_q) for part in noise_of(network))


def noise_of(network: Any) -> list[np.ndarray]:
    """Return the noise of acting of a network."""
    return [current().fetch(variable) for variable in networks.variables(network) if variable.name == NOISE]


@pytest.mark.backends("torch")
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
        ("C51", {"recurrent": "gru"}, "recurrent must be left out with C51"),
        ("C51", {"atoms": 1}, "atoms .*got 1"),
        ("C51", {"support": (1, 1)}, r"support must be a pair .*got \(1, 1\)"),
        ("C51", {"support": 10}, "support must be a pair .*got 10"),
        ("IQN", {"fractions": 0}, "fractions .*got 0"),
        ("IQN", {"acting_fractions": 1.5}, r"acting_fractions .*got 1\.5"),
        ("IQN", {"dueling": True}, "dueling and noisy must be False for IQN"),
        ("IQN", {"noisy": True}, "dueling and noisy must be False for IQN"),
        ("DQN", {"noisy": 1}, "noisy .*got 1"),
        ("DQN", {"noisy": True, "hidden": 8}, "hidden .*got 8"),
        ("Rainbow", {"hidden": ()}, r"hidden must .*got \(\)"),
        ("IQN", {"hidden": ()}, r"hidden must .*got \(\)"),
        ("IQN", {"hidden": (8, 0)}, "hidden .*got 0"),
        ("DQN", {"noisy": True, "recurrent": "gru"}, "noisy must be False"),
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
        # The first check does not know the updates before, which an agent from a file has.
        for agent._counters.updates in (5_000, 5_999):
            agent.check_metrics({"clipped": 0.5})
    agent._counters.updates = 6_000
    with pytest.warns(UserWarning, match=r"support: .*50% .*\(-1, 1\)"):
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


@torch_only
def test_noisy_weights_start_at_the_papers_values() -> None:
    agent = noterl.DQN(VECTOR, noisy=True, hidden=(16, 9), seed=1)
    parts = agent.q.parts
    for layer, inputs in (("advantage_0", 16), ("advantage_1", 9)):
        for weight in networks.get_weights(parts[f"{layer}_sigma"]):
            np.testing.assert_allclose(weight, 0.5 / np.sqrt(inputs), rtol=1e-6)
        kernel, bias = networks.get_weights(parts[f"{layer}_mu"])
        assert 0.9 / np.sqrt(inputs) < np.abs(kernel).max() <= 1 / np.sqrt(inputs)
        assert np.abs(bias).max() <= 1 / np.sqrt(inputs)
    image = noterl.DQN(IMAGE, noisy=True, dueling=True, seed=1)
    assert [part for part in image.q.parts if part.endswith("mu")] == [
        "value_0_mu", "value_1_mu", "advantage_0_mu", "advantage_1_mu"
    ]  # fmt: skip


@pytest.mark.parametrize("forward", representatives(["NumPy", "compiled"], "NumPy"))
def test_exploring_has_noise_in_the_weights_and_acting_alone_has_none(forward: str) -> None:
    env = VECTOR if forward == "NumPy" else IMAGE
    agent = noterl.DQN(env, noisy=True, hidden=(16, 9), seed=1)
    agent.build()
    assert isinstance(agent.policy, GreedyQPolicy)
    actor, observations = actor_of(agent), np.zeros((4, *env[0].shape), env[0].dtype)
    plain, _ = actor.outputs(observations)
    first, second = (actor.outputs(observations, noise=np.random.default_rng(seed))[0] for seed in (1, 1))
    other, _ = actor.outputs(observations, noise=np.random.default_rng(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first[0], first[1])  # one noise for all lanes
    assert np.abs(first - plain).max() > 1e-3 and np.abs(first - other).max() > 1e-3
    np.testing.assert_array_equal(actor.outputs(observations)[0], plain)
    assert all((part == 0).all() for part in noise_of(agent.q))


@torch_only
def test_noise_of_a_batch_is_one_for_all_rows_and_another_for_each_pass() -> None:
    agent = make("Rainbow", **SMALL["C51"])
    batch = add_random_numbers(agent, random_batch(2, 6), 2)
    assert set(agent.random_spec) == {"noise", "selecting_noise", "target_noise"}
    values = [batch.extra[name] for name in agent.random_spec]
    for value in values:
        assert value.shape[:2] == (2, 6) and (value == value[:, :1]).all() and (value[0] != value[1]).all()
    assert (values[0] != values[1]).all() and (values[1] != values[2]).all()


@torch_only
@pytest.mark.parametrize("workers", [0, 2])
def test_noisy_agents_learn_with_workers_and_resume_exactly(workers: int, tmp_path: Path) -> None:
    def run(agent: Any, steps: int) -> Any:
        agent.fit("CartPole-v1", steps=steps, num_envs=2, workers=workers, verbose=0)
        return agent

    def new() -> Any:
        agent = noterl.Rainbow("CartPole-v1", hidden=(8, 8), atoms=5, seed=3)
        agent.compile(batch_size=8, learning_starts=10, replay=noterl.Replay(100, sampler=Prioritized()))
        return agent

    whole, half = run(new(), 160), run(new(), 96)
    half.save(tmp_path / "half.noterl")
    resumed = run(noterl.load(tmp_path / "half.noterl"), 64)
    assert_same_state(resumed.get_state(), whole.get_state())
    assert whole.updates > 0


@torch_only
def test_evaluation_draws_none_of_the_noise_of_training() -> None:
    agent = noterl.DQN("CartPole-v1", noisy=True, hidden=(8, 8), seed=3)
    agent.fit(steps=20, verbose=0)
    before = agent.generators.get_state()
    agent.evaluate(episodes=2)
    agent.evaluate(episodes=2, deterministic=False)
    agent.act(np.zeros(4, np.float32), deterministic=False)
    after = agent.generators.get_state()
    assert after["states"]["exploration"] == before["states"]["exploration"]


@torch_only
def test_rainbow_sets_what_exists() -> None:
    agent = noterl.Rainbow(VECTOR, seed=1)
    agent.compile()
    assert agent.double and agent.noisy and agent.q.parts["network"].num_values == 101
    assert agent.replay.n_step == 3 and isinstance(agent.replay.sampler, Prioritized)
    plain = noterl.Rainbow(VECTOR, double=False, dueling=False, noisy=False)
    assert not plain.double and not plain.noisy
    assert noterl.Rainbow(IMAGE).defaults().learning_starts == 20_000

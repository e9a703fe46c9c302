"""Any number of critics, and TQC: updates equal float64 references; the defaults are those of two critics."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import noterl
from noterl import networks
from noterl.backends import current
from noterl.learning.update import add_random_numbers
from noterl.networks.critics import q_values
from noterl.replay import Prioritized
from tests.support import reference_values as reference
from tests.support.batches import CONTINUOUS, VECTOR, copied, differences, random_batch, row
from tests.support.parts import run_updates
from tests.support.representatives import representatives

torch_only = pytest.mark.backends("torch")
RATE, SIZE = 0.1, 6
REDQ = {"critics": 3, "critics_in_target": 2}

# Per case: the agent and its arguments.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "SAC, random critics": ("SAC", {**REDQ, "critic_hidden": (3, 2)}),
    "SAC, one critic": ("SAC", {"critics": 1}),
    "SAC, three critics": ("SAC", {"critics": 3}),
    "TD3, random critics": ("TD3", {**REDQ, "policy_delay": 1}),
    "TD3, three critics": ("TD3", {"critics": 3, "policy_delay": 1}),
    "SAC, layer normalization": ("SAC", {"layer_norm": True}),
    "TQC": ("TQC", {"critics": 3, "quantiles": 4, "drop": 1}),
}


def make(name: str, env: Any = CONTINUOUS, **arguments: Any) -> Any:
    fixed = {} if name == "TD3" else {"temperature": 0.3}
    agent = getattr(noterl, name)(env, **{"hidden": (4,), "gamma": 0.9, "seed": 5, **fixed, **arguments})
    replay = noterl.Replay(64, sampler=Prioritized())
    agent.compile(keras.optimizers.SGD(RATE), replay=replay, batch_size=4, target_update=500, learning_starts=0)
    agent.build()
    return agent


class Reference:
    """The losses of one update in float64, of weights by name."""

    def __init__(self, agent: Any, batch: Any) -> None:
        self.agent, self.batch, self.count = agent, batch, agent.num_critics
        self.low, self.high = (np.asarray(side, float) for side in (agent.action_space.low, agent.action_space.high))
        self.weights: dict[str, list[np.ndarray]] = {"actor": networks.get_weights(agent.actor)}
        for k in range(self.count):
            self.weights[f"critic {k}"] = networks.get_weights(agent.critics[k])
            self.weights[f"target {k}"] = networks.get_weights(agent.target_critics[k])
        self.weights["target actor"] = networks.get_weights(getattr(agent, "target_actor", agent.actor))
        self.weights = {name: [np.array(part, float) for part in found] for name, found in self.weights.items()}

    def policy(self, name: str, observation: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return actions and the logarithms of their densities; TD3's noise is added to the target's action."""
        values = reference.mlp(np.array(observation, float), self.weights[name])
        if isinstance(self.agent, noterl.TD3):
            added = np.clip(0.2 * noise, -0.5, 0.5) if name == "target actor" else 0.0
            return np.clip(np.tanh(values) + added, -1, 1), np.zeros(len(values))
        mean, log_std = np.split(values, 2, axis=1)
        std = np.exp(np.clip(log_std, -20, 2))
        action = np.tanh(mean + std * noise)
        density = np.exp(-0.5 * noise**2) / (np.sqrt(2 * np.pi) * std)
        return action, np.sum(np.log(density) - np.log(1 - action**2), axis=1)

    def q(self, name: str, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Return a critic's outputs, `[B, W]`."""
        inputs = np.concatenate([np.array(observation, float), action], axis=1)
        weights = self.weights[name]
        if not self.agent.critic_norm:
            return reference.mlp(inputs, weights)
        values = inputs @ weights[0] + weights[1]
        deviation = np.sqrt(values.var(axis=1, keepdims=True) + 1e-5)
        values = (values - values.mean(axis=1, keepdims=True)) / deviation * weights[2] + weights[3]
        return reference.relu(values) @ weights[4] + weights[5]

    def target(self, i: int) -> Any:
        """Return the target of a row: a number, or the quantiles that are kept."""
        batch, agent = self.batch, self.agent
        noise = batch.extra["target_noise" if isinstance(agent, noterl.TD3) else "next_noise"].astype(float)
        action, log_density = self.policy("target actor", batch.next_observation, noise)
        outputs = [self.q(f"target {k}", batch.next_observation, action)[i] for k in range(self.count)]
        temperature = 0.0 if isinstance(agent, noterl.TD3) else 0.3
        if isinstance(agent, noterl.TQC):
            pooled = sorted(np.concatenate(outputs))
            kept = np.array(pooled[: len(pooled) - self.count * agent.drop])
        else:
            chosen = range(self.count)
            if agent.critics_in_target < self.count:
                chosen = np.argsort(batch.extra["critic_choice"][i])[: agent.critics_in_target]
            kept = min(outputs[k][0] for k in chosen)
        return float(batch.reward[i]) + float(batch.discount[i]) * (kept - temperature * log_density[i])

    def errors(self, targets: list[Any]) -> tuple[float, list[float]]:
        """Return the loss of the critics, and the feedback of each row."""
        batch, total, feedback = self.batch, 0.0, []
        taken = 2 * (np.asarray(batch.action, float) - self.low) / (self.high - self.low) - 1
        outputs = [self.q(f"critic {k}", batch.observation, taken) for k in range(self.count)]
        for i, target in enumerate(targets):
            weight = float(batch.weight[i]) / len(targets)
            if isinstance(self.agent, noterl.TQC):
                quantiles = self.agent.critic_outputs
                fractions = (np.arange(quantiles) + 0.5) / quantiles
                losses = [reference.quantile_loss(values[i], target, fractions) for values in outputs]
                total += weight * sum(losses) / (self.count * quantiles)
            else:
                total += weight * sum(0.5 * (values[i, 0] - target) ** 2 for values in outputs)
            feedback.append(np.mean([abs(values[i].mean() - np.mean(target)) for values in outputs]))
        return total, feedback

    def actor_loss(self) -> float:
        batch, agent = self.batch, self.agent
        noise = np.zeros(1) if isinstance(agent, noterl.TD3) else batch.extra["noise"].astype(float)
        action, log_density = self.policy("actor", batch.observation, noise)
        values = np.array([self.q(f"critic {k}", batch.observation, action).mean(axis=1) for k in range(self.count)])
        if isinstance(agent, noterl.TQC) or agent.critics_in_target < self.count:
            value = values.mean(axis=0)
        else:
            value = values[0] if isinstance(agent, noterl.TD3) else values.min(axis=0)
        return float(np.mean((0.0 if isinstance(agent, noterl.TD3) else 0.3) * log_density - value))

    def descend(self, loss: Any, names: list[str]) -> None:
        """Make a step of gradient descent on the weights of some networks."""
        flat = [weight for name in names for weight in self.weights[name]]

        def changed(weights: list[np.ndarray]) -> float:
            for old, new in zip(flat, weights, strict=True):
                old[...] = new
            return loss()

        before = [weight.copy() for weight in flat]
        slopes = reference.gradients(changed, before)
        for weight, old, slope in zip(flat, before, slopes, strict=True):
            weight[...] = old - RATE * slope


@pytest.mark.parametrize("case", representatives(CASES, "SAC, random critics", "TQC"))
def test_update_equals_the_reference(case: str) -> None:
    name, arguments = CASES[case]
    agent = make(name, **arguments)
    state, rng = copied(agent.get_state()), np.random.default_rng(0)
    for network, weights in state["variables"].items():
        for weight in weights:
            weight += rng.normal(scale=0.3 if network.startswith("target") else 0.1, size=weight.shape).astype(
                "float32"
            )
    agent.set_state(state)
    batch = add_random_numbers(agent, random_batch(1, SIZE, CONTINUOUS), 1)
    truth = Reference(agent, row(batch, 0))
    if not isinstance(agent, noterl.TD3):
        truth.weights["target actor"] = truth.weights["actor"]
    targets = [truth.target(i) for i in range(SIZE)]
    loss, feedback = truth.errors(targets)
    truth.descend(lambda: truth.errors(targets)[0], [f"critic {k}" for k in range(truth.count)])
    actor_loss = truth.actor_loss()
    truth.descend(truth.actor_loss, ["actor"])

    result, fetch = run_updates(agent, batch, 1), current().fetch
    np.testing.assert_allclose(fetch(result.logs["loss"])[0], loss, rtol=1e-4)
    np.testing.assert_allclose(fetch(result.logs["actor_loss"])[0], actor_loss, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(fetch(result.feedback["td_error"])[0], feedback, rtol=2e-4, atol=1e-5)
    for network, expected in [("actor", agent.actor), *((f"critic {k}", agent.critics[k]) for k in range(truth.count))]:
        for left, right in zip(networks.get_weights(expected), truth.weights[network], strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=2e-6, err_msg=network)


@torch_only
@pytest.mark.parametrize("env", [CONTINUOUS, VECTOR], ids=["Box", "Discrete"])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("SAC", {"policy_delay": 1}), ("TD3", {"policy_delay": 2})],
)
def test_defaults_are_two_critics_of_the_actors_size(name: str, arguments: dict[str, Any], env: Any) -> None:
    if name == "TD3" and env is VECTOR:
        pytest.skip("TD3 has Box actions only")
    states = []
    for changes in ({}, {"critics": 2, "critics_in_target": 2, "critic_hidden": (4,), **arguments}):
        agent = make(name, env, **changes)
        run_updates(agent, add_random_numbers(agent, random_batch(2, SIZE, env), 2), 2)
        states.append(copied(agent.get_state()))
    assert differences(*states) == []


@torch_only
@pytest.mark.parametrize("name", ["SAC", "TQC"])
def test_policy_delay_updates_the_actor_with_every_so_many_th_update_of_the_critics(name: str) -> None:
    agent = make(name, policy_delay=3)
    batch = add_random_numbers(agent, random_batch(3, SIZE, CONTINUOUS), 3)
    actor, critic = networks.get_weights(agent.actor)[0], networks.get_weights(agent.critics[0])[0]
    run_updates(agent, batch, 2)
    assert (networks.get_weights(agent.actor)[0] == actor).all()
    assert (networks.get_weights(agent.critics[0])[0] != critic).any()
    agent = make(name, policy_delay=3)
    run_updates(agent, batch, 3)
    assert (networks.get_weights(agent.actor)[0] != actor).any()


@torch_only
def test_random_critics_work_with_discrete_actions_and_memories() -> None:
    agent = make("SAC", VECTOR, **REDQ)
    result = run_updates(agent, add_random_numbers(agent, random_batch(1, SIZE), 1), 1)
    assert np.isfinite(current().fetch(result.logs["loss"])).all()
    agent = noterl.SAC(
        "Pendulum-v1", **REDQ, hidden=(4,), recurrent="gru", recurrent_units=4, sequence_length=4, seed=1
    )
    agent.compile(batch_size=4, learning_starts=20)
    agent.fit(steps=40, verbose=0)
    assert agent.updates > 0


@pytest.mark.backends("torch")
def test_dropout_and_normalization_have_their_initial_weights_and_train() -> None:
    agent = make("SAC", hidden=(16,), layer_norm=True, dropout=0.5)
    weights = networks.get_weights(agent.critics[0])
    kernel, bias, gamma, beta, last, _ = weights
    assert [weight.shape for weight in weights] == [(7, 16), (16,), (16,), (16,), (16, 1), (1,)]
    assert (gamma == 1).all() and (beta == 0).all()
    for weight, inputs in ((kernel, 7), (bias, 7), (last, 16)):
        assert 0.5 / np.sqrt(inputs) < np.abs(weight).max() <= 1 / np.sqrt(inputs)
    run_updates(agent, add_random_numbers(agent, random_batch(2, SIZE, CONTINUOUS), 2), 2)
    assert not np.array_equal(networks.get_weights(agent.critics[0])[0], kernel)


@torch_only
@pytest.mark.parametrize("env", [CONTINUOUS, VECTOR], ids=["Box", "Discrete"])
def test_droq_drops_values_in_updates_but_not_in_targets(env: Any) -> None:
    agent = make("SAC", env, hidden=(64,), layer_norm=True, dropout=0.5)
    modules = [type(module).__name__ for module in agent.critics[0]]
    assert modules == ["Float", "Linear", "Dropout", "LayerNorm", "ReLU", "Linear"]
    batch = add_random_numbers(agent, random_batch(2, SIZE, env), 2)
    start = copied(agent.get_state())
    states = []
    for _ in range(2):
        agent.set_state(start)
        run_updates(agent, batch, 2)
        states.append(copied(agent.get_state()))
    assert differences(*states) == [], "the numbers of the dropout are part of the state"
    assert differences(start, states[0])
    assert not any(module.training for module in agent.target_critics[0].modules())


@pytest.mark.parametrize("name", ["SAC", "CrossQ"])
def test_states_of_agents_with_dropout_have_the_same_weights_on_every_backend(name: str) -> None:
    agent = getattr(noterl, name)(CONTINUOUS, hidden=(4,), critic_hidden=(4,), dropout=0.5, seed=1)
    agent.compile(batch_size=SIZE, learning_starts=0)
    batch = add_random_numbers(agent, random_batch(2, SIZE, CONTINUOUS), 2)
    start = copied(agent.get_state())
    plain = getattr(noterl, name)(CONTINUOUS, hidden=(4,), critic_hidden=(4,), seed=1)
    assert agent.get_weights().keys() == plain.get_weights().keys()
    # Keras's layers have generators, and modules of torch have none.
    assert bool(start["seeds"]["critics/0"]) == (keras.backend.backend() != "torch")
    run_updates(agent, batch, 2)
    after = copied(agent.get_state())
    seeds = {name: [seed.astype(np.int64) for seed in states] for name, states in start["seeds"].items()}
    agent.set_state({**start, "seeds": seeds})
    run_updates(agent, batch, 2)
    assert differences(after, copied(agent.get_state())) == []
    agent.set_state({name: value for name, value in after.items() if name != "seeds"})  # a file of another backend
    assert differences(after["variables"], agent.get_state()["variables"]) == []


@torch_only
def test_one_quantile_has_the_gradient_of_a_squared_error_to_the_mean_of_the_targets() -> None:
    """With errors below 1, the quantile Huber loss of the median is a quarter of the sum of squared errors."""
    agent = make("TQC", critics=3, quantiles=1, drop=0)
    for critic, target in zip(agent.critics, agent.target_critics, strict=True):  # small values
        networks.set_weights(target, [0.1 * weight for weight in networks.get_weights(critic)])
    batch = random_batch(1, SIZE, CONTINUOUS)
    batch = batch._replace(reward=0.01 * batch.reward, weight=np.ones_like(batch.weight))
    batch = add_random_numbers(agent, batch, 1)
    truth = Reference(agent, row(batch, 0))
    truth.weights["target actor"] = truth.weights["actor"]
    means = [np.mean(truth.target(i)) for i in range(SIZE)]
    taken = 2 * (np.asarray(batch.action[0], float) - truth.low) / (truth.high - truth.low) - 1
    before = [networks.get_weights(critic) for critic in agent.critics]
    run_updates(agent, batch, 1)
    for k, critic in enumerate(agent.critics):

        def squared(weights: list[np.ndarray], k: int = k) -> float:
            truth.weights[f"critic {k}"] = weights
            values = truth.q(f"critic {k}", batch.observation[0], taken)[:, 0]
            assert (np.abs(values - means) < 0.9).all()
            return float(np.mean(0.5 * (values - means) ** 2))

        slopes = reference.gradients(squared, before[k])
        for new, old, slope in zip(networks.get_weights(critic), before[k], slopes, strict=True):
            # |0.5 - 1{u < 0}| is 0.5, and the loss is the mean over the three critics.
            np.testing.assert_allclose(new, old - RATE * slope * 0.5 / 3, rtol=1e-4, atol=1e-6)


@torch_only
@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("SAC", {"critics": 0}, "critics .*got 0"),
        ("SAC", {"critics_in_target": 3}, r"critics_in_target must .*2, got 3"),
        ("SAC", {"critics_in_target": 0}, "critics_in_target .*got 0"),
        ("SAC", {"critic_hidden": 8}, "^critic_hidden .*got 8"),
        ("SAC", {"temperature": 0.1, "target_entropy": -1.0}, "temperature must .*target_entropy=, got 0.1"),
        ("SAC", {"temperature": 0.1, "initial_temperature": 0.5}, "temperature must .*got 0.1"),
        ("SAC", {"temperature": "learned"}, "temperature must be 'auto', or a number .*got 'learned'"),
        ("TD3", {"policy_delay": 0}, "policy_delay .*got 0"),
        ("TD3", {"network": [None, None, None], "critics": 3}, r"network .*critic, critic, critic\)"),
        ("SAC", {"dropout": 1.5}, r"dropout .*got 1\.5"),
        ("SAC", {"layer_norm": 1}, "layer_norm .*got 1"),
        (
            "TD3",
            {"layer_norm": True, "network": (None, networks.mlp(7, [4], 1), networks.mlp(7, [4], 1))},
            "layer_norm:",
        ),
        ("TQC", {"quantiles": 0}, "quantiles .*got 0"),
        ("TQC", {"drop": 25}, "drop must be below quantiles, 25, got 25"),
        ("TQC", {"recurrent": "gru"}, "recurrent must be left out with TQC"),
        ("TQC", {"critics_in_target": 2}, r"critics_in_target must .*with TQC"),
        ("TQC", {"network": (None, networks.mlp(7, [4], 3)), "critics": 1}, r"quantiles \[B, 25\], got \(2, 3\)"),
    ],
)
def test_bad_argument_raises_with_its_name(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(noterl, name)(CONTINUOUS, **arguments).build()


@torch_only
@pytest.mark.parametrize("in_target", [2, 4])
def test_actor_of_rebrac_maximizes_the_mean_if_targets_take_random_critics(in_target: int) -> None:
    agent = noterl.ReBRAC(CONTINUOUS, hidden=(4,), critics=4, critics_in_target=in_target, seed=1)
    rng = np.random.default_rng(0)
    observation, action = rng.normal(size=(3, 5)).astype(np.float32), rng.normal(size=(3, 2)).astype(np.float32)
    rows = keras.ops.convert_to_tensor(observation), keras.ops.convert_to_tensor(action)
    values = np.stack([keras.ops.convert_to_numpy(value) for value in q_values(agent.critics, *rows)])
    expected = values.mean(axis=0) if in_target == 2 else values.min(axis=0)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(agent.actor_value(*rows)), expected, rtol=1e-6)

"""TD3BC, ReBRAC, IQL and CQL: updates equal float64 references; the next action of a batch; arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import noterl
from noterl import networks
from noterl.backends import current
from noterl.learning.update import add_random_numbers
from noterl.replay import Prioritized
from tests.support import reference_values as reference
from tests.support.batches import CONTINUOUS, VECTOR, copied, differences, random_batch, row
from tests.support.parts import run_updates, sample_batch
from tests.support.representatives import representatives

torch_only = pytest.mark.backends("torch")
RATE, SIZE = 0.05, 6
LOW, HIGH = (np.asarray(side, float) for side in (CONTINUOUS[1].low, CONTINUOUS[1].high))

# Per case: the agent, its spaces and its arguments.
CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "TD3BC": ("TD3BC", CONTINUOUS, {"alpha": 1.5, "policy_delay": 1}),
    "ReBRAC": ("ReBRAC", CONTINUOUS, {"actor_beta": 0.4, "critic_beta": 0.3, "policy_delay": 1}),
    "IQL": ("IQL", CONTINUOUS, {"expectile": 0.8, "temperature": 2.0}),
    "IQL, discrete": ("IQL", VECTOR, {"expectile": 0.8, "temperature": 2.0}),
    "CQL": ("CQL", VECTOR, {"alpha": 0.7}),
}


def make(name: str, env: Any, **arguments: Any) -> Any:
    agent = getattr(noterl, name)(env, **{"hidden": (4,), "gamma": 0.9, "seed": 5, **arguments})
    replay = noterl.Replay(64, sampler=Prioritized())
    agent.compile(keras.optimizers.SGD(RATE), replay=replay, batch_size=4, target_update=500, learning_starts=0)
    agent.build()
    return agent


class Reference:
    """The losses of one update in float64; `weights` has those of each network by name."""

    def __init__(self, agent: Any, batch: Any) -> None:
        self.agent, self.batch = agent, batch
        self.rows = np.arange(len(batch.reward))
        self.observation = np.array(batch.observation, float)
        self.following = np.array(batch.next_observation, float)
        self.weight, self.reward, self.discount = (
            np.array(field, float) for field in (batch.weight, batch.reward, batch.discount)
        )
        self.weights: dict[str, list[np.ndarray]] = {}
        single: dict[str, Any] = {
            name: vars(agent).get(name) for name in ("actor", "target_actor", "state_value", "q", "target_q")
        }
        for group in ("critics", "target_critics"):
            single |= {f"{group} {k}": network for k, network in enumerate(vars(agent).get(group, []))}
        for name, network in single.items():
            if network is not None:
                self.weights[name] = [np.array(value, float) for value in networks.get_weights(network)]

    def output(self, name: str, inputs: np.ndarray) -> np.ndarray:
        """Return the outputs of a network; those with six weights have a layer normalization."""
        weights = self.weights[name]
        if len(weights) == 4:
            return reference.mlp(inputs, weights)
        values = inputs @ weights[0] + weights[1]
        deviation = np.sqrt(values.var(axis=1, keepdims=True) + 1e-5)
        values = (values - values.mean(axis=1, keepdims=True)) / deviation * weights[2] + weights[3]
        return reference.relu(values) @ weights[4] + weights[5]

    def scaled(self, action: Any) -> np.ndarray:
        return 2 * (np.array(action, float) - LOW) / (HIGH - LOW) - 1

    def q(self, name: str, observation: np.ndarray, action: Any) -> np.ndarray:
        """Return a critic's values `[B]`, of scaled or of Discrete actions."""
        if self.agent.action_spaces != ("Box",) and getattr(self.agent, "discrete", True):
            return self.output(name, observation)[self.rows, action]
        return self.output(name, np.concatenate([observation, action], axis=1))[:, 0]

    def descend(self, loss: Callable[[], float], names: list[str]) -> float:
        """Make a step of gradient descent on the weights of some networks, and return the loss before it."""
        flat = [weight for name in names for weight in self.weights[name]]

        def changed(weights: list[np.ndarray]) -> float:
            for old, new in zip(flat, weights, strict=True):
                old[...] = new
            return loss()

        before = [weight.copy() for weight in flat]
        slopes = reference.gradients(changed, before)
        for weight, old in zip(flat, before, strict=True):
            weight[...] = old
        value = loss()
        for weight, old, slope in zip(flat, before, slopes, strict=True):
            weight[...] = old - RATE * slope
        return value

    def squared_errors(self, target: np.ndarray, action: Any) -> tuple[Callable[[], float], np.ndarray]:
        """Return the loss of both critics as a function, and the feedback."""

        def errors() -> np.ndarray:
            return np.array([self.q(f"critics {k}", self.observation, action) - target for k in (0, 1)])

        return lambda: float(np.sum(np.mean(self.weight * 0.5 * errors() ** 2, axis=1))), np.abs(errors()).mean(axis=0)

    def td3(self) -> tuple[dict[str, float], np.ndarray]:
        """Return the losses and the feedback of TD3BC or ReBRAC, and update the weights."""
        batch, agent = self.batch, self.agent
        is_rebrac = isinstance(agent, noterl.ReBRAC)
        noise = np.clip(0.2 * np.array(batch.extra["target_noise"], float), -0.5, 0.5)
        next_action = np.clip(np.tanh(self.output("target_actor", self.following)) + noise, -1, 1)
        next_q = np.minimum(*(self.q(f"target_critics {k}", self.following, next_action) for k in (0, 1)))
        if is_rebrac:
            distance = np.sum((next_action - self.scaled(batch.extra["next_action"])) ** 2, axis=1)
            next_q = next_q - 0.3 * distance * np.array(batch.extra["has_next_action"], float)
        taken = self.scaled(batch.action)
        critic_loss, feedback = self.squared_errors(self.reward + self.discount * next_q, taken)
        loss = self.descend(critic_loss, ["critics 0", "critics 1"])

        def q_of_actor() -> tuple[np.ndarray, np.ndarray]:
            action = np.tanh(self.output("actor", self.observation))
            values = [self.q(f"critics {k}", self.observation, action) for k in (0, 1)]
            return (np.minimum(*values) if is_rebrac else values[0]), action

        size = np.abs(q_of_actor()[0]).mean()

        def actor_loss() -> float:
            q, action = q_of_actor()
            if is_rebrac:
                return float(np.mean(0.4 * np.sum((action - taken) ** 2, axis=1)) - np.mean(q) / size)
            return float(np.mean((action - taken) ** 2) - 1.5 / size * np.mean(q))

        return {"loss": loss, "actor_loss": self.descend(actor_loss, ["actor"])}, feedback

    def iql(self) -> tuple[dict[str, float], np.ndarray]:
        batch, discrete = self.batch, self.agent.discrete
        taken = np.array(batch.action) if discrete else self.scaled(batch.action)
        target_q = np.minimum(*(self.q(f"target_critics {k}", self.observation, taken) for k in (0, 1)))

        def value_loss() -> float:
            error = target_q - self.output("state_value", self.observation)[:, 0]
            return float(np.mean(self.weight * np.where(error < 0, 0.2, 0.8) * error**2))

        logs = {"value_loss": self.descend(value_loss, ["state_value"])}
        advantage = target_q - self.output("state_value", self.observation)[:, 0]
        weight = np.minimum(np.exp(2.0 * advantage), 100.0)

        def actor_loss() -> float:
            values = self.output("actor", self.observation)
            if discrete:
                log_prob = values[self.rows, taken] - np.log(np.exp(values).sum(axis=1))
            else:
                mean, log_std = np.split(values, 2, axis=1)
                clipped = np.clip(taken, -1 + 1e-6, 1 - 1e-6)
                density = np.exp(-0.5 * ((np.arctanh(clipped) - mean) / np.exp(log_std)) ** 2)
                density = density / (np.sqrt(2 * np.pi) * np.exp(log_std)) / (1 - clipped**2)
                log_prob = np.log(density).sum(axis=1)
            return float(-np.mean(weight * log_prob))

        logs["actor_loss"] = self.descend(actor_loss, ["actor"])
        target = self.reward + self.discount * self.output("state_value", self.following)[:, 0]
        critic_loss, feedback = self.squared_errors(target, taken)
        return {**logs, "loss": self.descend(critic_loss, ["critics 0", "critics 1"])}, feedback

    def cql(self) -> tuple[dict[str, float], np.ndarray]:
        best = self.output("q", self.following).argmax(axis=1)
        target = self.reward + self.discount * self.output("target_q", self.following)[self.rows, best]
        taken = np.array(self.batch.action)

        def parts() -> tuple[np.ndarray, np.ndarray]:
            values = self.output("q", self.observation)
            return values[self.rows, taken] - target, np.log(np.exp(values).sum(axis=1)) - values[self.rows, taken]

        def loss() -> float:
            error, gap = parts()
            huber = np.where(np.abs(error) <= 1, 0.5 * error**2, np.abs(error) - 0.5)
            return float(np.mean(self.weight * huber) + 0.7 * np.mean(self.weight * gap))

        error, gap = parts()
        conservative = float(np.mean(self.weight * gap))
        return {"conservative_loss": conservative, "loss": self.descend(loss, ["q"])}, error


@pytest.mark.parametrize("case", representatives(CASES, "ReBRAC", "IQL", "CQL"))
def test_update_equals_the_reference(case: str) -> None:
    name, env, arguments = CASES[case]
    agent = make(name, env, **arguments)
    state, rng = copied(agent.get_state()), np.random.default_rng(0)
    for weights in state["variables"].values():
        for weight in weights:
            weight += rng.normal(scale=0.3, size=weight.shape).astype("float32")
    agent.set_state(state)
    batch = random_batch(1, SIZE, env)
    if name == "ReBRAC":
        further = random_batch(1, SIZE, env, seed=1)
        has_next = (further.discount > 0).astype(np.float32)
        batch = batch._replace(extra={"next_action": further.action, "has_next_action": has_next})
        assert 0 < has_next.sum() < SIZE
    batch = add_random_numbers(agent, batch, 1)
    truth = Reference(agent, row(batch, 0))
    methods = {"IQL": truth.iql, "CQL": truth.cql}
    logs, feedback = methods.get(name, truth.td3)()

    result, fetch = run_updates(agent, batch, 1), current().fetch
    for key, value in logs.items():
        np.testing.assert_allclose(fetch(result.logs[key])[0], value, rtol=1e-4, atol=1e-6, err_msg=key)
    np.testing.assert_allclose(fetch(result.feedback["td_error"])[0], feedback, rtol=2e-4, atol=1e-5)
    after = Reference(agent, row(batch, 0)).weights
    assert after.keys() == truth.weights.keys()
    for key, weights in after.items():
        for left, right in zip(weights, truth.weights[key], strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=2e-6, err_msg=key)


@torch_only
def test_advantage_weights_are_at_most_100_and_finite() -> None:
    agent = make("IQL", VECTOR, temperature=1e6)
    agent.expectile = 0.5
    batch = row(random_batch(1, SIZE), 0)
    tensors = type(batch)(*map(keras.ops.convert_to_tensor, batch[:-1]), extra={})
    loss = float(current().fetch(agent.actor_loss(tensors)))
    log_prob = current().fetch(agent.log_prob(tensors))
    advantage = current().fetch(agent.target_q(tensors) - agent.value(tensors.observation))
    assert (np.abs(advantage) * 1e6 > 100).all()
    np.testing.assert_allclose(loss, -np.mean(np.where(advantage > 0, 100.0, 0.0) * log_prob), rtol=1e-5)


@torch_only
def test_actions_at_the_bounds_have_finite_losses_and_gradients() -> None:
    agent = make("IQL", CONTINUOUS)
    batch = random_batch(2, SIZE, CONTINUOUS)
    at_bounds = np.where(batch.action > 0.5 * (LOW + HIGH), HIGH, LOW).astype(np.float32)
    result = run_updates(agent, batch._replace(action=at_bounds), 2)
    assert result.applied == 2


@torch_only
@pytest.mark.parametrize("n_step", [1, 2])
def test_batches_of_rebrac_hold_the_next_action_of_the_memory(n_step: int) -> None:
    """Lane 0 terminates after three steps, lane 1 is truncated after three, and lane 2 goes on."""
    agent = noterl.ReBRAC(CONTINUOUS, hidden=(4,), seed=1)
    agent.compile(replay=noterl.Replay(64, n_step=n_step), batch_size=9, learning_starts=0)
    agent.build()
    middle = 0.5 * (LOW + HIGH)
    zeros = np.zeros(5, np.float32)
    for step in range(3):
        for lane in range(3):
            action = (middle + 0.01 * (10 * lane + step)).astype(np.float32)
            ends = step == 2
            agent.replay.add(lane, zeros, action, 0.0, zeros, ends and lane == 0, ends and lane == 1)
    batch = sample_batch(agent, 4)
    for index, following, exists in zip(
        batch.index.ravel(),
        batch.extra["next_action"].reshape(-1, 2),
        batch.extra["has_next_action"].ravel(),
        strict=True,
    ):
        lane, step = index % 3, index // 3
        assert exists == (step + n_step < 3)
        if exists:
            np.testing.assert_allclose(following, middle + 0.01 * (10 * lane + step + n_step), rtol=1e-5)
    assert (batch.discount[0][batch.index[0] == 6] == 0).all()


@torch_only
@pytest.mark.parametrize(
    ("name", "env", "arguments", "message"),
    [
        ("TD3BC", CONTINUOUS, {"alpha": -1.0}, "alpha .*-1"),
        ("ReBRAC", CONTINUOUS, {"actor_beta": -1.0}, "actor_beta .*-1"),
        ("ReBRAC", CONTINUOUS, {"critic_beta": -1.0}, "critic_beta .*-1"),
        ("IQL", CONTINUOUS, {"expectile": 1.5}, "expectile .*1.5"),
        ("IQL", CONTINUOUS, {"temperature": -1.0}, "temperature .*-1"),
        ("IQL", CONTINUOUS, {"policy_delay": 2}, "policy_delay must be left out with IQL"),
        ("IQL", CONTINUOUS, {"network": [None, None]}, r"network .*\(actor, value, critic, critic\)"),
        ("CQL", VECTOR, {"alpha": -1.0}, "alpha .*-1"),
        ("CQL", VECTOR, {"recurrent": "gru"}, "recurrent must be left out with CQL"),
        ("CQL", CONTINUOUS, {}, "Discrete"),
        ("TD3BC", VECTOR, {}, "Box"),
    ],
)
def test_bad_argument_raises_with_its_name(name: str, env: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(noterl, name)(env, **arguments)


@torch_only
def test_critics_of_rebrac_are_normalized_unless_they_are_your_own() -> None:
    own = networks.mlp(7, [4], 1), networks.mlp(7, [4], 1)
    assert noterl.ReBRAC(CONTINUOUS, hidden=(4,)).critic_norm == {"layer_norm": True}
    assert noterl.ReBRAC(CONTINUOUS, hidden=(4,), layer_norm=False).critic_norm == {}
    assert noterl.ReBRAC(CONTINUOUS, hidden=(4,), network=(None, *own)).critic_norm == {}


@torch_only
@pytest.mark.parametrize("name", ["TD3BC", "ReBRAC", "IQL", "CQL"])
def test_agents_train_on_data_and_resume_exactly(name: str, tmp_path: Any) -> None:
    env = VECTOR if name == "CQL" else CONTINUOUS
    rows = row(random_batch(1, 24, env), 0)
    episodes = [slice(0, 10), slice(10, 23)]
    data = noterl.Dataset(
        [rows.observation[part.start : part.stop + 1] for part in episodes],
        *([field[part] for part in episodes] for field in (rows.action, rows.reward)),
        [True, False],
        observation_space=env[0],
        action_space=env[1],
    )
    agents = []
    for parts in ((8,), (3, 5)):
        agent = getattr(noterl, name)(env, hidden=(4,), seed=5)
        agent.compile(batch_size=4, replay=noterl.Replay(64))
        for updates in parts:
            agent.fit(dataset=data, updates=updates, updates_per_epoch=4, verbose=0)
            agent.save(tmp_path / "agent.noterl")
            agent = noterl.load(tmp_path / "agent.noterl")
        agents.append(agent)
    assert [agent.updates for agent in agents] == [8, 8]
    assert differences(*(copied(agent.get_state()["variables"]) for agent in agents)) == []


@torch_only
def test_rebrac_mixes_the_next_actions_of_data_and_memory() -> None:
    data = noterl.Dataset.record(lambda observation: [0.5], "Pendulum-v1", episodes=1)
    agent = noterl.ReBRAC("Pendulum-v1", hidden=(4,), seed=1)
    agent.compile(batch_size=8, learning_starts=10)
    agent.fit(steps=30, dataset=data, dataset_share=0.5, verbose=0)
    assert agent.updates > 0

"""Agents of the user's own: what DESIGN section 3 promises of them, and what they are told when they are not right."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import noterl
from noterl import backends, losses, networks
from noterl.backends import current
from noterl.replay import Prioritized
from tests.integration.test_parity import assert_all_close
from tests.support import reference_numpy as reference
from tests.support.batches import VECTOR, Corridor, copied, differences, random_batch, row
from tests.support.parts import run_updates


class MyDQN(noterl.Agent):
    """The example of DESIGN, to the letter."""

    memory, head = "replay", noterl.heads.Q()

    def __init__(self, env, *, hidden=128, gamma=0.98, seed=None):
        super().__init__(env, seed=seed)
        self.q = noterl.networks.mlp(self.observation_size, [hidden], self.action_size)
        self.target_q = noterl.networks.clone(self.q)
        self.gamma = self.hyperparameter("gamma", gamma)

    def forward(self, observation):
        return self.q(observation)

    def loss(self, batch):
        q = noterl.losses.take(self.q(batch.observation), batch.action)
        target = batch.reward + batch.discount * ops.max(self.target_q(batch.next_observation), axis=-1)
        td_error = q - ops.stop_gradient(target)
        return ops.mean(batch.weight * ops.square(td_error)), {"td_error": td_error}

    def update_target(self):
        noterl.networks.copy(self.q, self.target_q, tau=1.0)


def test_the_example_trains_on_defaults() -> None:
    agent = MyDQN("CartPole-v1", hidden=8, seed=0)
    history = agent.fit(steps=1_100, verbose=0)
    assert agent.steps == 1_100 and agent.updates == 100
    assert len(history.history["reward"]) > 20
    assert any(loss is not None and np.isfinite(loss) for loss in history.history["loss"])
    online, target = networks.get_weights(agent.q), networks.get_weights(agent.target_q)
    assert not np.array_equal(online[0], target[0])
    assert agent.evaluate(episodes=2)["length_mean"] > 1


def test_the_examples_target_moves_when_nothing_is_said() -> None:
    agent = MyDQN(lambda: Corridor(), hidden=8, seed=0)
    initial = networks.get_weights(agent.target_q)[0]
    agent.compile(replay=noterl.Replay(2_000), learning_starts=100, batch_size=4, update_every=50)
    agent.fit(steps=490, verbose=0)
    assert np.array_equal(networks.get_weights(agent.target_q)[0], initial)
    agent.fit(steps=20, verbose=0)
    assert not np.array_equal(networks.get_weights(agent.target_q)[0], initial)


def test_the_example_makes_the_updates_of_the_reference() -> None:
    agent = MyDQN(VECTOR, hidden=8, seed=1)
    agent.compile(replay=noterl.Replay(64), batch_size=4)
    agent.build()
    weights = networks.get_weights(agent.q)
    truth = reference.DQN(reference.mlp((8,)), weights, weights, reference.Adam(), double=False, loss="squared")
    batch = random_batch(4, 8)
    run_updates(agent, batch, 4)
    for k in range(4):
        one = row(batch, k)
        truth.update(one._replace(weight=2 * one.weight))  # the reference takes half the square
    assert_all_close(networks.get_weights(agent.q), truth.weights, "weights")


class Pair(noterl.Agent):
    """Two networks, two losses, two optimizers, and plain Python in between."""

    memory, head = "replay", noterl.heads.Q()
    optimizer_names = ("actor", "critic")

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.q = networks.mlp(self.observation_size, (8,), self.action_size)
        self.critic = networks.mlp(self.observation_size, (6,), 1)

    def forward(self, observation):
        return self.q(observation)

    def update(self, batch):
        critic_loss, feedback = self.minimize(self.critic_loss, self.critic, "critic", batch)
        scale = 0.5 if "td_error" in feedback else 1.0
        actor_loss, nothing = self.minimize(
            self.actor_loss, networks.trainable_variables(self.q), "actor", batch, scale
        )
        assert nothing == {}
        return {"critic": critic_loss, "actor": actor_loss, "scale": scale}, feedback

    def critic_loss(self, batch):
        error = ops.squeeze(self.critic(batch.observation), axis=-1) - batch.discount
        return ops.mean(losses.squared(error)), {"td_error": error}

    def actor_loss(self, batch, scale):
        return scale * ops.mean(ops.square(losses.take(self.q(batch.observation), batch.action) - batch.reward))


def pair(optimizer: Any, kind: type[Pair] = Pair) -> Pair:
    agent = kind(VECTOR, seed=1)
    agent.compile(optimizer, replay=noterl.Replay(64, sampler=Prioritized()), batch_size=4)
    agent.build()
    return agent


class Descent:
    """Plain stochastic gradient descent, for the reference."""

    def __init__(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate

    def apply(self, weights, gradients):
        return [weight - self.learning_rate * slope for weight, slope in zip(weights, gradients, strict=True)]


def test_several_optimizers_train_their_own_networks() -> None:
    agent = pair({"critic": keras.optimizers.SGD(0.1), "actor": keras.optimizers.Adam(0.01)})
    actor, critic = networks.get_weights(agent.q), networks.get_weights(agent.critic)
    settings = {"double": False, "loss": "squared"}
    truths = (
        reference.DQN(reference.mlp((8,)), actor, actor, reference.Adam(0.01), **settings),
        reference.DQN(reference.mlp((6,)), critic, critic, Descent(0.1), **settings),
    )
    batch, logs = random_batch(8, 16), []
    result = run_updates(agent, batch, 8)
    for k in range(8):
        one = row(batch, k)
        plain = one._replace(discount=0 * one.discount, weight=np.ones(16))
        logs.append(
            [
                truths[0].update(plain)[0],
                truths[1].update(plain._replace(reward=one.discount, action=0 * one.action))[0],
            ]
        )
    assert_all_close(networks.get_weights(agent.q), truths[0].weights, "actor")
    assert_all_close(networks.get_weights(agent.critic), truths[1].weights, "critic")
    fetched = {name: current().fetch(value) for name, value in result.logs.items()}
    np.testing.assert_allclose(np.stack([fetched["actor"], fetched["critic"]], -1), logs, rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(fetched["loss"], fetched["actor"] + fetched["critic"], rtol=1e-6)
    assert fetched["scale"].tolist() == [0.5] * 8
    assert current().fetch(result.feedback["td_error"]).shape == (8, 16)


def rates(agent: noterl.Agent) -> dict[str, tuple[str, float]]:
    return {
        name: (type(optimizer).__name__, round(noterl.learning.optimizers.get_rule(optimizer, "learning_rate"), 6))
        for name, optimizer in agent.optimizers.items()
    }


def test_optimizers_are_given_as_one_as_a_list_or_by_name() -> None:
    one = keras.optimizers.RMSprop(0.02)
    assert rates(pair(one)) == {"actor": ("RMSprop", 0.02), "critic": ("RMSprop", 0.02)}
    shared = pair(one)
    assert shared.optimizers["actor"] is not shared.optimizers["critic"]
    listed = pair([keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.2)])
    assert rates(listed) == {"actor": ("Adam", 0.1), "critic": ("SGD", 0.2)}
    named = pair({"critic": keras.optimizers.Adam(0.1), "actor": "sgd"})
    assert rates(named) == {"actor": ("SGD", 0.01), "critic": ("Adam", 0.1)}
    assert rates(pair(None)) == {"actor": ("Adam", 0.001), "critic": ("Adam", 0.001)}
    listed.set_rule("learning_rate", 0.5, optimizer="critic")
    assert rates(listed) == {"actor": ("Adam", 0.1), "critic": ("SGD", 0.5)}
    listed.set_rule("learning_rate", 0.25)
    assert rates(listed) == {"actor": ("Adam", 0.25), "critic": ("SGD", 0.25)}


def test_finding_out_what_optimizers_train_changes_nothing() -> None:
    class Moving(Pair):
        """Its update also moves a variable by hand."""

        def __init__(self, env, *, seed=None):
            super().__init__(env, seed=seed)
            self.count = keras.Variable(np.float32(0), trainable=False)
            self.draws = keras.random.SeedGenerator(3)

        def update(self, batch):
            self.count.assign_add(1.0)
            keras.random.normal((2,), seed=self.draws)
            networks.copy(self.q, self.q)
            return super().update(batch)

    agent = Moving(VECTOR, seed=1)
    before = {name: networks.get_weights(network) for name, network in agent.networks().items()}
    agent.compile(replay=noterl.Replay(64), batch_size=4)
    assert differences(before, agent.get_state()["variables"]) == []
    run_updates(agent, random_batch(3, 4), 3)
    assert float(current().fetch(agent.count)) == 3


def test_one_optimizer_may_take_several_steps() -> None:
    class Shared(Pair):
        optimizer_names = ("only",)

        def update(self, batch):
            first, _ = self.minimize(self.critic_loss, self.critic, "only", batch)
            second, _ = self.minimize(self.actor_loss, self.q, "only", batch, 1.0)
            return {"loss": first + second}, {}

    agent = pair("sgd", Shared)
    before = copied(agent.get_state()["variables"])
    run_updates(agent, random_batch(2, 4), 2)
    changed = differences(before, agent.get_state()["variables"])
    assert {name.split("/")[1] for name in changed} == {"q", "critic"}


def test_update_may_be_called_by_hand() -> None:
    """To look at one update; compiled or not, it is the same."""
    agent = pair(["adam", "sgd"])
    start, batch = copied(agent.get_state()), random_batch(1, 4)
    run_updates(agent, batch, 1)
    compiled = copied(agent.get_state()["variables"])
    agent.set_state(start)
    tensors = row(batch, 0)
    tensors = tensors._replace(
        **{
            name: ops.convert_to_tensor(value)
            for name, value in tensors._asdict().items()
            if name not in ("extra", "index")
        }
    )
    logs, feedback = agent.update(tensors)
    assert set(logs) == {"critic", "actor", "scale"} and set(feedback) == {"td_error"}
    for name, weights in compiled.items():
        assert_all_close(agent.get_state()["variables"][name], weights, name)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ([keras.optimizers.Adam()], "optimizer must list 2 optimizers, for actor, critic; got 1"),
        ({"actor": "adam"}, r"optimizer must have the keys \['actor', 'critic'\], got \['actor'\]"),
        ({"actor": "adam", "critics": "adam"}, r"got \['actor', 'critics'\]"),
        ("adamm", "optimizer: Keras knows no 'adamm'"),
        (["adam", "adamm"], "optimizer: Keras knows no 'adamm'"),
        (3e-4, "optimizer for 'actor' must be a keras.optimizers.Optimizer.*got 0.0003"),
        (keras.optimizers.Adam, "optimizer for 'actor' must be a keras.optimizers.Optimizer"),
    ],
)
def test_a_wrong_optimizer_is_refused_by_name(optimizer: Any, message: str) -> None:
    agent = Pair(VECTOR, seed=1)
    with pytest.raises(ValueError, match=message):
        agent.compile(optimizer)
    assert rates(pair(None)) and agent.optimizers == {}, "a refused compile changes nothing"


@pytest.mark.backends("tensorflow", "jax")
def test_a_torch_optimizer_needs_the_torch_backend() -> None:
    torch = pytest.importorskip("torch")
    native = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))])
    for given in (native, lambda parameters: torch.optim.Adam(parameters)):
        with pytest.raises(ValueError, match=rf"optimizer: .*runs on {backends.name()}: set KERAS_BACKEND=torch"):
            MyDQN(VECTOR).compile(given)


@pytest.mark.backends("tensorflow", "jax")
def test_a_torch_network_needs_the_torch_backend() -> None:
    torch = pytest.importorskip("torch")

    class Native(MyDQN):
        def __init__(self, env, *, seed=None):
            super().__init__(env, seed=seed)
            self.q = torch.nn.Linear(5, 3)

    with pytest.raises(ValueError, match="KERAS_BACKEND=torch"):
        Native(VECTOR, seed=1).act(np.zeros(5))
    with pytest.raises(ValueError, match="KERAS_BACKEND=torch"):
        noterl.DQN(VECTOR, network=torch.nn.Linear(5, 3))


def broken(**methods: Any) -> noterl.Agent:
    """Return an agent with some methods in place of those of `MyDQN`, compiled for small batches."""
    agent = type("Broken", (MyDQN,), methods)(VECTOR, hidden=4, seed=1)
    agent.compile(replay=noterl.Replay(64), batch_size=4)
    return agent


def test_an_update_that_leaves_an_optimizer_out_is_refused() -> None:
    class Lazy(Pair):
        def update(self, batch):
            loss, feedback = self.minimize(self.critic_loss, self.critic, "critic", batch)
            return {"loss": loss}, feedback

    with pytest.raises(ValueError, match="update never calls minimize with the optimizer actor"):
        pair(None, Lazy)


def test_an_update_that_names_another_optimizer_is_refused() -> None:
    class Misspelt(Pair):
        def update(self, batch):
            return self.minimize(self.critic_loss, self.critic, "critics", batch)

    with pytest.raises(ValueError, match="optimizer must be one of actor, critic, got 'critics'"):
        pair(None, Misspelt)


def test_an_update_that_trains_what_is_frozen_is_refused() -> None:
    def update(self, batch):
        loss, feedback = self.minimize(self.loss, self.target_q, "optimizer", batch)
        return {"loss": loss}, feedback

    with pytest.raises(ValueError, match="nothing that is trainable"):
        broken(update=update).build()


@pytest.mark.parametrize("result", [lambda loss: loss, lambda loss: {"loss": loss}, lambda loss: ({}, [1])])
def test_an_update_that_does_not_return_a_pair_is_refused(result: Any) -> None:
    def update(self, batch):
        return result(self.minimize(self.loss, self.q, "optimizer", batch)[0])

    with pytest.raises(ValueError, match=r"update must return \(logs, feedback\)"):
        broken(update=update).build()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda loss, aux: (loss, aux, 3), "a scalar or .scalar, feedback., got a tuple of 3"),
        (lambda loss, aux: aux["td_error"], "a loss is a scalar tensor"),
        (lambda loss, aux: None, "a loss is a scalar tensor, got None"),
        (lambda loss, aux: 1.0, "a loss is a scalar tensor, got 1.0"),
    ],
)
def test_a_loss_that_is_no_scalar_is_refused(returned: Any, message: str) -> None:
    agent = broken(loss=lambda self, batch: returned(*MyDQN.loss(self, batch)))
    with pytest.raises(ValueError, match=message):
        agent.build()
        run_updates(agent, random_batch(2, 4), 2)


def test_what_is_not_defined_is_named() -> None:
    class Empty(noterl.Agent):
        memory, head = "replay", noterl.heads.Q()

        def __init__(self, env, *, seed=None):
            super().__init__(env, seed=seed)
            self.q = networks.mlp(5, (4,), 3)

    agent = Empty(VECTOR, seed=1)
    with pytest.raises(NotImplementedError, match=r"Empty must define forward"):
        agent.act(np.zeros(5))
    agent = type("Lossless", (Empty,), {"forward": lambda self, observation: self.q(observation)})(VECTOR)
    agent.compile(replay=noterl.Replay(64), batch_size=4)
    agent.build()
    with pytest.raises(NotImplementedError, match=r"Lossless must define loss"):
        run_updates(agent, random_batch(2, 4), 2)


def test_an_agent_without_a_network_is_refused() -> None:
    class Bare(noterl.Agent):
        memory, head = "replay", noterl.heads.Q()

        def forward(self, observation):
            return observation[:, :3]

    with pytest.raises(ValueError, match="Bare has no network to train: keep it as an attribute"):
        Bare(VECTOR, seed=1).fit(steps=5, verbose=0)


def test_a_network_without_an_input_is_refused_by_name() -> None:
    class Unbuilt(MyDQN):
        def __init__(self, env, *, seed=None):
            super().__init__(env, seed=seed)
            self.q = keras.Sequential([keras.layers.Dense(3)], name="shapeless")

    with pytest.raises(ValueError, match="'shapeless' has no variables yet"):
        Unbuilt(VECTOR, seed=1).fit(steps=5, verbose=0)
    with pytest.raises(ValueError, match="'shapeless' has no variables yet"):
        noterl.DQN(VECTOR, network=keras.Sequential([keras.layers.Dense(3)], name="shapeless"))


def test_extra_logs_reach_the_hooks() -> None:
    seen: list[dict[str, float]] = []

    class Look(noterl.Callback):
        def on_batch_end(self, batch, logs):
            seen.append(dict(logs))

    agent = Pair(lambda: Corridor(), seed=1)
    agent.compile(replay=noterl.Replay(64), batch_size=4, learning_starts=10, update_every=4, updates=3)
    agent.fit(steps=30, verbose=0, callbacks=[Look()])
    assert len(seen) == agent.updates == 15
    for logs in seen:
        assert set(logs) >= {"loss", "actor", "critic", "scale"}
        assert all(type(value) is float for value in logs.values())
        assert logs["loss"] == pytest.approx(logs["actor"] + logs["critic"], rel=1e-5)

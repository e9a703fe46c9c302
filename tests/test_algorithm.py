"""User-defined agents: training, the names that they may assign, and errors in their methods."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import noterl
from noterl import losses, networks
from noterl.backends import current
from noterl.replay import Prioritized
from tests.integration.test_parity import assert_all_close
from tests.support import reference_numpy as reference
from tests.support.batches import VECTOR, Corridor, copied, differences, random_batch, row
from tests.support.parts import run_updates

pytestmark = pytest.mark.backends("torch")


class MyDQN(noterl.Agent):
    """The example of docs/custom_agents.md."""

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
        noterl.networks.copy(self.q, self.target_q)


def test_example_trains_with_defaults() -> None:
    agent = MyDQN("CartPole-v1", hidden=8, seed=0)
    history = agent.fit(steps=1_100, verbose=0)
    assert agent.steps == 1_100 and agent.updates == 100
    assert len(history.history["reward"]) > 20
    assert any(loss is not None and np.isfinite(loss) for loss in history.history["loss"])
    online, target = networks.get_weights(agent.q), networks.get_weights(agent.target_q)
    assert not np.array_equal(online[0], target[0])
    assert agent.evaluate(episodes=2)["length_mean"] > 1


@pytest.mark.backends("jax", "torch")
def test_target_gets_a_hard_copy_every_500_steps_by_default() -> None:
    agent = MyDQN(lambda: Corridor(), hidden=8, seed=0)
    initial = networks.get_weights(agent.target_q)[0]
    agent.compile(replay=noterl.Replay(2_000), learning_starts=100, batch_size=4, update_every=50)
    agent.fit(steps=490, verbose=0)
    assert np.array_equal(networks.get_weights(agent.target_q)[0], initial)
    agent.fit(steps=20, verbose=0)
    assert not np.array_equal(networks.get_weights(agent.target_q)[0], initial)


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_updates_of_the_example_equal_the_reference() -> None:
    agent = MyDQN(VECTOR, hidden=8, seed=1)
    agent.compile(replay=noterl.Replay(64), batch_size=4)
    agent.build()
    weights = networks.get_weights(agent.q)
    expected = reference.DQN(reference.mlp((8,)), weights, weights, reference.Adam(), double=False, loss="squared")
    batch = random_batch(4, 8)
    run_updates(agent, batch, 4)
    for k in range(4):
        one = row(batch, k)
        expected.update(one._replace(weight=2 * one.weight))  # the reference halves the square
    assert_all_close(networks.get_weights(agent.q), expected.weights, "weights")


def reserved_names() -> dict[str, bool]:
    """Return the names that noterl's base classes define or annotate -> whether an instance may assign them."""
    found: dict[str, bool] = {}
    for base in noterl.Agent.__mro__[:-1]:
        for name, value in vars(base).items():
            is_declaration = isinstance(value, str | int | float | tuple | dict | None)
            found.setdefault(name, is_declaration or (isinstance(value, property) and value.fset is not None))
        for name in inspect.get_annotations(base):
            found.setdefault(name, False)
    return {name: assignable for name, assignable in found.items() if not name.startswith("__")}


RESERVED = sorted(name for name, assignable in reserved_names().items() if not assignable)
ASSIGNABLE = sorted(name for name, assignable in reserved_names().items() if assignable)


@pytest.fixture(scope="module")
def built() -> MyDQN:
    agent = MyDQN(VECTOR, hidden=4, seed=1)
    agent.compile(replay=noterl.Replay(64), batch_size=4)
    agent.build()
    return agent


def test_reserved_names_are_those_of_agent() -> None:
    assert {name for name in dir(noterl.Agent) if not name.startswith("__")} <= {*RESERVED, *ASSIGNABLE}
    expected = {"fit", "act", "networks", "policy", "noise", "replay", "optimizers", "steps"}
    assert expected | {"_parts", "_counters"} <= set(RESERVED)
    declarations = {"memory", "head", "optimizer_names", "extra_spec", "random_spec", "update_period", "target_period"}
    assert declarations | {"rollout_steps", "epochs", "stop_training"} <= set(ASSIGNABLE)


@pytest.mark.parametrize("name", RESERVED)
def test_assigning_a_name_of_agent_raises(built: MyDQN, name: str) -> None:
    before = vars(built).get(name)
    # Assigning a hyperparameter changes its value, so the error is about the value.
    message = r"^tau .*number" if name == "tau" else rf"^{name} .*(Agent|Algorithm|Configurable)\.{name}.*another"
    with pytest.raises(ValueError, match=message):
        setattr(built, name, built.q)
    assert vars(built).get(name) is before


@pytest.mark.parametrize("name", ASSIGNABLE)
def test_declarations_may_be_assigned(name: str, built: MyDQN) -> None:
    value = getattr(built, name)
    setattr(built, name, value)
    assert getattr(built, name) is value


def test_attributes_of_the_users_class_may_be_assigned() -> None:
    class Mine(MyDQN):
        scale, policy = 1.0, None

    agent = Mine(VECTOR, hidden=4, seed=1)
    agent.scale, agent.policy = 2.0, "greedy"
    assert (agent.scale, agent.policy) == (2.0, "greedy")


@pytest.mark.parametrize("name", ["policy", "noise", "networks", "fit", "_parts"])
def test_assigning_a_name_of_agent_in_the_constructor_raises(name: str) -> None:
    class Colliding(noterl.Agent):
        head = noterl.heads.Q()

        def __init__(self, env, *, seed=None):
            super().__init__(env, seed=seed)
            setattr(self, name, [networks.mlp(5, [4], 3)])

    with pytest.raises(ValueError, match=rf"^{name} .*my_{name.strip('_')}$"):
        Colliding(VECTOR)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ["store", "draw", "select", "gather", "due", "acting", "run_updates", "learner"])
def test_network_under_any_other_name_is_trained_and_saved(name: str, tmp_path: Path) -> None:
    class Named(noterl.Agent):
        head = noterl.heads.Q()

        def __init__(self, env, *, seed=None):
            super().__init__(env, seed=seed)
            setattr(self, name, networks.mlp(5, [4], 3))

        def forward(self, observation):
            return getattr(self, name)(observation)

        def loss(self, batch):
            return ops.mean(ops.square(self.forward(batch.observation)))

    agent = Named(VECTOR, seed=1)
    agent.compile(replay=noterl.Replay(64), batch_size=4)
    network = getattr(agent, name)
    assert agent.networks() == {name: network}
    before = networks.get_weights(network)
    run_updates(agent, random_batch(2, 4), 2)
    trained = networks.get_weights(network)
    assert all(not np.array_equal(old, new) for old, new in zip(before, trained, strict=True))
    agent.save(tmp_path / "agent.noterl")
    restored = Named(VECTOR, seed=2)
    restored.compile(replay=noterl.Replay(64), batch_size=4)
    restored.restore(tmp_path / "agent.noterl")
    for expected, weight in zip(trained, networks.get_weights(getattr(restored, name)), strict=True):
        np.testing.assert_array_equal(weight, expected)


class Pair(noterl.Agent):
    """Has two networks, two losses and two optimizers, with plain Python between the gradient steps."""

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
    """Stochastic gradient descent for the reference."""

    def __init__(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate

    def apply(self, weights, gradients):
        return [weight - self.learning_rate * slope for weight, slope in zip(weights, gradients, strict=True)]


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_several_optimizers_train_their_own_networks() -> None:
    agent = pair({"critic": keras.optimizers.SGD(0.1), "actor": keras.optimizers.Adam(0.01)})
    actor, critic = networks.get_weights(agent.q), networks.get_weights(agent.critic)
    settings = {"double": False, "loss": "squared"}
    references = (
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
                references[0].update(plain)[0],
                references[1].update(plain._replace(reward=one.discount, action=0 * one.action))[0],
            ]
        )
    assert_all_close(networks.get_weights(agent.q), references[0].weights, "actor")
    assert_all_close(networks.get_weights(agent.critic), references[1].weights, "critic")
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


def test_optimizer_may_be_one_or_a_list_or_a_dict() -> None:
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


@pytest.mark.backends("jax", "torch")
def test_dry_run_changes_nothing() -> None:
    class Moving(Pair):
        """Its update also assigns a variable, samples random numbers and copies a network."""

        def __init__(self, env, *, seed=None):
            super().__init__(env, seed=seed)
            self.count = keras.Variable(np.float32(0), trainable=False)
            self.random_seed = keras.random.SeedGenerator(3)

        def update(self, batch):
            self.count.assign_add(1.0)
            keras.random.normal((2,), seed=self.random_seed)
            networks.copy(self.q, self.q)
            return super().update(batch)

    agent = Moving(VECTOR, seed=1)
    before = {name: networks.get_weights(network) for name, network in agent.networks().items()}
    agent.compile(replay=noterl.Replay(64), batch_size=4)
    assert differences(before, agent.get_state()["variables"]) == []
    run_updates(agent, random_batch(3, 4), 3)
    assert float(current().fetch(agent.count)) == 3


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_one_optimizer_may_take_several_gradient_steps() -> None:
    class Shared(Pair):
        optimizer_names = ("only",)

        def update(self, batch):
            first, feedback = self.minimize(self.critic_loss, self.critic, "only", batch)
            second, _ = self.minimize(self.actor_loss, self.q, "only", batch, 1.0)
            return {"loss": first + second}, feedback

    agent = pair("sgd", Shared)
    before = copied(agent.get_state()["variables"])
    run_updates(agent, random_batch(2, 4), 2)
    changed = differences(before, agent.get_state()["variables"])
    assert {name.split("/")[1] for name in changed} == {"q", "critic"}


def test_update_may_be_called_directly() -> None:
    """The weights equal those after the compiled update."""
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
        ([keras.optimizers.Adam()], "optimizer .*got 1"),
        ({"actor": "adam"}, r"optimizer .*got \['actor'\]"),
        ({"actor": "adam", "critics": "adam"}, r"got \['actor', 'critics'\]"),
        ("adamm", "^optimizer: .*'adamm'"),
        (["adam", "adamm"], "^optimizer: .*'adamm'"),
        (-3e-4, r"^optimizer, .*got -0\.0003"),
        (keras.optimizers.Adam, "^optimizer for 'actor' .*got .*Adam"),
    ],
)
def test_bad_optimizer_raises_and_changes_nothing(optimizer: Any, message: str) -> None:
    agent = Pair(VECTOR, seed=1)
    with pytest.raises(ValueError, match=message):
        agent.compile(optimizer)
    assert agent.schedule is None, "a compile that raises changes nothing"


@pytest.mark.parametrize(
    ("setting", "value"), [("floatx", "float64"), ("floatx", "float16"), ("dtype_policy", "mixed_bfloat16")]
)
def test_other_precision_than_float32_raises(setting: str, value: str) -> None:
    getattr(keras.config, f"set_{setting}")(value)
    try:
        with pytest.raises(ValueError, match=f"{setting}.*{value}"):
            noterl.DQN("CartPole-v1")
    finally:
        getattr(keras.config, f"set_{setting}")("float32")


@pytest.mark.backends("tensorflow", "jax")
def test_a_torch_optimizer_needs_the_torch_backend() -> None:
    torch = pytest.importorskip("torch")
    native = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))])
    for optimizer in (native, lambda parameters: torch.optim.Adam(parameters)):
        with pytest.raises(ValueError, match=r"^optimizer: .*KERAS_BACKEND=torch"):
            MyDQN(VECTOR).compile(optimizer)


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
    """Return an agent like `MyDQN` with other methods, compiled for small batches."""
    agent = type("Broken", (MyDQN,), methods)(VECTOR, hidden=4, seed=1)
    agent.compile(replay=noterl.Replay(64), batch_size=4)
    return agent


def test_update_must_use_every_optimizer() -> None:
    class Lazy(Pair):
        def update(self, batch):
            loss, feedback = self.minimize(self.critic_loss, self.critic, "critic", batch)
            return {"loss": loss}, feedback

    with pytest.raises(ValueError, match=r"^update .*optimizer actor"):
        pair(None, Lazy)


def test_minimize_raises_for_unknown_optimizer() -> None:
    class Misspelled(Pair):
        def update(self, batch):
            return self.minimize(self.critic_loss, self.critic, "critics", batch)

    with pytest.raises(ValueError, match=r"optimizer .*got 'critics'"):
        pair(None, Misspelled)


@pytest.mark.backends("torch")
def test_minimize_raises_before_the_agent_is_compiled() -> None:
    agent = Pair(VECTOR, seed=1)
    with pytest.raises(RuntimeError, match=r"^minimize: .*build"):
        agent.minimize(agent.critic_loss, agent.critic, "critic", random_batch(1, 4))


def test_minimize_raises_for_frozen_network() -> None:
    def update(self, batch):
        loss, feedback = self.minimize(self.loss, self.target_q, "optimizer", batch)
        return {"loss": loss}, feedback

    with pytest.raises(ValueError, match="trained"):
        broken(update=update).build()


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("result", [lambda loss: loss, lambda loss: {"loss": loss}, lambda loss: ({}, [1])])
def test_update_must_return_a_pair_of_dicts(result: Any) -> None:
    def update(self, batch):
        return result(self.minimize(self.loss, self.q, "optimizer", batch)[0])

    with pytest.raises(ValueError, match=r"^update .*\(logs, feedback\)"):
        broken(update=update).build()


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda loss, aux: (loss, aux, 3), "loss .*got a tuple of 3"),
        (lambda loss, aux: aux["td_error"], "loss .*got "),
        (lambda loss, aux: None, "loss .*got None"),
        (lambda loss, aux: 1.0, r"loss .*got 1\.0"),
        (lambda loss, aux: loss + aux["td_error"], r"loss .*shape \(2,\)"),
        (lambda loss, aux: (loss, aux["td_error"]), r"loss must .*\(scalar, feedback\)"),
    ],
)
def test_loss_must_be_a_scalar_tensor(returned: Any, message: str) -> None:
    agent = broken(loss=lambda self, batch: returned(*MyDQN.loss(self, batch)))
    with pytest.raises(ValueError, match=message):
        agent.build()
        run_updates(agent, random_batch(2, 4), 2)


def test_forward_without_an_axis_of_outputs_raises() -> None:
    agent = broken(forward=lambda self, observation: ops.mean(self.q(observation), axis=-1))
    with pytest.raises(ValueError, match="forward must"):
        agent.build()


def test_target_update_needs_a_target() -> None:
    agent = broken(update_target=noterl.Agent.update_target)
    for value in (0.005, 100):
        with pytest.raises(ValueError, match="target_update must"):
            agent.compile(target_update=value)
    agent.compile(target_update=None)


def test_missing_method_is_named() -> None:
    class Empty(noterl.Agent):
        memory, head = "replay", noterl.heads.Q()

        def __init__(self, env, *, seed=None):
            super().__init__(env, seed=seed)
            self.q = networks.mlp(5, (4,), 3)

    agent = Empty(VECTOR, seed=1)
    with pytest.raises(NotImplementedError, match=r"Empty .*forward"):
        agent.act(np.zeros(5))
    agent = type("Lossless", (Empty,), {"forward": lambda self, observation: self.q(observation)})(VECTOR)
    agent.compile(replay=noterl.Replay(64), batch_size=4)
    with pytest.raises(NotImplementedError, match=r"Lossless .*loss"):
        agent.build()


def test_agent_without_a_network_raises() -> None:
    class Bare(noterl.Agent):
        memory, head = "replay", noterl.heads.Q()

        def forward(self, observation):
            return observation[:, :3]

    with pytest.raises(ValueError, match=r"Bare .*network.*attribute"):
        Bare(VECTOR, seed=1).fit(steps=5, verbose=0)


def test_network_without_an_input_raises() -> None:
    class Unbuilt(MyDQN):
        def __init__(self, env, *, seed=None):
            super().__init__(env, seed=seed)
            self.q = keras.Sequential([keras.layers.Dense(3)], name="shapeless")

    with pytest.raises(ValueError, match=r"'shapeless' .*Input"):
        Unbuilt(VECTOR, seed=1).fit(steps=5, verbose=0)
    with pytest.raises(ValueError, match=r"'shapeless' .*Input"):
        noterl.DQN(VECTOR, network=keras.Sequential([keras.layers.Dense(3)], name="shapeless"))


@pytest.mark.backends("jax", "torch")
def test_logs_of_update_reach_callbacks() -> None:
    received: list[dict[str, float]] = []

    class RecordLogs(noterl.Callback):
        def on_batch_end(self, batch, logs):
            received.append(dict(logs))

    agent = Pair(lambda: Corridor(), seed=1)
    agent.compile(replay=noterl.Replay(64), batch_size=4, learning_starts=10, update_every=4, updates=3)
    agent.fit(steps=30, verbose=0, callbacks=[RecordLogs()])
    assert len(received) == agent.updates == 15
    for logs in received:
        assert set(logs) >= {"loss", "actor", "critic", "scale"}
        assert all(type(value) is float for value in logs.values())
        assert logs["loss"] == pytest.approx(logs["actor"] + logs["critic"], rel=1e-5)


def test_own_update_may_call_the_default_one() -> None:
    class Logging(MyDQN):
        def update(self, batch):
            logs, feedback = super().update(batch)
            return {**logs, "mean_reward": ops.mean(batch.reward)}, feedback

    plain, logging = (kind(VECTOR, seed=1) for kind in (MyDQN, Logging))
    for agent in (plain, logging):
        agent.compile(batch_size=4)
        run_updates(agent, random_batch(2, 4), 2)
    assert not differences(plain.get_weights(), logging.get_weights())


@pytest.mark.parametrize("kind", [noterl.PPO, noterl.DDPG, noterl.SAC])
def test_loss_that_the_update_does_not_call_raises(kind: Any) -> None:
    own = type("Own", (kind,), {"loss": lambda self, batch: 0.0})
    with pytest.raises(ValueError, match=f"loss of Own is never called by the update of {kind.__name__}"):
        own("Pendulum-v1").compile()
    both = type("Both", (own,), {"update": kind.update})
    both("Pendulum-v1").compile()

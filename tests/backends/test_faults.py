"""Faults in compiled updates: unknown variables, numbers that are not finite, and Ctrl-C."""

from __future__ import annotations

import os
import random
import signal
import threading
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import noterl
from noterl import losses, networks
from noterl.backends import current
from noterl.backends.common import NonFiniteError
from noterl.replay import Prioritized, RatioScore
from tests.support.batches import VECTOR, Corridor, copied, differences, flat, part, random_batch, small_dqn, with_fault
from tests.support.parts import learner_of, run_updates
from tests.support.representatives import representatives


class Losing(noterl.Agent):
    """A minimal agent whose loss adds the term that the test passes."""

    memory, head = "replay", noterl.heads.Q()

    def __init__(self, env: Any, *, term: Any = None, parts: Any = None, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.q = networks.mlp(self.observation_size, (8,), self.action_size)
        self.parts = parts() if parts else None
        self.term = term

    def forward(self, observation):
        return self.q(observation)

    def loss(self, batch):
        error = losses.take(self.q(batch.observation), batch.action) - batch.reward
        extra = 0.0 if self.term is None else self.term(self, batch)
        return losses.weighted_mean(losses.squared(error), batch.weight) + extra


def losing(term: Any = None, parts: Any = None, **settings: Any) -> Losing:
    agent = Losing(VECTOR, term=term, parts=parts, seed=1)
    agent.compile(replay=noterl.Replay(64), batch_size=4, learning_starts=0, **settings)
    agent.build()
    return agent


def outside_variable() -> tuple[keras.Variable, Any]:
    variable = keras.Variable(np.ones(3, np.float32), name="forgotten")
    return variable, lambda agent, batch: ops.sum(variable.value)


def outside_network() -> tuple[keras.Variable, Any]:
    network = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2, name="forgotten")])
    return network.variables[0], lambda agent, batch: ops.mean(network(batch.observation))


def outside_seed() -> tuple[keras.Variable, Any]:
    generator = keras.random.SeedGenerator(3, name="forgotten")
    return generator.state, lambda agent, batch: ops.mean(keras.random.normal((2,), seed=generator))


def outside_assignment() -> tuple[keras.Variable, Any]:
    variable = keras.Variable(np.zeros((), np.float32), name="forgotten", trainable=False)

    def term(agent, batch):
        variable.assign(ops.mean(batch.reward))
        return 0.0

    return variable, term


@pytest.mark.backends("jax")
@pytest.mark.parametrize("make", [outside_variable, outside_network, outside_seed, outside_assignment])
def test_unknown_variable_raises_with_its_name(make) -> None:
    """JAX would compile the variable as a constant, and assignments to it would be lost."""
    variable, term = make()
    before = current().fetch(variable)
    with pytest.raises(RuntimeError, match=r"forgotten.*attribute of the agent"):  # before the first step
        losing(term)
    assert np.array_equal(current().fetch(variable), before)


@pytest.mark.backends("jax")
def test_unknown_variable_in_forward_raises() -> None:
    network = networks.mlp(5, (4,), 3)

    class Stray(Losing):
        def forward(self, observation):
            return network(observation)

    agent = Stray(VECTOR, seed=1)
    with pytest.raises(RuntimeError, match="attribute of the agent"):
        agent.act(np.zeros(5, np.float32))


@pytest.mark.backends("jax")
def test_global_seed_generator_raises() -> None:
    with pytest.raises(ValueError, match="SeedGenerator"):
        run_updates(losing(lambda agent, batch: ops.mean(keras.random.normal((2,)))), random_batch(2, 4), 2)


def make_variable() -> keras.Variable:
    return keras.Variable(np.float32(2.0), name="mine")


# A value of an attribute, and the variable in it.
PARTS: dict[str, tuple[Any, Any]] = {
    "attribute": (make_variable, lambda parts: parts),
    "list": (lambda: [1, make_variable()], lambda parts: parts[1]),
    "dict of dicts": (lambda: {"a": {"b": make_variable()}}, lambda parts: parts["a"]["b"]),
    "tuple of tuples": (lambda: ((make_variable(),),), lambda parts: parts[0][0]),
}


@pytest.mark.parametrize("name", representatives(PARTS, "dict of dicts"))
def test_variable_in_an_attribute_of_the_agent_is_trained(name: str) -> None:
    parts, get = PARTS[name]
    agent = losing(lambda agent, batch: ops.square(get(agent.parts)), parts)
    run_updates(agent, random_batch(3, 4), 3)
    assert 1.99 < float(current().fetch(get(agent.parts))) < 2.0
    assert any("parts" in name for name in agent.get_state()["variables"])


def test_seed_generator_of_the_agent_advances() -> None:
    """Its variable belongs to the state, so equal states give equal noise."""

    def term(agent, batch):
        return ops.mean(keras.random.normal((), seed=agent.parts)) * ops.mean(agent.q(batch.observation))

    agent = losing(term, lambda: keras.random.SeedGenerator(5))
    start, batch = copied(agent.get_state()), random_batch(4, 4)
    run_updates(agent, batch, 4)
    first = copied(agent.get_state())
    assert int(first["seeds"]["parts"][0][1]) > int(start["seeds"]["parts"][0][1])
    agent.set_state(start)
    for k in range(4):
        run_updates(agent, part(batch, k, k + 1), 1)
    assert differences(first, agent.get_state()) == []


@pytest.mark.usefixtures("checked_by")
@pytest.mark.parametrize("optimizer", representatives(["adam", "sgd", "rmsprop"], "adam"))
def test_non_finite_update_is_undone(optimizer: str) -> None:
    batch = random_batch(8, 4)
    agent = small_dqn(optimizer=optimizer, loss="squared", target_update=0.1)
    start = copied(agent.get_state())
    for k, field, value in ((0, "reward", np.nan), (5, "observation", np.inf), (7, "reward", 1e30)):
        agent.set_state(start)
        run_updates(agent, batch, k) if k else None
        expected = copied(agent.get_state())
        agent.set_state(start)
        result = run_updates(agent, with_fault(batch, k, field, value), 8)
        assert int(result.applied) == k
        assert not np.isfinite(current().fetch(result.logs["loss"])[k])
        assert np.isfinite(current().fetch(result.logs["loss"])[:k]).all()
        assert differences(expected, agent.get_state()) == []
    assert int(run_updates(agent, batch, 8).applied) == 8
    assert differences(expected, agent.get_state())


@pytest.mark.usefixtures("checked_by")
def test_non_finite_gradient_of_a_finite_loss_is_undone() -> None:
    def term(agent, batch):  # the square root of 0 has an infinite gradient
        return ops.sqrt(ops.square(agent.parts) * batch.discount[0])

    agent, batch = losing(term, make_variable), random_batch(4, 4)
    discount = np.where(np.arange(4)[:, None] == 2, 0, np.full((4, 4), 0.5)).astype(np.float32)
    start = copied(agent.get_state())
    run_updates(agent, batch._replace(discount=discount), 2)
    expected = copied(agent.get_state())
    agent.set_state(start)
    result = run_updates(agent, batch._replace(discount=discount), 4)
    assert int(result.applied) == 2
    assert np.isfinite(current().fetch(result.logs["loss"])[:3]).all()
    assert differences(expected, agent.get_state()) == []


@pytest.mark.usefixtures("checked_by")
def test_assignments_of_the_loss_are_undone() -> None:
    """For example a running mean, which is updated before the loss is computed."""

    def term(agent, batch):
        agent.parts.assign(0.9 * agent.parts + 0.1 * ops.mean(batch.reward))
        return 0.0

    agent = losing(term, lambda: keras.Variable(np.float32(0), trainable=False, name="mean"))
    batch = random_batch(4, 4)
    start = copied(agent.get_state())
    run_updates(agent, batch, 2)
    expected = copied(agent.get_state())
    assert float(current().fetch(agent.parts)) != 0
    agent.set_state(start)
    assert int(run_updates(agent, with_fault(batch, 2, "reward", np.nan), 4).applied) == 2
    assert differences(expected, agent.get_state()) == []


class Exploding(Corridor):
    """At one step, returns a reward whose square overflows float32."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.lifetime = at, 0

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        self.lifetime += 1
        return observation, 1e30 if self.lifetime == self.at else reward, terminated, truncated, info


@pytest.mark.usefixtures("checked_by")
@pytest.mark.parametrize("updates", representatives([1, 4], 4))
def test_fit_raises_with_update_and_step_and_can_continue(updates: int) -> None:
    agent = noterl.DQN(lambda: Exploding(60), hidden=(8,), loss="squared", seed=2)
    agent.compile(replay=noterl.Replay(500), batch_size=8, learning_starts=10, update_every=1, updates=updates)
    with pytest.raises(NonFiniteError) as caught:
        agent.fit(steps=400, verbose=0)
    assert 60 <= agent.steps < 400
    assert (caught.value.update, caught.value.step) == (agent.updates, agent.steps)
    assert f"update {agent.updates} (environment step {agent.steps})" in str(caught.value)
    assert updates == 1 or agent.updates >= 40
    assert int(agent.optimizer.iterations) == agent.updates
    assert_finite(agent)
    agent.replay.clear()
    steps, before = agent.steps, agent.updates
    with pytest.warns(RuntimeWarning, match="replay memory is empty"):
        agent.fit(steps=100, verbose=0)
    assert agent.steps == steps + 100 and agent.updates > before


def assert_finite(agent: noterl.Agent) -> None:
    for place, leaf in flat(agent.get_state()["variables"]).items():
        assert np.isfinite(leaf).all(), place
    for place, leaf in flat(agent.get_state()["optimizers"]).items():
        if isinstance(leaf, np.ndarray):
            assert np.isfinite(leaf).all(), place


@pytest.mark.parametrize("name", representatives(["adam", "rmsprop", "nadam"], "adam"))
def test_updates_go_on_after_the_largest_count_of_updates(name: str) -> None:
    """Keras counts in int32: the next count would be negative, and Adam's bias correction infinite."""
    agent = noterl.DQN(lambda: Corridor(), hidden=(8,), seed=5)
    agent.compile(optimizer=name, replay=noterl.Replay(100), batch_size=8, learning_starts=8, update_every=1, updates=1)
    agent.fit(steps=20, verbose=0)
    state = copied(agent.get_state())
    weights = []
    for count in (10**6, 2**31 - 4):  # bias corrections are 1 after a million updates
        scalars = state["optimizers"]["optimizer"]["scalars"]
        state["optimizers"]["optimizer"]["scalars"] = [
            np.asarray(count, value.dtype) if value.dtype.kind == "i" else value for value in scalars
        ]
        agent.set_state(copied(state))
        agent.fit(steps=6, verbose=0)
        assert int(agent.optimizer.iterations) > count
        assert agent.updates > state["counters"]["updates"]
        weights.append(flat(agent.get_state()["variables"]))
    assert weights[0].keys() == weights[1].keys()
    for place, values in weights[0].items():
        np.testing.assert_array_equal(weights[1][place], values)


@pytest.mark.backends("torch")
def test_negative_count_of_updates_is_refused() -> None:
    """Adam's bias correction would be infinite."""
    agent = noterl.DQN(lambda: Corridor(), hidden=(8,), seed=5)
    agent.build()
    state = copied(agent.get_state())
    state["optimizers"]["optimizer"]["scalars"][0] = np.int32(-5)
    with pytest.raises(ValueError, match="Adam: its count of updates must"):
        agent.set_state(state)


@pytest.mark.backends("jax", "torch")
def test_larger_count_of_tensorflow_becomes_the_largest_count() -> None:
    agent = noterl.DQN(lambda: Corridor(), hidden=(8,), seed=5)
    agent.compile(replay=noterl.Replay(100), batch_size=8, learning_starts=8, update_every=1, updates=1)
    agent.build()
    state = copied(agent.get_state())
    scalars = state["optimizers"]["optimizer"]["scalars"]
    state["optimizers"]["optimizer"]["scalars"] = [np.int64(2**40), *scalars[1:]]
    agent.set_state(state)
    agent.fit(steps=20, verbose=0)
    assert int(agent.optimizer.iterations) >= 2**31 - 3
    assert_finite(agent)


class Interrupter(noterl.Callback):
    """Sends one SIGINT from another thread, some time after the start of an episode."""

    def __init__(self, delay: float, episode: int = 1) -> None:
        super().__init__()
        self.delay, self.episode, self.timer = delay, episode, None

    def on_episode_begin(self, episode: int, logs: dict[str, Any]) -> None:
        if self.timer is None and episode >= self.episode:
            self.timer = threading.Timer(self.delay, os.kill, (os.getpid(), signal.SIGINT))
            self.timer.start()


def interrupted_agent() -> noterl.DQN:
    agent = noterl.DQN(lambda: Corridor(), hidden=(64, 64), seed=5)
    agent.compile(
        replay=noterl.Replay(2_000), batch_size=64, learning_starts=32, updates=16, update_every=4, target_update=0.1
    )
    return agent


def test_agent_can_be_saved_and_continue_after_ctrl_c_at_any_time(tmp_path) -> None:
    agent, rng = interrupted_agent(), random.Random(0)
    agent.fit(steps=100, verbose=0)
    for repeat in range(8):
        interrupter = Interrupter(rng.uniform(0.0, 0.05), agent.episodes + 1)
        with pytest.raises(KeyboardInterrupt):
            agent.fit(steps=1_000_000, verbose=0, callbacks=[interrupter])
        interrupter.timer.join()
        assert agent.updates == int(agent.optimizer.iterations)
        assert_finite(agent)
        if repeat % 4 == 0:
            agent.save(tmp_path / "interrupted.noterl")
            agent.restore(tmp_path / "interrupted.noterl")
    steps = agent.steps
    agent.fit(steps=50, verbose=0)
    assert agent.steps == steps + 50


def interrupted_in_an_update(*, presses: int) -> noterl.DQN:
    """Return an agent in whose first update after the 32nd this number of SIGINTs is sent."""
    agent = noterl.DQN(lambda: Corridor(), hidden=(8,), seed=5)
    agent.compile(replay=noterl.Replay(500), batch_size=8, learning_starts=8, update_every=4, updates=8)
    learner: Any = learner_of(agent)
    update, left = learner.update, [os.getpid()] * presses

    def interrupted(batch: Any, count: int) -> Any:
        while agent.updates >= 32 and left:
            os.kill(left.pop(), signal.SIGINT)
        return update(batch, count)

    learner.update = interrupted
    return agent


def test_compiled_call_completes_despite_two_sigints() -> None:
    agent = interrupted_in_an_update(presses=2)
    with pytest.raises(KeyboardInterrupt):
        agent.fit(steps=100, verbose=0)
    assert agent.updates == int(agent.optimizer.iterations) == 40
    interrupted = copied(agent.get_state())
    agent.fit(steps=30, verbose=0)

    other = interrupted_in_an_update(presses=0)
    other.fit(steps=interrupted["counters"]["steps"], verbose=0)
    assert differences(interrupted, other.get_state()) == []


class LatePress(noterl.Callback):
    """Sends a SIGINT at the end of training."""

    def on_train_end(self, logs: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_in_on_train_end_is_raised() -> None:
    agent, handler = interrupted_agent(), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        agent.fit(steps=5, verbose=0, callbacks=[LatePress()])
    assert agent.steps == 5
    assert signal.getsignal(signal.SIGINT) is handler


OVERFLOWS = {
    "a large rate": lambda: keras.optimizers.SGD(3e38),
    "a large rate of Adam": lambda: keras.optimizers.Adam(3e38),
    "a division by zero": lambda: keras.optimizers.Adam(1e-3, epsilon=0.0),
    "weight decay": lambda: keras.optimizers.AdamW(10.0, weight_decay=1e38),
}


@pytest.mark.usefixtures("checked_by")
@pytest.mark.parametrize("size", representatives([1, 4], 4))
@pytest.mark.parametrize("name", representatives(OVERFLOWS, "a large rate of Adam", "weight decay"))
def test_update_that_overflows_the_state_is_not_applied(name: str, size: int) -> None:
    """Its loss and gradients are finite, the state after it is not."""
    agent = small_dqn(optimizer=OVERFLOWS[name]())
    before, batch = copied(agent.get_state()), random_batch(size, 8)
    large = batch._replace(reward=np.full_like(batch.reward, 1e3), weight=np.full_like(batch.weight, 1e3))
    applied = int(run_updates(agent, large, size).applied)
    assert applied < size
    after = agent.get_state()["variables"]
    assert all(np.isfinite(weight).all() for weights in after.values() for weight in weights)
    if applied == 0:
        assert not differences(before["variables"], after)


@pytest.mark.usefixtures("checked_by")
def test_large_gradient_that_overflows_the_slots_is_not_applied() -> None:
    """The squares of RMSprop overflow, its weights do not."""
    agent, batch = small_dqn(optimizer=keras.optimizers.RMSprop(1e-3)), random_batch(3, 8)
    run_updates(agent, part(batch, 0, 2), 2)
    before = copied(agent.get_state())
    agent = small_dqn(optimizer=keras.optimizers.RMSprop(1e-3))
    batch.weight[2] = 1e25
    assert int(run_updates(agent, batch, 3).applied) == 2
    assert not differences(before, agent.get_state())


class SecondOverflows(Losing):
    """Makes two gradient steps, of which the second may overflow."""

    optimizer_names = ("first", "second")

    def update(self, batch):
        loss, _ = self.minimize(self.loss, self.q, "first", batch)
        second, feedback = self.minimize(self.loss, self.q, "second", batch)
        return {"loss": loss, "second": second}, feedback


@pytest.mark.usefixtures("checked_by")
def test_overflow_of_the_second_optimizer_undoes_the_first() -> None:
    agent = SecondOverflows(VECTOR, seed=1)
    rate = keras.optimizers.SGD(1e-3)
    agent.compile([keras.optimizers.Adam(), rate], replay=noterl.Replay(64), batch_size=4, learning_starts=0)
    agent.build()
    batch = random_batch(3, 4)
    batch.reward[2] = 1e6
    run_updates(agent, part(batch, 0, 2), 2)
    agent.set_rule("learning_rate", 3e38, optimizer="second")
    before = copied(agent.get_state())
    assert int(run_updates(agent, part(batch, 2, 3), 1).applied) == 0
    assert not differences(before, agent.get_state())


def test_missing_feedback_raises_before_weights_change() -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    sampler = Prioritized(score=RatioScore())
    agent.compile(replay=noterl.Replay(100, sampler=sampler), learning_starts=10, batch_size=4)
    before = copied(agent.get_weights())
    with pytest.raises(ValueError, match=r"^feedback must"):
        agent.fit(steps=60, verbose=0)
    assert agent.updates == 0
    assert differences(before, agent.get_weights()) == []

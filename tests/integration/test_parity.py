"""Updates of every backend match the float64 NumPy reference.

Weights, target, optimizer slots and TD errors are compared after eight updates.
"""

from __future__ import annotations

import hashlib

import keras
import numpy as np
import pytest
from keras import ops

import noterl
from noterl import networks
from noterl.backends import current
from tests.support import reference_numpy as reference
from tests.support.batches import IMAGE, VECTOR, copied, part, random_batch, row, small_dqn
from tests.support.parts import run_updates
from tests.support.representatives import representatives

# Tolerances for float32.
RTOL, ATOL = 1e-4, 2e-6

# Per case: double, dueling, loss, target_update, and whether target and optimizer start as in the middle of a run.
VECTOR_CASES = {
    "vanilla": (False, False, "huber", 500, False),
    "vanilla, squared": (False, False, "squared", 500, True),
    "double": (True, False, "huber", 0.05, True),
    "dueling": (False, True, "huber", 0.05, True),
    "double and dueling": (True, True, "huber", 500, False),
}
IMAGE_CASES = {
    "vanilla": (False, False, "huber", 500, True),
    "double and dueling": (True, True, "huber", 0.05, True),
}


def reference_network(image: bool, dueling: bool, hidden: tuple[int, ...]):
    if image:
        return reference.nature_cnn(dueling)
    return (reference.dueling_mlp if dueling else reference.mlp)(hidden)


def set_history(agent: noterl.DQN) -> None:
    """Give the agent a target that differs from its network, and an optimizer in the middle of a run."""
    rng = np.random.default_rng(5)
    state = copied(agent.get_state())
    for weight in state["variables"]["target_q"]:
        weight += rng.normal(scale=0.02, size=weight.shape).astype(np.float32)
    slots = state["optimizers"]["optimizer"]["slots"]
    slots["momentums"] = [rng.normal(scale=0.01, size=slot.shape).astype(np.float32) for slot in slots["momentums"]]
    slots["velocities"] = [rng.uniform(1e-6, 1e-3, slot.shape).astype(np.float32) for slot in slots["velocities"]]
    agent.set_state(state)
    agent.optimizer.iterations.assign(20)


def reference_of(agent: noterl.DQN, network, adam: reference.Adam, *, double: bool, loss: str) -> reference.DQN:
    """Return a reference with the state of the agent."""
    state = agent.get_state()
    slots = state["optimizers"]["optimizer"]["slots"]
    adam.momentums = [np.array(slot, np.float64) for slot in slots["momentums"]]
    adam.velocities = [np.array(slot, np.float64) for slot in slots["velocities"]]
    adam.iterations = int(agent.optimizer.iterations)
    weights = state["variables"]
    return reference.DQN(network, weights["q"], weights["target_q"], adam, double=double, loss=loss)


def assert_all_close(actual, expected, what: str, *, rtol: float = RTOL, atol: float = ATOL) -> None:
    for position, (left, right) in enumerate(zip(actual, expected, strict=True)):
        assert np.shape(left) == np.shape(right), what
        np.testing.assert_allclose(left, right, rtol=rtol, atol=atol, err_msg=f"{what} {position}")


def assert_same_state(agent: noterl.DQN, truth: reference.DQN, **tolerance: float) -> None:
    state = agent.get_state()
    slots = state["optimizers"]["optimizer"]["slots"]
    assert_all_close(state["variables"]["q"], truth.weights, "weights", **tolerance)
    assert_all_close(state["variables"]["target_q"], truth.target, "target weights", **tolerance)
    assert_all_close(slots["momentums"], truth.optimizer.momentums, "momentums", **tolerance)
    assert_all_close(slots["velocities"], truth.optimizer.velocities, "velocities", **tolerance)
    assert int(agent.optimizer.iterations) == truth.optimizer.iterations


def check(env, case: tuple, *, updates: int, size: int, hidden: tuple[int, ...] = ()) -> None:
    double, dueling, loss, target_update, history = case
    arguments = {"hidden": hidden} if hidden else {}
    agent = small_dqn(
        env,
        optimizer=keras.optimizers.Adam(3e-3),
        target_update=target_update,
        double=double,
        dueling=dueling,
        loss=loss,
        **arguments,
    )
    if history:
        set_history(agent)
    network = reference_network(env is IMAGE, dueling, hidden)
    truth = reference_of(agent, network, reference.Adam(3e-3), double=double, loss=loss)
    batch = random_batch(updates, size, env)
    result = run_updates(agent, batch, updates)

    expected_losses, expected_errors = [], []
    for k in range(updates):
        value, errors = truth.update(row(batch, k))
        expected_losses.append(value)
        expected_errors.append(errors)
        if target_update < 1:
            truth.move_target(target_update)
    assert int(result.applied) == updates
    assert_same_state(agent, truth)
    fetch = current().fetch
    np.testing.assert_allclose(fetch(result.logs["loss"]), expected_losses, rtol=RTOL, atol=ATOL)
    np.testing.assert_allclose(fetch(result.feedback["td_error"]), expected_errors, rtol=RTOL, atol=1e-5)
    if target_update >= 1:
        agent.update_target()
        truth.move_target(1.0)
        assert_same_state(agent, truth)


@pytest.mark.parametrize("case", representatives(VECTOR_CASES, "vanilla, squared", "double and dueling"))
def test_updates_of_a_vector_network_match_the_reference(case: str) -> None:
    check(VECTOR, VECTOR_CASES[case], updates=8, size=16, hidden=(12, 10))


@pytest.mark.parametrize("case", representatives(IMAGE_CASES, "double and dueling"))
def test_updates_of_an_image_network_match_the_reference(case: str) -> None:
    check(IMAGE, IMAGE_CASES[case], updates=8, size=4)


class KerasLoop:
    """Applies gradients of the reference with a Keras optimizer, without compilation."""

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self.optimizer = optimizer
        self.variables: list[keras.Variable] = []

    def apply(self, weights, gradients):
        self.variables = self.variables or [keras.Variable(weight.astype(np.float32)) for weight in weights]
        slopes = [ops.convert_to_tensor(gradient.astype(np.float32)) for gradient in gradients]
        self.optimizer.apply(slopes, self.variables)
        return [np.array(current().fetch(variable), np.float64) for variable in self.variables]


KERAS_OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.05),
    "SGD with momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "RMSprop": lambda: keras.optimizers.RMSprop(1e-3, momentum=0.5),
    "AdamW": lambda: keras.optimizers.AdamW(3e-3, weight_decay=0.1),
    "Adam clipped by norm": lambda: keras.optimizers.Adam(3e-3, clipnorm=0.05),
    "Adam clipped by global norm": lambda: keras.optimizers.Adam(3e-3, global_clipnorm=0.05),
    "Adam clipped by value": lambda: keras.optimizers.Adam(3e-3, clipvalue=0.01),
    "AMSGrad": lambda: keras.optimizers.Adam(3e-3, amsgrad=True),
    "Adam of other rules": lambda: keras.optimizers.Adam(3e-3, beta_1=0.5, beta_2=0.9, epsilon=1e-3),
    "Adam with a mean of weights": lambda: keras.optimizers.Adam(3e-3, use_ema=True, ema_overwrite_frequency=3),
    "Adam on a schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5)),
}


REPRESENTATIVES = ("RMSprop", "AdamW", "Adam clipped by global norm", "Adam with a mean of weights")


@pytest.mark.parametrize("name", representatives(KERAS_OPTIMIZERS, *REPRESENTATIVES))
def test_keras_optimizers_match_an_eager_loop(name: str) -> None:
    make = KERAS_OPTIMIZERS[name]
    agent = small_dqn(optimizer=make(), loss="squared")
    weights = networks.get_weights(agent.q)
    truth = reference.DQN(reference.mlp((8,)), weights, weights, KerasLoop(make()), double=False, loss="squared")
    batch = random_batch(8, 16)
    assert int(run_updates(agent, batch, 8).applied) == 8
    for k in range(8):
        truth.update(row(batch, k))
    assert_all_close(networks.get_weights(agent.q), truth.weights, "weights")


@pytest.mark.backends("torch")
def test_batch_reaches_every_branch_of_the_loss() -> None:
    """Otherwise the comparisons above would leave a branch of the loss untested."""
    agent = small_dqn()
    truth = reference_of(agent, reference.mlp((8,)), reference.Adam(), double=False, loss="huber")
    batch = row(random_batch(1, 64), 0)
    errors = truth.td_errors(batch)
    assert 5 < (np.abs(errors) > 1).sum() < 59
    assert 5 < (batch.discount == 0).sum() < 32
    assert batch.weight.std() > 0.2
    truth.double = True
    truth.target = [weight[::-1] for weight in truth.target]
    doubled = truth.td_errors(batch)
    truth.double = False
    assert not np.allclose(doubled, truth.td_errors(batch))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("image", [False, True], ids=["vector", "image"])
@pytest.mark.parametrize("dueling", [False, True])
def test_gradients_of_the_reference_match_finite_differences(image: bool, dueling: bool) -> None:
    env = IMAGE if image else VECTOR
    agent = small_dqn(env, dueling=dueling, **({} if image else {"hidden": (6, 4)}))
    truth = reference_of(agent, reference_network(image, dueling, (6, 4)), reference.Adam(), double=True, loss="huber")
    batch = row(random_batch(1, 3, env), 0)
    analytic = truth.gradients(batch)[1]
    rng = np.random.default_rng(1)
    for weight, gradient in zip(truth.weights, analytic, strict=True):
        for place in rng.integers(weight.size, size=2):
            values, step = weight.reshape(-1), 1e-6
            start = values[place]
            values[place] = start + step
            above = truth.value(batch)
            values[place] = start - step
            below = truth.value(batch)
            values[place] = start
            assert gradient.reshape(-1)[place] == pytest.approx((above - below) / (2 * step), rel=1e-4, abs=1e-8)


def test_second_group_continues_from_the_first() -> None:
    agent = small_dqn(target_update=0.1)
    truth = reference_of(agent, reference.mlp((8,)), reference.Adam(), double=False, loss="huber")
    batch = random_batch(8, 16)
    for start in (0, 4):
        run_updates(agent, part(batch, start, start + 4), 4)
    for k in range(8):
        truth.update(row(batch, k))
        truth.move_target(0.1)
    assert_same_state(agent, truth)


def test_padding_of_a_call_makes_no_updates() -> None:
    agent = small_dqn()
    truth = reference_of(agent, reference.mlp((8,)), reference.Adam(), double=False, loss="huber")
    batch = random_batch(8, 16)
    assert int(run_updates(agent, batch, 3).applied) == 3
    for k in range(3):
        truth.update(row(batch, k))
    assert_same_state(agent, truth)


def test_updates_without_compilation_match_the_reference() -> None:
    agent = noterl.DQN(VECTOR, double=False, hidden=(8,), seed=3)
    agent.compile("adam", replay=noterl.Replay(64), batch_size=4, target_update=0.1, jit_compile=False)
    agent.build()
    truth = reference_of(agent, reference.mlp((8,)), reference.Adam(), double=False, loss="huber")
    batch = random_batch(3, 16)
    assert int(run_updates(agent, batch, 3).applied) == 3
    for k in range(3):
        truth.update(row(batch, k))
        truth.move_target(0.1)
    assert_same_state(agent, truth)


# Digests of the weights of `DQN(hidden=(256, 256), seed=3)`; they are the same on every backend.
INITIAL_WEIGHTS = {
    ("vector", False): "459985943e1a77f8",
    ("vector", True): "c9afd72713d4053d",
    ("image", False): "3781e8e61a73697a",
    ("image", True): "16fcdd3d6f778b7e",
}


@pytest.mark.parametrize(("kind", "dueling"), INITIAL_WEIGHTS)
def test_initial_weights_depend_on_the_seed_alone(kind: str, dueling: bool) -> None:
    agent = noterl.DQN(IMAGE if kind == "image" else VECTOR, dueling=dueling, hidden=(256, 256), seed=3)
    digest = hashlib.sha256()
    for weight in networks.get_weights(agent.q):
        assert weight.dtype == np.float32
        digest.update(repr(weight.shape).encode() + np.ascontiguousarray(weight).tobytes())
    assert digest.hexdigest()[:16] == INITIAL_WEIGHTS[kind, dueling]
    other = noterl.DQN(IMAGE if kind == "image" else VECTOR, dueling=dueling, hidden=(256, 256), seed=4)
    assert not np.array_equal(networks.get_weights(agent.q)[0], networks.get_weights(other.q)[0])


def test_target_starts_equal_to_the_online_network() -> None:
    agent = noterl.DQN(VECTOR, seed=3)
    assert_all_close(networks.get_weights(agent.q), networks.get_weights(agent.target_q), "target", rtol=0, atol=0)

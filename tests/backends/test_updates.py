"""Compiled updates: splits into calls change nothing, traces and memory are bounded, rules can change."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import noterl
from noterl import networks
from noterl.backends import current
from noterl.learning.metrics import MetricMeans
from noterl.policies import EpsGreedyQPolicy
from noterl.replay import Prioritized
from tests.integration.test_parity import assert_all_close
from tests.support import reference_numpy as reference
from tests.support.batches import IMAGE, VECTOR, copied, differences, part, random_batch, row, small_dqn
from tests.support.parts import learner_of, run_updates, sample_batch
from tests.support.representatives import representatives


def cartpole_agent(seed: int = 11, **settings: Any) -> noterl.DQN:
    agent = noterl.DQN("CartPole-v1", hidden=(8,), double=True, seed=seed)
    arguments = {
        "batch_size": 8,
        "learning_starts": 20,
        "update_every": 10,
        "updates": 7,
        "target_update": 30,
        "replay": noterl.Replay(400),
    } | settings
    agent.compile(policy=EpsGreedyQPolicy(0.2), **arguments)
    return agent


@pytest.fixture(scope="module")
def runner():
    """Return a function that runs the same fit from the same state with other settings."""
    agent = cartpole_agent()
    start = copied(agent.get_state())

    def run(steps_per_execution: int | str, updates: int | str, update_every: int | str, steps: int) -> dict[str, Any]:
        agent.set_state(start)
        learner_of(agent).steps_per_execution = steps_per_execution
        schedule = learner_of(agent).schedule
        schedule.updates, schedule.update_every = updates, update_every
        agent.fit(steps=steps, verbose=0)
        return copied(agent.get_state())

    return run


GROUPS = [(7, 10, 300), (1, 2, 200), ("pass", 40, 200), (15, "episode", 200), (260, 100, 220)]


@pytest.mark.parametrize(
    ("updates", "update_every", "steps"),
    representatives(GROUPS, GROUPS[0], GROUPS[-1]),
    ids=["groups of 7", "groups of 1", "passes", "after episodes", "groups beyond the largest call"],
)
def test_splitting_groups_into_calls_changes_no_bit(runner, updates, update_every, steps) -> None:
    whole = runner("auto", updates, update_every, steps)
    assert whole["counters"]["updates"] >= 60
    for split in (1, 3) if updates != 260 else (1, 3, 300):
        assert differences(whole, runner(split, updates, update_every, steps)) == [], f"steps_per_execution={split}"


def test_hard_copies_count_updates_within_a_group() -> None:
    """A copy after every fifth update of groups of seven, in one call or in calls of one update."""
    states = []
    for size in ("auto", 1):
        agent = cartpole_agent(target_update=5, target_unit="updates", steps_per_execution=size)
        agent.fit(steps=60, verbose=0)
        assert agent.updates == 28
        weights = agent.get_weights()
        assert any((weights[f"target_q/{n:03d}"] != weights[f"q/{n:03d}"]).any() for n in range(4))
        agent.fit(steps=10, verbose=0)
        weights = agent.get_weights()
        assert agent.updates == 35
        assert all((weights[f"target_q/{n:03d}"] == weights[f"q/{n:03d}"]).all() for n in range(4))
        states.append(copied(agent.get_state()))
    assert differences(*states) == []


def test_hard_copies_within_a_group_do_not_change_priorities() -> None:
    """The copies cut a group of seven into calls of different sizes, which may be padded."""
    states = []
    for size in ("auto", 1):
        agent = cartpole_agent(
            replay=noterl.Replay(400, sampler=Prioritized()),
            target_update=5,
            target_unit="updates",
            steps_per_execution=size,
        )
        agent.fit(steps=200, verbose=0)
        states.append(copied(agent.get_state()))
    assert differences(*states) == []


def test_calls_of_one_and_of_many_updates_are_equal() -> None:
    """With usual network sizes: a compiler may treat large arrays differently from small ones."""
    agent = small_dqn(hidden=(256, 256), target_update=0.01, double=True)
    batch, start, states = random_batch(16, 64), copied(agent.get_state()), []
    for size in (16, 1, 1):
        agent.set_state(start)
        for first in range(0, 16, size):
            run_updates(agent, part(batch, first, first + size), size)
        states.append(copied(agent.get_state()))
    assert differences(states[1], states[2]) == []
    assert differences(states[0], states[1]) == []


def _target_weights(agent: noterl.DQN) -> Any:
    networks.copy(agent.q, agent.target_q)  # shares the arrays
    return lambda: networks.get_weights(agent.target_q)[0]


def _array(agent: noterl.DQN) -> Any:
    array: Any = networks.variables(agent.q)[0]._value
    return lambda: array


def _view(agent: noterl.DQN) -> Any:
    view = np.asarray(networks.variables(agent.q)[0]._value)
    return lambda: view


@pytest.mark.backends("jax")
@pytest.mark.parametrize("keep", [_target_weights, _array, _view])
def test_memory_with_other_users_is_not_overwritten(keep: Any) -> None:
    """Updates of images reuse the memory of older weights."""
    agent, batch = small_dqn(IMAGE, target_update=1_000), random_batch(3, 4, IMAGE)
    run_updates(agent, batch, 3)
    kept, expected = keep(agent), networks.get_weights(agent.q)[0].copy()
    run_updates(agent, batch, 3)
    np.testing.assert_array_equal(kept(), expected)
    assert (networks.get_weights(agent.q)[0] != expected).any()


@pytest.mark.backends("jax")
def test_updates_of_images_reuse_memory() -> None:
    agent, batch, addresses = small_dqn(IMAGE), random_batch(1, 4, IMAGE), []
    for _ in range(6):
        run_updates(agent, batch, 1)
        addresses.append(networks.variables(agent.q)[0]._value.unsafe_buffer_pointer())
    assert addresses[0] != addresses[1]
    assert addresses[2:] == addresses[:2] * 2


def test_equal_seeds_give_equal_runs(runner) -> None:
    states = []
    for _ in range(2):
        agent = cartpole_agent(seed=11)
        start = copied(agent.get_state())
        agent.fit(steps=150, verbose=0)
        states.append(copied(agent.get_state()))
    assert states[0]["counters"]["updates"] > 50
    assert differences(states[0], states[1]) == []
    other = cartpole_agent(seed=12).get_state()
    assert any(name.startswith("/variables/q") for name in differences(start, other))


def test_several_fits_equal_one(runner) -> None:
    whole = runner("auto", 7, 10, 200)
    agent = cartpole_agent()
    for steps in (90, 60, 50):
        agent.fit(steps=steps, verbose=0)
    assert differences(whole, agent.get_state()) == []


def test_traces_are_bounded_for_varying_group_sizes() -> None:
    agent = small_dqn()
    agent.schedule.updates = 7
    updates, rng = 0, np.random.default_rng(0)
    batch = random_batch(8, 4)
    while updates < 500:
        wanted = int(rng.integers(1, 9)) if updates % 3 else 7
        size = learner_of(agent).call_size(wanted)
        result = run_updates(agent, part(batch, 0, size), min(wanted, size))
        assert int(result.applied) == min(wanted, size)
        updates += wanted
    assert agent.trace_counts["update"] <= 5  # calls of 1, 2, 4, 7 and 8
    assert agent.trace_counts["forward"] <= 1


def test_long_fit_traces_a_few_times() -> None:
    agent = cartpole_agent(updates="pass", update_every="episode")
    agent.fit(steps=600, verbose=0)
    assert agent.updates > 300
    assert agent.trace_counts["update"] <= 8
    assert agent.trace_counts["forward"] <= 1


def follow(agent: noterl.DQN, adam: reference.Adam, seed: int = 0, *, squared: bool = False) -> tuple:
    """Return a reference of the agent, and a function that makes four updates in both and compares them."""
    weights = agent.get_state()["variables"]
    truth = reference.DQN(
        reference.mlp((8,)),
        weights["q"],
        weights["target_q"],
        adam,
        double=False,
        loss="squared" if squared else "huber",
    )
    batches = iter(range(seed, seed + 100))

    def advance(gamma: float = 0.9) -> None:
        batch = random_batch(4, 8, seed=next(batches), gamma=gamma)
        run_updates(agent, batch, 4)
        for k in range(4):
            truth.update(row(batch, k))
        assert_all_close(networks.get_weights(agent.q), truth.weights, "weights")

    return truth, advance


RULES = {"learning_rate": 0.01, "beta_1": 0.5, "beta_2": 0.9, "weight_decay": 0.1}


def test_rules_of_the_optimizer_can_change_without_retracing() -> None:
    agent = small_dqn(optimizer=keras.optimizers.AdamW(1e-3, weight_decay=0.01))
    adam = reference.Adam(1e-3, weight_decay=0.01)
    _, advance = follow(agent, adam)
    advance()
    traces = agent.trace_counts["update"]
    for rule, value in RULES.items():
        before = networks.get_weights(agent.q)
        agent.set_rule(rule, value)
        setattr(adam, rule, value)
        assert noterl.learning.optimizers.get_rule(agent.optimizer, rule) == pytest.approx(value)
        advance()
        assert not np.array_equal(before[0], networks.get_weights(agent.q)[0])
    assert agent.trace_counts["update"] == traces


def test_rules_of_plain_adam_can_change_without_retracing() -> None:
    """On torch, a fused kernel applies plain Adam."""
    agent = small_dqn()
    adam = reference.Adam(1e-3)
    _, advance = follow(agent, adam)
    advance()
    traces = agent.trace_counts["update"]
    for rule in ("learning_rate", "beta_1", "beta_2"):
        agent.set_rule(rule, RULES[rule])
        setattr(adam, rule, RULES[rule])
        advance()
    agent.optimizer.learning_rate = adam.learning_rate = 0.003
    advance()
    assert agent.learning_rate == pytest.approx(0.003)
    assert agent.trace_counts["update"] == traces
    with pytest.raises(ValueError, match="weight_decay"):
        agent.set_rule("weight_decay", 0.1)
    with pytest.raises(ValueError, match="momentum"):
        agent.set_rule("momentum", 0.1)


def test_constraints_of_weights_hold() -> None:
    constraint = keras.constraints.MaxNorm(0.1)
    layers = [keras.layers.Dense(8, "relu", kernel_constraint=constraint), keras.layers.Dense(3)]
    agent = noterl.DQN(VECTOR, network=keras.Sequential([keras.Input((5,)), *layers]), seed=3)
    agent.compile("adam", replay=noterl.Replay(64), batch_size=4)
    agent.build()
    run_updates(agent, random_batch(4, 8), 4)
    assert np.linalg.norm(networks.get_weights(agent.q)[0], axis=0).max() <= 0.1 + 1e-6


class Discounting(noterl.DQN):
    """Uses a hyperparameter inside the loss."""

    def loss(self, batch):
        return super().loss(batch._replace(discount=batch.discount * self.gamma))


def test_hyperparameter_in_the_loss_can_change_without_retracing() -> None:
    agent = Discounting(VECTOR, double=False, hidden=(8,), seed=3, gamma=0.9)
    agent.compile("adam", replay=noterl.Replay(64), batch_size=4)
    agent.build()
    weights = agent.get_state()["variables"]
    truth = reference.DQN(reference.mlp((8,)), weights["q"], weights["target_q"], reference.Adam(), double=False)
    traces = []
    for gamma in (0.9, 0.5, 0.0):
        agent.gamma = gamma
        assert float(agent.gamma) == gamma
        assert current().fetch(agent.gamma) == np.float32(gamma)
        batch = random_batch(4, 8)
        run_updates(agent, batch, 4)
        for k in range(4):
            truth.update(row(batch._replace(discount=batch.discount * np.float32(gamma)), k))
        assert_all_close(networks.get_weights(agent.q), truth.weights, "weights")
        traces.append(agent.trace_counts["update"])
    assert len(set(traces)) == 1


@pytest.mark.backends("torch")
def test_changed_gamma_is_in_the_batches() -> None:
    agent = cartpole_agent()
    agent.fit(steps=30, verbose=0)
    for gamma in (0.99, 0.5):
        agent.gamma = gamma
        assert set(np.unique(sample_batch(agent, 4).discount)) - {np.float32(0)} == {np.float32(gamma)}


@pytest.mark.parametrize("tau", [0.0, 0.25, 1.0])
def test_polyak_coefficient_can_change(tau: float) -> None:
    agent = small_dqn(target_update=0.5)
    agent.tau = tau
    truth, _ = follow(agent, reference.Adam())
    batch = random_batch(4, 8)
    run_updates(agent, batch, 4)
    for k in range(4):
        truth.update(row(batch, k))
        truth.move_target(tau)
    assert_all_close(networks.get_weights(agent.target_q), truth.target, "target")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_memory_does_not_grow_with_updates() -> None:
    agent, metrics = small_dqn(), MetricMeans()
    batch = random_batch(100, 4)

    def run(calls: int) -> None:
        for _ in range(calls):
            result = run_updates(agent, batch, 100)
            metrics.add(result.logs, 100)
            metrics.take()
        gc.collect()

    run(20)
    grown = []
    for _ in range(3):  # a leak grows each time, the arenas of `malloc` grow once
        before = resident_bytes()
        run(20)
        grown.append(resident_bytes() - before)
    assert min(grown) < 0.6 * 2**20  # 300 bytes for each update


@pytest.mark.backends("torch")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_memory_does_not_grow_with_acting() -> None:
    agent = small_dqn()
    observation = np.ones(5, np.float32)

    def run(calls: int) -> None:
        for _ in range(calls):
            agent.act(observation)
        gc.collect()

    run(5_000)
    grown = []
    for _ in range(4):  # a leak grows each time, the arenas of `malloc` grow once
        before = resident_bytes()
        run(25_000)
        grown.append(resident_bytes() - before)
    assert min(grown) < 0.75 * 2**20  # 31 bytes for each call

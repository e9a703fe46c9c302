"""Updates that differ within `update_period`: their logs, their feedback, and the targets they move."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import noterl
from noterl import networks
from noterl.backends.common import NonFiniteError
from noterl.replay import Prioritized
from tests.support.batches import Corridor
from tests.support.representatives import representatives
from tests.test_algorithm import MyDQN


class Delayed(noterl.Agent):
    """Trains its second network in one of three updates; only that update logs its loss and gives feedback."""

    memory, head = "replay", noterl.heads.Q()
    optimizer_names = ("often", "seldom")
    update_period = 3

    def __init__(
        self, env: Any, *, logging_index: int = 2, last_finite: int | None = None, seed: int | None = None
    ) -> None:
        super().__init__(env, seed=seed)
        self.q, self.other = (networks.mlp(self.observation_size, (4,), self.action_size) for _ in range(2))
        self.logging_index, self.last_finite = logging_index, last_finite
        self.count = keras.Variable(np.float32(0), trainable=False, name="count")

    def forward(self, observation: Any) -> Any:
        return self.q(observation)

    def update(self, batch: Any, index: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
        self.count.assign_add(1.0)
        loss, _ = self.minimize(self.error, self.q, "often", batch)
        logs, feedback = {"loss": loss, f"at {index}": 10.0 + index}, None
        if index == self.logging_index:
            logs["seldom"], _ = self.minimize(self.rare, self.other, "seldom", batch)
            feedback = {"td_error": 100.0 * ops.ones_like(batch.weight)}
        return logs, feedback

    def error(self, batch: Any) -> Any:
        bad = 0.0 if self.last_finite is None else ops.where(self.count > self.last_finite, np.nan, 0.0)
        return ops.mean(ops.square(self.q(batch.observation))) + bad

    def rare(self, batch: Any) -> Any:
        return ops.mean(ops.square(self.other(batch.observation) - 1.0))


class WithTarget(Delayed):
    """Has a target of its first network, and no declaration of when it moves."""

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.target = networks.clone(self.q)

    def update_target(self) -> None:
        networks.copy(self.q, self.target, self.tau)


class PeriodicTarget(WithTarget):
    target_period = 3


class RecordLogs(noterl.Callback):
    def __init__(self) -> None:
        self.updates: list[tuple[int, dict[str, float]]] = []

    def on_batch_end(self, batch: int, logs: dict[str, float]) -> None:
        self.updates.append((batch, dict(logs)))


def delayed(steps_per_execution: Any = "auto", **arguments: Any) -> Delayed:
    agent = Delayed(lambda: Corridor(), seed=1, **arguments)
    agent.compile(
        replay=noterl.Replay(64, sampler=Prioritized()),
        batch_size=4,
        learning_starts=8,
        update_every=4,
        updates=4,
        steps_per_execution=steps_per_execution,
    )
    return agent


@pytest.mark.parametrize("logging_index", representatives([0, 2], 2))
def test_logs_of_an_update_are_those_it_returned(logging_index: int) -> None:
    agent, recorded = delayed(logging_index=logging_index), RecordLogs()
    agent.fit(steps=24, callbacks=[recorded], verbose=0)
    assert [number for number, _ in recorded.updates] == list(range(agent.updates)) and agent.updates >= 16
    for number, logs in recorded.updates:
        assert set(logs) == {"loss", f"at {number % 3}"} | ({"seldom"} if number % 3 == logging_index else set())
        assert logs[f"at {number % 3}"] == 10.0 + number % 3
        assert np.isfinite(list(logs.values())).all()


@pytest.mark.backends("torch")
def test_priorities_come_from_updates_with_feedback() -> None:
    agent = delayed()
    agent.fit(steps=9, verbose=0)
    equal = agent.replay.effective_sample_size()
    agent.fit(steps=20, verbose=0)
    assert equal == pytest.approx(9) and agent.replay.effective_sample_size() < len(agent.replay) - 0.5


@pytest.mark.backends("jax", "torch")
def test_results_do_not_depend_on_steps_per_execution() -> None:
    states = []
    for size in (1, 3, "auto"):
        agent = delayed(size)
        agent.fit(steps=20, verbose=0)
        states.append([*networks.get_weights(agent.q), *networks.get_weights(agent.other)])
    for other in states[1:]:
        for left, right in zip(states[0], other, strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.backends("torch")
def test_failing_update_logs_all_names() -> None:
    agent, recorded = delayed(last_finite=5), RecordLogs()
    with pytest.raises(NonFiniteError):
        agent.fit(steps=24, callbacks=[recorded], verbose=0)
    assert agent.updates == 5 and [number for number, _ in recorded.updates] == list(range(6))
    number, logs = recorded.updates[-1]
    assert set(logs) == {"loss", f"at {number % 3}", "seldom"} and np.isnan(logs["loss"])


@pytest.mark.parametrize("tau", representatives([0.25, 0.75], 0.25))
def test_copy_without_tau_uses_the_polyak_coefficient(tau: float) -> None:
    agent = MyDQN(lambda: Corridor(), hidden=8, seed=0)
    agent.compile(replay=noterl.Replay(50), learning_starts=8, batch_size=4, update_every=1, target_update=tau)
    agent.fit(steps=8, verbose=0)
    for _ in range(3):
        before = networks.get_weights(agent.target_q)
        agent.fit(steps=1, verbose=0)
        for old, now, online in zip(
            before, networks.get_weights(agent.target_q), networks.get_weights(agent.q), strict=True
        ):
            np.testing.assert_allclose(now, tau * online + (1 - tau) * old, rtol=1e-5, atol=1e-6)
            assert not np.array_equal(now, old)


def with_target(kind: type[WithTarget], **compiled: Any) -> WithTarget:
    agent = kind(lambda: Corridor(), seed=1)
    settings = {"learning_starts": 8, "update_every": 1, "updates": 1, "target_update": 0.25} | compiled
    agent.compile(replay=noterl.Replay(64), batch_size=4, **settings)
    return agent


def first_weight(network: Any) -> np.ndarray:
    return networks.get_weights(network)[0]


@pytest.mark.parametrize(
    ("kind", "period"), representatives([(WithTarget, 1), (PeriodicTarget, 3)], (PeriodicTarget, 3))
)
def test_target_moves_every_target_period_updates(kind: type[WithTarget], period: int) -> None:
    agent = with_target(kind)
    agent.fit(steps=8, verbose=0)
    for update in range(1, 8):
        before = first_weight(agent.target)
        agent.fit(steps=1, verbose=0)
        assert agent.updates == update
        expected = 0.25 * first_weight(agent.q) + 0.75 * before if update % period == 0 else before
        np.testing.assert_allclose(first_weight(agent.target), expected, rtol=1e-5, atol=1e-6)
        assert np.array_equal(first_weight(agent.target), before) == (update % period != 0)


@pytest.mark.parametrize("kind", representatives([WithTarget, PeriodicTarget], PeriodicTarget))
def test_target_does_not_depend_on_steps_per_execution(kind: type[WithTarget]) -> None:
    states = []
    for size in (1, 3, "auto"):
        agent = with_target(kind, update_every=7, updates=7, steps_per_execution=size)
        agent.fit(steps=22, verbose=0)
        assert agent.updates >= 14
        states.append(first_weight(agent.target))
    np.testing.assert_array_equal(states[1:], [states[0]] * 2)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("period", [0, 2, 1.5, True])
def test_bad_target_period_raises(period: Any) -> None:
    agent = WithTarget(lambda: Corridor(), seed=1)
    agent.target_period = period
    with pytest.raises(ValueError, match=rf"^target_period .*got {period}"):
        agent.fit(steps=10, verbose=0)


class Averaging(noterl.DQN):
    """Sets `tau` in its constructor."""

    def __init__(self, env: Any, *, tau: float = 0.25, seed: int | None = None) -> None:
        super().__init__(env, hidden=(), seed=seed)
        self.tau = tau

    def update_target(self) -> None:
        networks.copy(self.q, self.target_q, tau=self.tau)


def test_compile_with_hard_copies_keeps_tau_of_the_agent() -> None:
    agent = Averaging("CartPole-v1", seed=1)
    agent.compile(target_update=10)
    assert float(agent.tau) == 0.25
    networks.set_weights(agent.q, [weight + 1 for weight in networks.get_weights(agent.q)])
    before = networks.get_weights(agent.target_q)
    agent.update_target()
    for old, new in zip(before, networks.get_weights(agent.target_q), strict=True):
        np.testing.assert_allclose(new, old + 0.25, rtol=1e-5)
    agent.compile(target_update=0.5)
    assert float(agent.tau) == 0.5
    agent.compile(target_update=10)  # hard copies use tau = 1 again
    assert float(agent.tau) == 1.0


@pytest.mark.backends("jax")
def test_missing_values_are_no_nan_on_the_device() -> None:
    import jax

    with jax.debug_nans(True):
        agent = delayed()
        agent.fit(steps=20, verbose=0)
    assert agent.updates > 1

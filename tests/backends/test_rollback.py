"""An update with several optimizers is undone as a whole if one of its losses is not finite."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import noterl
from noterl import losses, networks
from noterl.backends import current
from tests.support.batches import VECTOR, copied, differences, random_batch, with_fault
from tests.support.parts import learner_of, run_updates
from tests.support.representatives import representatives


class Two(noterl.Agent):
    """Two networks and two optimizers; the second loss depends on the discount."""

    memory, head = "replay", noterl.heads.Q()
    optimizer_names = ("first", "second")

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.q = networks.mlp(self.observation_size, (8,), self.action_size)
        self.other = networks.mlp(self.observation_size, (4,), 1)
        self.seen = keras.Variable(np.float32(0), trainable=False, name="seen")

    def forward(self, observation):
        return self.q(observation)

    def update(self, batch):
        first, _ = self.minimize(self.first_loss, self.q, "first", batch)
        self.seen.assign_add(1.0)
        second, feedback = self.minimize(self.second_loss, [self.other], "second", batch)
        return {"first": first, "second": second}, feedback

    def first_loss(self, batch):
        return ops.mean(ops.square(losses.take(self.q(batch.observation), batch.action) - batch.reward))

    def second_loss(self, batch):
        value = ops.squeeze(self.other(batch.observation), -1) - batch.discount
        return ops.mean(ops.square(value)), {"td_error": value}


@pytest.mark.usefixtures("checked_by")
@pytest.mark.parametrize("field", ["reward", "discount"])
def test_whole_update_is_undone_if_one_loss_is_not_finite(field: str) -> None:
    agent, batch = Two(VECTOR, seed=1), random_batch(6, 4)
    agent.compile(["adam", "sgd"], replay=noterl.Replay(64), batch_size=4)
    agent.build()
    start = copied(agent.get_state())
    run_updates(agent, batch, 4)
    expected = copied(agent.get_state())
    assert float(current().fetch(agent.seen)) == 4
    agent.set_state(start)
    assert int(run_updates(agent, with_fault(batch, 4, field, np.nan), 6).applied) == 4
    assert differences(expected, agent.get_state()) == []


class Delayed(Two):
    """Applies the second optimizer in every other update, then moves the target. Assigns nothing else."""

    update_period = 2

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.target = networks.clone(self.q)

    def update(self, batch, index):
        first, _ = self.minimize(self.first_loss, self.q, "first", batch)
        if index == 1:
            self.minimize(self.second_loss, [self.other], "second", batch)
        return {"first": first}, {}

    def update_target(self):
        networks.copy(self.q, self.target, self.tau)


def delayed() -> Delayed:
    agent = Delayed(VECTOR, seed=1)
    agent.compile(["adam", "sgd"], replay=noterl.Replay(64), batch_size=4, target_update=0.1)
    agent.build()
    return agent


@pytest.mark.usefixtures("checked_by")
@pytest.mark.parametrize(
    ("field", "k"), representatives([("reward", 4), ("reward", 5), ("discount", 5)], ("discount", 5))
)
@pytest.mark.parametrize("before", representatives([0, 4], 0))
def test_updates_of_a_period_are_undone(field: str, k: int, before: int) -> None:
    """Tests the first call, which copies all variables, and a later one, which copies only what may be undone."""
    agent, batch = delayed(), random_batch(6, 4)
    if before:
        run_updates(agent, batch, before)
    start = copied(agent.get_state())
    run_updates(agent, batch, k)
    expected = copied(agent.get_state())
    agent.set_state(start)
    assert int(run_updates(agent, with_fault(batch, k, field, np.nan), 6).applied) == k
    assert differences(expected, agent.get_state()) == []


@pytest.mark.backends("torch")
def test_only_what_may_be_undone_is_copied() -> None:
    agent = delayed()
    run_updates(agent, random_batch(6, 4), 6)
    memory = learner_of(agent)._update.rollback._memory
    (copied_,) = memory.values()
    assert list(memory) == [(1, 1)]
    changed = [*networks.variables(agent.q), *agent.optimizers["first"].variables]
    assert [tuple(tensor.shape) for tensor in copied_] == [tuple(variable.shape) for variable in changed]

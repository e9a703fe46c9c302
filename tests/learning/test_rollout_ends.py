"""What ends the updates on a rollout before the last one leaves the state before it."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import noterl
from noterl.backends import current
from tests.agents.test_on_policy import filled, ppo
from tests.support.doubles import CountingEnv
from tests.support.parts import learner_of, run_updates
from tests.support.states import differences


def test_updates_end_when_the_policy_has_moved_too_far() -> None:
    agent = ppo("discrete", target_kl=1e-9)
    agent.compile(keras.optimizers.Adam(0.01), batch_size=4)
    agent.build()
    filled(agent)
    before = agent.get_state()
    rows = agent.draw(6)
    assert rows.shape == (6, 4)
    # The first update finds the policy that acted; it is the second that finds it moved, and is undone.
    first = run_updates(agent, rows, 1)
    assert first.applied == 1 and not first.stopped_early
    once = agent.get_state()
    agent.set_state(before)
    filled(agent)
    agent.draw(6)
    result = run_updates(agent, rows, 6)
    assert (result.applied, result.stopped_early) == (1, True)
    assert differences(once["variables"], agent.get_state()["variables"]) == []
    assert differences(once["optimizers"], agent.get_state()["optimizers"]) == []


def test_compiling_within_a_round_of_the_lanes_leaves_that_round_out() -> None:
    seen: list[np.ndarray] = []

    class Looking(noterl.PPO):
        def prepare(self, rollout):
            if rollout.reward.shape[0] == 4:  # not as it is traced
                seen.append(current().fetch(rollout.observation)[current().fetch(rollout.weight) > 0])
            return super().prepare(rollout)

    agent = Looking(CountingEnv, hidden=(4,), rollout_steps=4, epochs=1, seed=1)
    agent.compile(jit_compile=False)
    agent.fit(steps=4, num_envs=3, verbose=0)  # the first lane is a step ahead
    agent.compile(jit_compile=False)
    agent.fit(steps=14, verbose=0)
    (rows,) = seen
    assert rows[:, 1].tolist() == [2, 2, 2, 3, 3, 3, 4, 4, 4, 0, 0, 0] and (rows[:9, 0] == rows[0, 0]).all()


def test_a_minibatch_that_is_not_finite_leaves_the_state_before_it() -> None:
    agent = ppo("discrete")
    agent.compile(keras.optimizers.Adam(0.01), batch_size=4)
    agent.build()
    filled(agent)
    before = agent.get_state()
    agent.draw(6)
    rows = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert run_updates(agent, rows, 2).applied == 2
    twice = agent.get_state()
    agent.set_state(before)
    filled(agent)
    agent.draw(6)
    data = learner_of(agent)._data
    target = current().fetch(data.extra["target"])
    target[9] = np.nan
    learner_of(agent)._data = data._replace(extra={**data.extra, "target": keras.ops.convert_to_tensor(target)})
    result = run_updates(agent, rows, 3)
    assert (result.applied, result.stopped_early) == (2, False)
    assert np.isfinite(current().fetch(result.logs["loss"])[:3]).tolist() == [True, True, False]
    assert differences(twice["variables"], agent.get_state()["variables"]) == []
    assert differences(twice["optimizers"], agent.get_state()["optimizers"]) == []


@pytest.mark.parametrize("name", ["value_clip", "target_kl"])
def test_a_bound_that_updates_are_compiled_without_stays_none(name: str) -> None:
    agent = ppo("discrete")
    with pytest.raises(ValueError, match=f"^{name} "):
        setattr(agent, name, 0.1)
    bounded = ppo("discrete", **{name: 0.2})
    setattr(bounded, name, 0.1)
    assert float(getattr(bounded, name)) == pytest.approx(0.1)

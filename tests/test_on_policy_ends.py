"""What ends the updates on a rollout before the last one leaves the state before it."""

from __future__ import annotations

import keras
import numpy as np

from noterl.backends import current
from tests.states import differences
from tests.test_on_policy import filled, ppo


def test_updates_end_when_the_policy_has_moved_too_far() -> None:
    agent = ppo("discrete", target_kl=1e-9)
    agent.compile(keras.optimizers.Adam(0.01), batch_size=4)
    agent.build()
    filled(agent)
    before = agent.get_state()
    rows = agent.draw(6)
    assert rows.shape == (6, 4)
    # The first update finds the policy that acted; it is the second that finds it moved, and is undone.
    first = agent.run_updates(rows, 1)
    assert first.finite == 1 and not first.ended
    once = agent.get_state()
    agent.set_state(before)
    filled(agent)
    agent.draw(6)
    result = agent.run_updates(rows, 6)
    assert (result.finite, result.ended) == (1, True)
    assert differences(once["variables"], agent.get_state()["variables"]) == []
    assert differences(once["optimizers"], agent.get_state()["optimizers"]) == []


def test_a_minibatch_that_is_not_finite_leaves_the_state_before_it() -> None:
    agent = ppo("discrete")
    agent.compile(keras.optimizers.Adam(0.01), batch_size=4)
    agent.build()
    filled(agent)
    before = agent.get_state()
    agent.draw(6)
    rows = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert agent.run_updates(rows, 2).finite == 2
    twice = agent.get_state()
    agent.set_state(before)
    filled(agent)
    agent.draw(6)
    data = agent.on_policy._data
    target = current().fetch(data.extra["target"])
    target[9] = np.nan
    agent.on_policy._data = data._replace(extra={**data.extra, "target": keras.ops.convert_to_tensor(target)})
    result = agent.run_updates(rows, 3)
    assert (result.finite, result.ended) == (2, False)
    assert np.isfinite(current().fetch(result.logs["loss"])[:3]).tolist() == [True, True, False]
    assert differences(twice["variables"], agent.get_state()["variables"]) == []
    assert differences(twice["optimizers"], agent.get_state()["optimizers"]) == []

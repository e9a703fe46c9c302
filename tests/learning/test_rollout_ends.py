"""Updates on a rollout that end early leave the state before the failed or undone update."""

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


def test_target_kl_ends_updates_and_undoes_the_last() -> None:
    agent = ppo("discrete", target_kl=1e-9)
    agent.compile(keras.optimizers.Adam(0.01), batch_size=4)
    agent.build()
    filled(agent)
    before = agent.get_state()
    rows = learner_of(agent).sample(6)
    assert rows.shape == (6, 4)
    # The first update starts at the policy that acted. The second one finds that the policy moved, and is undone.
    first = run_updates(agent, rows, 1)
    assert first.applied == 1 and not first.stopped_early
    once = agent.get_state()
    agent.set_state(before)
    filled(agent)
    learner_of(agent).sample(6)
    result = run_updates(agent, rows, 6)
    assert (result.applied, result.stopped_early) == (1, True)
    assert differences(once["variables"], agent.get_state()["variables"]) == []
    assert differences(once["optimizers"], agent.get_state()["optimizers"]) == []


@pytest.mark.backends("torch")
def test_rollout_starts_at_the_next_round_after_compile() -> None:
    observations: list[np.ndarray] = []

    class Recording(noterl.PPO):
        def prepare(self, rollout):
            if rollout.reward.shape[0] == 4:  # not while it is traced
                observations.append(current().fetch(rollout.observation)[current().fetch(rollout.weight) > 0])
            return super().prepare(rollout)

    agent = Recording(CountingEnv, hidden=(4,), rollout_steps=4, epochs=1, seed=1)
    agent.compile(jit_compile=False)
    agent.fit(steps=4, num_envs=3, verbose=0)  # the first lane is one step ahead
    agent.compile(jit_compile=False)
    agent.fit(steps=14, verbose=0)
    (rows,) = observations
    assert rows[:, 1].tolist() == [2, 2, 2, 3, 3, 3, 4, 4, 4, 0, 0, 0] and (rows[:9, 0] == rows[0, 0]).all()


def test_non_finite_minibatch_leaves_the_state_before_it() -> None:
    agent = ppo("discrete")
    agent.compile(keras.optimizers.Adam(0.01), batch_size=4)
    agent.build()
    filled(agent)
    before = agent.get_state()
    learner_of(agent).sample(6)
    rows = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert run_updates(agent, rows, 2).applied == 2
    twice = agent.get_state()
    agent.set_state(before)
    filled(agent)
    learner_of(agent).sample(6)
    data = learner_of(agent).prepared_rows
    target = current().fetch(data.extra["target"])
    target[9] = np.nan
    learner_of(agent).prepared_rows = data._replace(extra={**data.extra, "target": keras.ops.convert_to_tensor(target)})
    result = run_updates(agent, rows, 3)
    assert (result.applied, result.stopped_early) == (2, False)
    assert np.isfinite(current().fetch(result.logs["loss"])[:3]).tolist() == [True, True, False]
    assert differences(twice["variables"], agent.get_state()["variables"]) == []
    assert differences(twice["optimizers"], agent.get_state()["optimizers"]) == []


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ["value_clip", "target_kl"])
def test_bound_that_was_none_cannot_be_set(name: str) -> None:
    agent = ppo("discrete")
    with pytest.raises(ValueError, match=rf"^{name} .*0\.1"):
        setattr(agent, name, 0.1)
    bounded = ppo("discrete", **{name: 0.2})
    setattr(bounded, name, 0.1)
    assert float(getattr(bounded, name)) == pytest.approx(0.1)

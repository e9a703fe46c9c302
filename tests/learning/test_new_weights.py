"""A rollout holds the actions of one policy: new weights discard the rollout in progress."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import noterl
from noterl.backends import ops
from noterl.callbacks import LambdaCallback
from noterl.imitation import Demonstrations
from tests.support.doubles import RandomWalkEnv

pytestmark = pytest.mark.backends("torch")


def ppo(seed: int = 1, **options: Any) -> noterl.PPO:
    agent = noterl.PPO(RandomWalkEnv, rollout_steps=8, epochs=1, hidden=(4,), seed=seed, **options)
    agent.compile(batch_size="rollout", jit_compile=False)
    return agent


def watched(agent: noterl.PPO) -> list[float]:
    """Return a list that receives, for each rollout, the largest error of its log-probabilities."""
    agent.build()
    errors: list[float] = []
    learner = agent._parts.learner
    begin, prepare, acted = learner.begin_round, learner.prepare, [np.zeros(0)] * agent.rollout_steps

    def record(observations: Any, actions: Any, fields: Any) -> None:
        begin(observations, actions, fields)
        normalizers = agent.spaces.normalizers
        inputs = normalizers.normalize_observation(observations) if normalizers else observations
        acted[learner.rollout.round] = ops.convert_to_numpy(
            agent.log_prob(ops.convert_to_tensor(inputs, "float32"), ops.convert_to_tensor(actions))
        )

    def check() -> Any:
        data = prepare()
        errors.append(float(np.abs(ops.convert_to_numpy(data.extra["log_prob"]) - np.concatenate(acted)).max()))
        return data

    learner.begin_round, learner.prepare = record, check
    return errors


def other_weights(**options: Any) -> Any:
    return ppo(seed=9, **options).get_weights()


def pretrain(agent: noterl.PPO) -> None:
    observations = np.zeros((10, *agent.observation_shape), np.float32)
    spaces = {"observation_space": agent.observation_space, "action_space": agent.action_space}
    data = Demonstrations([observations], [np.ones((9, 1), np.float32)], [np.zeros(9)], [True], **spaces)
    # The standard deviation stays near 0.6: a far smaller one would enlarge the rounding of the log-probabilities.
    agent.pretrain(data, updates=50, batch_size=4, optimizer=0.01, verbose=0)


@pytest.mark.parametrize(
    "change", [lambda agent: agent.set_weights(other_weights()), pretrain], ids=["set", "pretrain"]
)
def test_new_weights_between_fits_begin_a_new_rollout(change: Any) -> None:
    agent = ppo()
    errors = watched(agent)
    agent.fit(steps=5, verbose=0)
    change(agent)
    agent.fit(steps=7, verbose=0)
    assert agent.updates == 0 and agent._parts.learner.rollout.round == 7
    agent.fit(steps=9, verbose=0)
    assert agent.updates == 2 and max(errors) < 1e-6


def test_new_weights_in_a_callback_begin_a_new_rollout() -> None:
    agent = ppo()
    errors = watched(agent)
    change = LambdaCallback(on_episode_end=lambda episode, logs: agent.set_weights(other_weights()))
    agent.fit(steps=60, num_envs=2, callbacks=[change], verbose=0)
    assert agent.updates > 0 and max(errors) < 1e-6


def test_same_weights_keep_the_rollout() -> None:
    """As in `Arena`, which plays with other weights and then sets the current ones again."""
    agent, whole = ppo(), ppo()
    errors = watched(agent)
    agent.fit(steps=5, verbose=0)
    current = agent.get_weights()
    agent.set_weights(other_weights())
    agent.set_weights(current)
    agent.fit(steps=3, verbose=0)
    whole.fit(steps=8, verbose=0)
    assert agent.updates == 1 and max(errors) < 1e-6
    assert noterl.envs.equal(agent.get_weights(), whole.get_weights())


def test_running_returns_of_discarded_steps_are_reset() -> None:
    agent = ppo(normalize_reward=True)
    agent.fit(steps=12, verbose=0)
    agent.spaces.normalizers.returns[:] = 5.0
    agent.set_weights(other_weights(normalize_reward=True))
    agent.fit(steps=1, verbose=0)
    assert agent.spaces.normalizers.returns.tolist() == [0.0] and agent._parts.learner.rollout.round == 1


def test_new_weights_before_the_first_fit_change_nothing() -> None:
    agent = ppo()
    agent.set_weights(other_weights())
    assert agent._parts.learner.acting_policy is None

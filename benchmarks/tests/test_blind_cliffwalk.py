"""The Blind Cliffwalk: its dynamics, true values, check and state."""

import itertools

import numpy as np
import pytest

from benchmarks.blind_cliffwalk import BlindCliffwalk
from noterl import envs

pytestmark = pytest.mark.backend_free


@pytest.mark.parametrize("n", [1, 2, 5])
def test_exactly_one_sequence_of_actions_has_the_reward(n):
    env, lengths, earned = BlindCliffwalk(n), [], []
    for actions in itertools.product((0, 1), repeat=n):
        observation, _ = env.reset()
        assert observation == 0
        for step, action in enumerate(actions):
            following, reward, terminated, truncated, _ = env.step(action)
            assert not truncated
            if terminated:
                lengths.append(step + 1)
                earned.append((reward, list(actions)))
                break
            assert (following, reward, action) == (step + 1, 0.0, step % 2)
    assert len(earned) == 2**n
    assert sum(lengths) == 2 ** (n + 1) - 2  # the paper's number of transitions
    assert [actions for reward, actions in earned if reward] == [env.right]


def test_true_values_solve_the_bellman_equation():
    env, gamma = BlindCliffwalk(6), 0.8
    values = env.action_values(gamma)
    for state in range(6):
        for action in range(2):
            env.set_state({"state": state})
            following, reward, terminated, _, _ = env.step(action)
            target = reward + gamma * (not terminated) * values[following].max()
            assert values[state, action] == pytest.approx(target)
    assert values[0, 0] == pytest.approx(gamma**5)


def test_cliffwalk_passes_check():
    report = envs.check(BlindCliffwalk(4))
    assert report.ok and not report.warnings, report
    assert report.resumable == "state"


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "many"])
def test_bad_sizes_raise(n):
    with pytest.raises(ValueError, match="n must be a positive int"):
        BlindCliffwalk(n)


def test_state_is_restored():
    env, other = BlindCliffwalk(4), BlindCliffwalk(4)
    env.reset()
    env.step(0)
    other.set_state(env.get_state())
    assert np.all(other.step(1)[0] == env.step(1)[0] == 2)

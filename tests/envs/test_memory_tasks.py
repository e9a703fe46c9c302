"""Wrappers and tasks for agents with a memory."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_equal

import noterl
from noterl import envs
from noterl.envs.tasks.memory import NORTH

pytestmark = pytest.mark.backends("torch")


@pytest.mark.parametrize("make", [envs.RepeatPrevious, envs.TMaze, lambda: envs.hide("CartPole-v1", [1, 3])])
def test_task_passes_the_check(make: Any) -> None:
    report = envs.check(make, steps=150)
    assert report.ok, report


def test_wrapper_of_the_previous_step_passes_the_check() -> None:
    report = envs.check(lambda: envs.PreviousStep(gymnasium.make("Pendulum-v1")), steps=50)
    assert report.ok, report


@pytest.mark.parametrize(
    "make",
    [
        lambda: envs.PreviousStep(envs.TMaze(3)),
        lambda: envs.hide(envs.TMaze(3), [1]),
        lambda: envs.FrameStack(envs.TMaze(3), 2),
    ],
)
def test_wrapped_task_can_be_copied_and_restored(make: Any) -> None:
    env = make()
    env.reset(seed=1)
    state = envs.get_state(env)
    assert state is not None
    first = env.step(0)
    copy = envs.resolve(make()).make(1)
    copy.reset(seed=9)
    envs.set_state(copy, state)
    assert_equal(copy.step(0), first)


@pytest.mark.parametrize("k", [1, 4])
def test_perfect_memory_gets_the_largest_return(k: int) -> None:
    env = envs.RepeatPrevious(k)
    for right in (True, False):
        observation, _ = env.reset(seed=3)
        shown, total, over, steps = [observation], 0.0, False, 0
        while not over:
            remembered = shown[-1 - k] if len(shown) > k else 0
            observation, reward, over, _, _ = env.step(remembered if right else (remembered + 1) % 4)
            shown.append(observation)
            total, steps = total + reward, steps + 1
        assert total == pytest.approx(1.0 if right else -1.0)
        assert steps == 52


def test_maze_rewards_the_turn_of_the_signal() -> None:
    env = envs.TMaze(3)
    sides = set()
    for seed in range(8):
        signal, _ = env.reset(seed=seed)
        is_north = bool((signal == NORTH).all())
        sides.add(is_north)
        rewards = [env.step(action)[1] for action in (3, 0, 1, 3, 1, 1)]
        assert rewards == [-0.1, -0.1, 0.0, 0.0, 0.0, 0.0]
        observation, reward, terminated, *_ = env.step(1)
        assert (observation.tolist(), reward, terminated) == ([0.0, 1.0, 0.0], 0.0, False)
        assert env.step(1)[1] == -0.1
        *_, reward, terminated, truncated, info = env.step(0 if is_north else 2)
        assert (terminated, truncated, info["is_success"]) == (True, False, True)
    assert sides == {True, False}


@pytest.mark.parametrize(
    ("functions", "env", "count"),
    [(envs.functional_repeat_previous, envs.RepeatPrevious, 52), (envs.functional_t_maze, envs.TMaze, 200)],
)
def test_functions_of_jax_are_the_same_task(functions: Any, env: Any, count: int) -> None:
    pytest.importorskip("jax")
    ours, theirs, rng = functions(), env(), np.random.default_rng(0)
    first, _ = ours.reset(seed=0)
    theirs.reset(seed=0)
    if env is envs.RepeatPrevious:
        theirs.deck = np.asarray(ours.unwrapped.get_state()["leaves"][0])
    else:
        theirs.is_north = bool((first == NORTH).all())
    for _ in range(count):
        action = int(rng.choice(4, p=[0.05, 0.8, 0.05, 0.1])) if env is envs.TMaze else int(rng.integers(4))
        found, expected = ours.step(action), theirs.step(action)
        np.testing.assert_array_equal(found[0], expected[0])
        assert found[1] == pytest.approx(expected[1], abs=1e-6)
        assert found[2:4] == expected[2:4]
        if found[2] or found[3]:
            break
    assert found[2] or found[3]


def test_previous_action_and_reward_are_observed() -> None:
    env = envs.PreviousStep(gymnasium.make("CartPole-v1"))
    observation, _ = env.reset(seed=0)
    assert observation["action"].tolist() == [0.0, 0.0]
    observation, reward, *_ = env.step(1)
    assert (observation["action"].tolist(), observation["reward"].tolist()) == ([0.0, 1.0], [reward])
    assert env.observation_space.contains(observation)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: envs.hide("CartPole-v1", [4]), "indices must be components"),
        (lambda: envs.hide("CartPole-v1", [0.5]), "indices must be components"),
        (lambda: envs.hide("FrozenLake-v1", [0]), "env must have vectors"),
        (lambda: envs.RepeatPrevious(52), "k must be below"),
        (lambda: envs.TMaze(0), "length must be"),
        (lambda: envs.functional_repeat_previous(52), "k must be below"),
    ],
)
def test_arguments_are_checked(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_workers_make_copies_of_hidden_environments() -> None:
    agent = noterl.DQN(envs.hide("CartPole-v1", [1, 3]), hidden=(4,), seed=0)
    agent.compile(learning_starts=10, update_every=10, batch_size=4)
    agent.fit(steps=40, num_envs=2, workers=2, verbose=0)
    assert (agent.replay.storage.observation[:40, [1, 3]] == 0).all()

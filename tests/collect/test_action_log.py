"""The actions since a reset are packed, bounded, and not recorded if the environment restores its state."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from noterl.collect import ScalarLanes, VectorLanes
from noterl.collect.action_log import MAX_BYTES, ActionLog
from noterl.collect.checks import check_state
from noterl.envs import resolve
from noterl.random import Generators
from tests.support.doubles import CountingEnv, RandomWalkEnv, StatefulEnv, TogetherVectorEnv

pytestmark = pytest.mark.backend_free

SPACES = [
    spaces.Discrete(4),
    spaces.Discrete(300),
    spaces.Box(-1, 1, (6,), np.float32),
    spaces.Box(-1, 1, (), np.float64),
    spaces.MultiDiscrete([3, 2]),
]


def step(lanes: ScalarLanes | VectorLanes, count: int) -> None:
    """Step all lanes with random actions, as `fit` does."""
    space = lanes.source.action_space
    for number in range(count):
        for lane in lanes.idle():
            lanes.reset(lane, number, number)
        lanes.begin_round(np.stack([space.sample() for _ in range(lanes.num_envs)]))
        while lanes.actions is not None:
            for transition in lanes.tick(number):
                if transition.terminated or transition.truncated:
                    lanes.ledger.finish(transition.lane)


def lanes_of(factory: Any, num_envs: int = 1) -> ScalarLanes:
    return ScalarLanes(resolve(factory), num_envs, Generators(0))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_actions_are_packed_and_returned_as_they_were(space: Any) -> None:
    space.seed(1)
    log, taken = ActionLog(space), [space.sample() for _ in range(70)]
    for action in taken:
        log.append(int(action) if isinstance(space, spaces.Discrete) else np.asarray(action))
    found = log.actions()
    assert found.nbytes == 70 * (
        1
        if space == SPACES[0]
        else np.min_scalar_type(299).itemsize
        if space == SPACES[1]
        else np.asarray(taken[0]).nbytes
    )
    assert np.array_equal(found, np.stack(taken))
    log.restart(found[:3])
    assert np.array_equal(log.actions(), found[:3])
    log.restart()
    assert log.actions().shape == (0, *space.shape)


def test_log_takes_at_most_64_mebibytes() -> None:
    size = 2**18
    log, kept = ActionLog(spaces.Box(-1, 1, (size // 4,), np.float32)), []
    action = np.zeros(size // 4, np.float32)
    while log.append(action):
        kept.append(sys.getsizeof(log._bytes))
    assert MAX_BYTES - size < len(kept) * size <= MAX_BYTES
    assert max(kept) <= 2**26 and log.actions() is None
    assert log.append(action) and log.actions() is None
    log.restart()
    assert len(log.actions()) == 0


@pytest.mark.parametrize("vector", [False, True])
def test_too_long_episode_warns_once_and_is_not_restored(vector: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noterl.collect.action_log.MAX_BYTES", 20)
    factory = lambda: gymnasium.wrappers.TimeLimit(CountingEnv(length=10**9), 30)  # noqa: E731

    def opened() -> ScalarLanes | VectorLanes:
        if vector:
            return VectorLanes(resolve(TogetherVectorEnv([factory] * 2)), Generators(0))
        return lanes_of(factory, 2)

    lanes = opened()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step(lanes, 5)
        assert not caught
        step(lanes, 80)
    (warning,) = caught
    assert warning.category is RuntimeWarning
    assert all(word in str(warning.message) for word in ("64 MiB", "get_state", "set_state"))
    state = lanes.get_state()
    check_state(state, lanes.source)
    assert (state["vector"] if vector else state["lanes"][0])["actions"] is None
    other = opened()
    with pytest.warns(RuntimeWarning, match=r"exceed 64 MiB\)\. Its episode") as restarted:
        other.set_state(state)
    assert len(restarted) == (1 if vector else 2) and other.idle() == [0, 1]


def test_actions_are_recorded_again_in_the_next_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noterl.collect.action_log.MAX_BYTES", 20)
    lanes = lanes_of(lambda: CountingEnv(length=30))
    with pytest.warns(RuntimeWarning, match="64 MiB"):
        step(lanes, 30)
    step(lanes, 7)
    assert lanes.get_state()["lanes"][0]["actions"].shape == (7,)


def test_no_actions_are_recorded_if_the_environment_restores_its_state() -> None:
    lanes, other = (lanes_of(lambda: gymnasium.wrappers.TimeLimit(StatefulEnv(limit=1e9), 50)) for _ in range(2))
    step(lanes, 9)
    state = lanes.get_state()
    check_state(state, lanes.source)
    assert state["lanes"][0]["actions"] is None
    other.set_state(state)
    assert other.idle() == []
    for each in (lanes, other):
        each.begin_round(np.ones((1, 1), np.float32))
    (first,), (second,) = lanes.tick(9), other.tick(9)
    assert np.array_equal(first.next_observation, second.next_observation) and first.reward == second.reward


def test_actions_are_recorded_if_a_file_cannot_hold_the_state() -> None:
    class Unspeakable(StatefulEnv):
        def get_state(self) -> dict[str, Any]:
            return {**super().get_state(), "file": sys.stdout}

    for kind in (Unspeakable, RandomWalkEnv):
        lanes = lanes_of(lambda kind=kind: kind(limit=1e9, length=100))
        step(lanes, 9)
        assert lanes.get_state()["lanes"][0]["actions"].shape == (9, 1)

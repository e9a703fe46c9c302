"""The rollout buffer: contents, ends of episodes, and exact restores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from noterl.replay.rollout import Rollout
from noterl.types import Transition
from tests.support.states import differences

pytestmark = pytest.mark.backend_free

BOX, ACTIONS = spaces.Box(-9.0, 9.0, (2,), np.float64), spaces.Box(-1.0, 1.0, (1,), np.float32)


def rollout(length: int = 4, lanes: int = 2) -> Rollout:
    made = Rollout(length)
    made.build(BOX, ACTIONS)
    made.open(lanes)
    return made


def play(memory: Rollout, number: int, steps: dict[int, tuple[bool, bool]]) -> None:
    """Play round `number`: the observation is [number, lane], the action number + lane / 10, the reward 10 * number."""
    lanes = np.arange(memory.num_envs)
    observations = np.stack([np.full(len(lanes), number, float), lanes], axis=-1)
    memory.begin_round(observations, (number + lanes / 10).astype(np.float32)[:, None])
    for lane, ends in steps.items():
        after = np.array([number + 0.5, lane])
        memory.add(Transition(lane, observations[lane], np.zeros(1), 10.0 * number, after, *ends))
    memory.end_round()


ON, TERMINATED, TRUNCATED = (False, False), (True, False), (False, True)


def test_complete_rollout() -> None:
    memory = rollout()
    for number, steps in enumerate([{0: ON, 1: ON}, {0: TERMINATED, 1: ON}, {0: ON, 1: TRUNCATED}, {0: ON, 1: ON}]):
        assert not memory.is_full
        play(memory, number, steps)
    assert memory.is_full and len(memory) == 8
    batch = memory.batch(gamma=0.5)
    assert batch.observation.dtype == batch.next_observation.dtype == np.float32
    assert batch.observation[2].tolist() == [[2, 0], [2, 1]]
    assert batch.next_observation[2].tolist() == [[2.5, 0], [2.5, 1]]
    np.testing.assert_allclose(batch.action[..., 0], [[0, 0.1], [1, 1.1], [2, 2.1], [3, 3.1]], rtol=1e-6)
    assert batch.reward.tolist() == [[0, 0], [10, 10], [20, 20], [30, 30]]
    assert batch.discount.tolist() == [[0.5, 0.5], [0, 0.5], [0.5, 0.5], [0.5, 0.5]]
    assert batch.extra["continues"].tolist() == [[1, 1], [0, 1], [1, 0], [0, 0]]
    assert batch.extra["ended"].tolist() == [[0, 0], [1, 0], [0, 1], [0, 0]]
    assert batch.weight.min() == 1 and batch.index.ravel().tolist() == list(range(8))


def test_round_after_a_complete_rollout_starts_the_next_one() -> None:
    memory = rollout(length=2, lanes=1)
    for number in range(3):
        play(memory, number, {0: TERMINATED})
    assert memory.round == 1 and len(memory) == 1
    play(memory, 3, {0: ON})
    assert memory.batch(gamma=1.0).observation[:, 0, 0].tolist() == [2, 3]


def test_lane_without_a_step_has_weight_zero() -> None:
    memory = rollout()
    for number, steps in enumerate([{0: ON, 1: TERMINATED}, {0: ON}, {0: ON, 1: ON}, {0: ON, 1: ON}]):
        play(memory, number, steps)
    batch = memory.batch(gamma=1.0)
    assert batch.weight.tolist() == [[1, 1], [1, 0], [1, 1], [1, 1]] and len(memory) == 7
    assert batch.extra["continues"].tolist() == [[1, 0], [1, 0], [1, 1], [0, 0]]


def test_interrupted_lane_does_not_continue() -> None:
    memory = rollout()
    play(memory, 0, {0: ON, 1: ON})
    memory.interrupt(1)
    for number in range(1, 4):
        play(memory, number, {0: ON, 1: ON})
    memory.interrupt(0)  # after the last round
    batch = memory.batch(gamma=1.0)
    assert batch.extra["continues"].tolist() == [[1, 0], [1, 1], [1, 1], [0, 0]]
    assert not (batch.discount == 0).any()


def test_incomplete_round_is_replaced() -> None:
    memory = rollout()
    play(memory, 0, {0: ON, 1: ON})
    memory.begin_round(np.full((2, 2), 7.0), np.full((2, 1), 7.0))
    memory.add(Transition(0, None, None, 7.0, np.zeros(2), False, False))
    for number in range(1, 4):
        play(memory, number, {0: ON, 1: ON})
    batch = memory.batch(gamma=1.0)
    # Lane 0 had taken its step in the replaced round; lane 1 had not.
    assert batch.extra["continues"].tolist() == [[0, 1], [1, 1], [1, 1], [0, 0]]
    assert batch.reward[1].tolist() == [10, 10]


def test_steps_of_a_round_that_started_before_are_ignored() -> None:
    memory = rollout()  # as after a second compile during a round
    memory.add(Transition(1, None, None, 7.0, np.ones(2), False, True))
    memory.end_round()
    assert memory.round == 0 and len(memory) == 0
    for number in range(4):
        assert not memory.is_full
        play(memory, number, {0: ON, 1: ON})
    batch = memory.batch(gamma=1.0)
    assert batch.reward[:, 0].tolist() == [0, 10, 20, 30] and batch.extra["ended"].sum() == 0
    other = rollout()
    other.set_state(rollout().get_state())
    other.add(Transition(1, None, None, 7.0, np.ones(2), False, True))
    assert len(other) == 0


def test_state_does_not_depend_on_the_previous_rollout() -> None:
    used, fresh = rollout(), rollout()
    for number in range(4):
        play(used, number, {0: TERMINATED, 1: TRUNCATED})
    for memory in (used, fresh):
        play(memory, 5, {0: ON})
        memory.begin_round(np.ones((2, 2)), np.ones((2, 1)))
        memory.add(Transition(1, None, None, 1.0, np.ones(2), False, True))
    assert differences(used.get_state(), fresh.get_state()) == []


def test_another_number_of_lanes_discards_the_rollout() -> None:
    memory = rollout()
    play(memory, 0, {0: ON, 1: ON})
    memory.open(2)
    assert memory.round == 1
    memory.open(3)
    assert memory.round == 0 and len(memory) == 0 and memory.observation.shape == (4, 3, 2)


@pytest.mark.parametrize("rounds", range(7))
def test_restored_rollout_continues_exactly(rounds: int) -> None:
    def begin(memory: Rollout, number: int) -> None:
        memory.begin_round(np.full((2, 2), number), np.full((2, 1), number))

    first = rollout()
    for number in range(rounds):
        play(first, number, {0: ON, 1: TRUNCATED if number % 2 else ON})
    begin(first, rounds)
    first.add(Transition(0, None, None, 1.0, np.ones(2), False, True))
    second = rollout(lanes=3)
    second.set_state(first.get_state())
    assert differences(second.get_state(), first.get_state()) == [] and len(second) == len(first)
    second.open(2)
    for memory in (first, second):
        memory.add(Transition(1, None, None, 2.0, np.zeros(2), False, False))
        memory.end_round()
        for number in range(rounds + 1, 8):
            play(memory, number, {0: ON, 1: ON})
    assert first.is_full and second.is_full
    assert differences(dict(first.batch(gamma=0.9)._asdict()), dict(second.batch(gamma=0.9)._asdict())) == []


def damaged(**changes: Any) -> dict[str, Any]:
    memory = rollout()
    play(memory, 0, {0: ON, 1: ON})
    state = memory.get_state()
    arrays = {**state["arrays"], **changes.pop("arrays", {})}
    return {**state, "arrays": {name: array for name, array in arrays.items() if array is not None}, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 5}, r"\['length'\] must be 4, got 5"),
        ({"round": -1}, r"\['round'\]"),
        ({"num_envs": 3}, r"\['observation'\]"),
        ({"arrays": {"reward": np.zeros((2, 2), np.float64)}}, r"\['reward'\] .* got float64"),
        ({"arrays": {"valid": None}}, r"\['arrays'\] must be a dict with the keys"),
        ({"arrays": {"other": np.zeros(3)}}, r"\['arrays'\] must be a dict with the keys"),
    ],
)
def test_bad_state_raises_and_changes_nothing(changes: dict[str, Any], message: str) -> None:
    memory = rollout()
    play(memory, 0, {0: ON, 1: ON})
    before = memory.get_state()
    with pytest.raises(ValueError, match=message):
        memory.set_state(damaged(**changes))
    assert differences(before, memory.get_state()) == []


@pytest.mark.parametrize("length", [0, -1, 2.5, True, "4"])
def test_length_must_be_a_positive_int(length: Any) -> None:
    with pytest.raises(ValueError, match="rollout_steps must be a positive int"):
        Rollout(length)

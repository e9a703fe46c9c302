"""Further fields of transitions: those of actions, and those of `info`, in both kinds of lanes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from noterl.collect import ScalarLanes, VectorLanes
from noterl.envs import resolve
from noterl.random import Generators
from noterl.replay import Replay, Triplets
from tests.support.doubles import CountingEnv, TogetherVectorEnv

pytestmark = pytest.mark.backend_free

MASK = {"action_mask": ((3,), np.bool_, True), "to_play": ((), np.int8, 0)}


class Masked(gymnasium.Env[Any, Any]):
    """Reports a mask with the current step's position, except at step 2."""

    width = 3

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), self.info()

    def info(self) -> dict[str, Any]:
        mask = np.arange(self.width) == self.count % 3
        return {} if self.count == 2 else {"action_mask": mask, "to_play": self.count % 2}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return np.full(1, self.count, np.float32), 1.0, self.count == 4, False, self.info()


def advance(lanes: Any, extra: dict[str, np.ndarray]) -> list[Any]:
    lanes.begin_round(np.zeros(lanes.num_envs, np.int64), extra)
    found: list[Any] = []
    while lanes.actions is not None:
        found += lanes.tick(1)
    return found


@pytest.mark.parametrize("kind", [ScalarLanes, VectorLanes])
def test_fields_of_actions_are_in_their_transitions(kind: Any) -> None:
    if kind is ScalarLanes:
        lanes: Any = ScalarLanes(resolve(CountingEnv), 2, Generators(0))
    else:
        lanes = VectorLanes(resolve(TogetherVectorEnv([CountingEnv] * 2)), Generators(0))
    for lane in range(2):
        lanes.reset(lane, lane, 0)
    share = np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)
    transitions = advance(lanes, {"share": share})
    assert [transition.extra["share"].tolist() for transition in transitions] == share.tolist()
    assert [transition.extra for transition in advance(lanes, {})] == [None, None]


def test_fields_of_info_describe_the_observation_and_the_next_one() -> None:
    lanes = ScalarLanes(resolve(Masked), 1, Generators(0), info_spec=MASK)
    lanes.reset(0, 0, 0)
    masks = [[True, False, False], [False, True, False], [True, True, True], [True, False, False], [False, True, False]]
    players = [0, 1, 0, 1, 0]
    for step in range(4):
        (transition,) = advance(lanes, {})
        found = {name: value.tolist() for name, value in transition.extra.items()}
        assert found == {
            "action_mask": masks[step],
            "to_play": players[step],
            "next_action_mask": masks[step + 1],
            "next_to_play": players[step + 1],
        }


def test_field_of_another_shape_raises() -> None:
    class Wide(Masked):
        width = 4

    lanes = ScalarLanes(resolve(Wide), 1, Generators(0), info_spec=MASK)
    with pytest.raises(ValueError, match="action_mask"):
        lanes.reset(0, 0, 0)


@pytest.mark.parametrize("n_step", [1, 3])
def test_next_fields_of_a_batch_are_those_of_the_next_observation(n_step: int) -> None:
    replay = Replay(20, n_step=n_step)
    spec = {"mask": ((2,), np.bool_), "next_mask": ((2,), np.bool_), "step": ((), np.float32)}
    replay.build(spaces.Box(0, 99, (1,), np.float32), spaces.Discrete(2), extra_spec=spec)

    def bits(number: int) -> np.ndarray:
        return np.array([number & 1, number & 2], np.bool_)

    for step in range(10):
        extra = {"mask": bits(step), "next_mask": bits(step + 1), "step": step}
        replay.add(0, [step], 0, 1.0, [step + 1], step == 6, False, extra)
    batch = replay.gather(replay.sample(4, 8, generator=np.random.default_rng(0)), gamma=0.9)
    for place in np.ndindex(4, 8):
        now, following = int(batch.observation[place][0]), int(batch.next_observation[place][0])
        assert batch.extra["mask"][place].tolist() == bits(now).tolist()
        assert batch.extra["next_mask"][place].tolist() == bits(following).tolist()
        assert batch.extra["step"][place] == now


def test_next_fields_of_triplets_are_those_of_the_next_observations() -> None:
    replay = Replay(40, relabel=Triplets())
    spec = {"mask": ((2,), np.bool_), "next_mask": ((2,), np.bool_)}
    replay.build(spaces.Box(0, 99, (1,), np.float32), spaces.Discrete(2), extra_spec=spec)

    def bits(number: Any) -> np.ndarray:
        return np.array([int(number) & 1, int(number) & 2], np.bool_)

    for step in range(20):
        replay.add(0, [step], 0, 1.0, [step + 1], step == 12, False, {"mask": bits(step), "next_mask": bits(step + 1)})
    batch = replay.gather(replay.sample(3, 4, generator=np.random.default_rng(0)), gamma=0.9)
    for place in np.ndindex(batch.observation.shape[:-1]):
        assert batch.extra["mask"][place].tolist() == bits(batch.observation[place][0]).tolist()
        assert batch.extra["next_mask"][place].tolist() == bits(batch.next_observation[place][0]).tolist()

"""Masks in lanes: they are offered at the first reset, and belong to the observation before and after each step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from noterl.collect import ScalarLanes, VectorLanes
from noterl.envs import resolve
from noterl.random import Generators
from tests.support.doubles import TogetherVectorEnv
from tests.support.masked_env import MaskedWalk, legal_actions

pytestmark = pytest.mark.backend_free

MODES = ("NextStep", "SameStep", "Disabled")


def vector(mode: str, **arguments: Any) -> TogetherVectorEnv:
    return TogetherVectorEnv([lambda: MaskedWalk(**arguments)] * 3, autoreset_mode=mode)


def play(lanes: Any, rounds: int) -> list[Any]:
    """Take random legal steps and return the transitions."""
    rng, found, number = np.random.default_rng(0), [], 0
    for _ in range(rounds):
        for lane in lanes.idle():
            lanes.reset(lane, number, 0)
            number += 1
            if lanes.fields.offered:
                lanes.fields.accept()
        masks = lanes.info["action_mask"]
        lanes.begin_round(np.array([rng.choice(np.flatnonzero(mask)) for mask in masks]))
        while lanes.actions is not None:
            for transition in lanes.tick(1):
                found.append(transition)
                if transition.terminated or transition.truncated:
                    lanes.ledger.finish(transition.lane)
    return found


@pytest.mark.parametrize("mode", [None, *MODES])
def test_transitions_hold_the_masks_of_both_observations(mode: str | None) -> None:
    lanes: Any = (
        ScalarLanes(resolve(MaskedWalk), 3, Generators(0))
        if mode is None
        else VectorLanes(resolve(vector(mode)), Generators(0))
    )
    found = play(lanes, 60)
    assert sum(one.terminated for one in found) > 3 and sum(one.truncated for one in found) > 3
    for one in found:
        assert one.extra["action_mask"].tolist() == legal_actions(one.observation).tolist()
        after = legal_actions(one.next_observation) | one.terminated  # terminal masks allow nothing, stored as all True
        assert one.extra["next_action_mask"].tolist() == after.tolist()


@pytest.mark.parametrize("mode", [None, *MODES])
def test_environments_without_masks_have_no_fields(mode: str | None) -> None:
    source = resolve(lambda: MaskedWalk("none")) if mode is None else resolve(vector(mode, masks="none"))
    lanes: Any = ScalarLanes(source, 2, Generators(0)) if mode is None else VectorLanes(source, Generators(0))
    for lane in lanes.idle():
        lanes.reset(lane, lane, 0)
    lanes.begin_round(np.zeros(lanes.num_envs, np.int64))
    assert not lanes.fields.offered and lanes.tick(1)[0].extra is None


def test_declined_masks_are_not_offered_again() -> None:
    lanes = ScalarLanes(resolve(MaskedWalk), 2, Generators(0))
    lanes.reset(0, 0, 0)
    lanes.fields.decline()
    lanes.reset(1, 1, 0)
    assert not lanes.fields.offered and not lanes.info


class Stuck(MaskedWalk):
    """Forbids all actions although the episode goes on."""

    at = 1

    def info(self, terminated: bool = False) -> dict[str, Any]:
        return {"action_mask": np.full(4, self.count < self.at, np.int8)}


@pytest.mark.parametrize("at", [0, 1])
def test_mask_that_forbids_all_actions_raises(at: int) -> None:
    class StuckAt(Stuck):
        pass

    StuckAt.at = at
    lanes = ScalarLanes(resolve(StuckAt), 1, Generators(0))
    with pytest.raises(ValueError, match=r"env: info\['action_mask'\] must allow"):
        lanes.reset(0, 0, 0)
        lanes.fields.accept()
        lanes.begin_round(np.array([int(lanes.environments[0].legal().argmax())]))
        lanes.tick(1)


def test_mask_of_steps_only_raises() -> None:
    class Late(MaskedWalk):
        def info(self, terminated: bool = False) -> dict[str, Any]:
            return super().info(terminated) if self.count else {}

    lanes = ScalarLanes(resolve(Late), 1, Generators(0))
    lanes.reset(0, 0, 0)
    lanes.begin_round(np.array([int(lanes.environments[0].legal().argmax())]))
    with pytest.raises(ValueError, match="reset"):
        lanes.tick(1)


@pytest.mark.parametrize("mode", [None, *MODES])
def test_state_of_lanes_holds_the_current_masks(mode: str | None) -> None:
    def make() -> Any:
        spec = {"action_mask": ((4,), np.bool_, True)}
        if mode is None:
            return ScalarLanes(resolve(MaskedWalk), 3, Generators(0), info_spec=spec)
        return VectorLanes(resolve(vector(mode)), Generators(0), spec)

    lanes, again = make(), make()
    play(lanes, 7)
    again.set_state(lanes.get_state())
    assert again.info["action_mask"].tolist() == lanes.info["action_mask"].tolist()

"""Fields of `info` from worker processes: those that the memory stores, and those of the logs."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from noterl.collect import WorkerError, Workers
from noterl.collect.checks import check_state
from tests.support.pools import Pool
from tests.support.states import differences
from tests.support.worker_envs import MaskedEnv, TextEnv

pytestmark = [
    pytest.mark.backend_free,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:workers. NumPy"),
]

SPEC = {"mask": ((3,), np.bool_, True), "late": ((), np.int16, -1)}
INFO = {"position": "sum", "late": "max"}


def start(made: Pool, info: dict[str, str] = INFO) -> Pool:
    made.lanes.ledger.record_info(info)
    return made.start()


def collected(made: Pool, count: int) -> list[Any]:
    """Return the transitions of some rounds, each with the values for the logs after it."""
    found = []
    for _ in range(count):
        for each in made.round():
            assert set(each.extra) == {"mask", "next_mask", "late", "next_late"}
            found.append((each._replace(extra=copy.deepcopy(each.extra)), made.lanes.ledger.info[each.lane].logs()))
    return found


def test_learner_that_acts_gives_the_fields_without_workers() -> None:
    expected = collected(start(Pool(MaskedEnv, 3, in_numpy=False, info_spec=SPEC)), 30)
    made = Pool(MaskedEnv, 3, 2, in_numpy=False, info_spec=SPEC)
    try:
        start(made)
        assert not differences(_plain(collected(made, 30)), _plain(expected))
    finally:
        made.lanes.close()


@pytest.mark.parametrize("in_numpy", [True, False])
def test_fields_describe_the_observation_and_the_next_one(in_numpy: bool) -> None:
    made = Pool(MaskedEnv, 2, Workers(2, collect=4), in_numpy=in_numpy, info_spec=SPEC)
    try:
        found = collected(start(made), 30)
    finally:
        made.lanes.close()
    for lane in range(2):
        own = [each for each in found if each[0].lane == lane]
        steps, total = 0, 0.0
        for transition, logs in own:
            extra = transition.extra
            for name, observation, step in (
                ("", transition.observation, steps),
                ("next_", transition.next_observation, steps + 1),
            ):
                mask = [True, True, True] if step % 3 == 2 else [observation[0] > 0, True, step % 2 == 0]
                assert extra[f"{name}mask"].tolist() == mask
                assert extra[f"{name}late"] == (-1 if step % 3 == 2 else step)
            steps, total = steps + 1, total + float(transition.next_observation[0])
            assert logs["position"] == pytest.approx(total, rel=1e-6)
            assert logs.get("late", 0) == max((step for step in range(1, steps + 1) if step % 3 != 2), default=0)
            if transition.terminated or transition.truncated:
                steps, total = 0, 0.0


@pytest.mark.parametrize("info", [INFO, {"late": "last"}, {}])
def test_restored_pool_continues_with_the_same_or_other_keys(info: dict[str, str]) -> None:
    settings = Workers(2, collect=5)
    made = start(Pool(MaskedEnv, 3, settings, info_spec=SPEC))
    try:
        made.rounds(3)
        state, generators = copy.deepcopy(made.lanes.get_state()), made.generators.get_state()
        check_state(state, made.source, info_spec=SPEC)
        expected = collected(made, 10)
    finally:
        made.lanes.close()
    other = Pool(MaskedEnv, 3, settings, seed=9, info_spec=SPEC)
    other.generators.set_state(generators)
    other.lanes.set_state(state)
    try:
        found = collected(start(other, info), 10)
    finally:
        other.lanes.close()
    assert not differences(*([list(each) for each, _ in _plain(run)] for run in (found, expected)))
    if info == INFO:
        assert [logs for _, logs in found] == [logs for _, logs in expected]
    for change in (
        lambda rows: rows.pop("info/late"),
        lambda rows: rows.update({"has_info/late": np.zeros(1, np.bool_)}),
        lambda rows: rows.pop("fields/next_mask"),
    ):
        broken = copy.deepcopy(state)
        change(broken["pool"]["rows"][0])
        with pytest.raises((ValueError, KeyError, TypeError)):
            check_state(broken, made.source, info_spec=SPEC)


def test_state_of_lanes_continues_in_workers_and_back() -> None:
    first = start(Pool(MaskedEnv, 2, in_numpy=False, info_spec=SPEC))
    first.rounds(4)
    state, generators = copy.deepcopy(first.lanes.get_state()), first.generators.get_state()
    expected = collected(first, 8)
    second = Pool(MaskedEnv, 2, 2, in_numpy=False, info_spec=SPEC)
    second.generators.set_state(generators)
    second.lanes.set_state(state)
    second.actor.explorer.generator.bit_generator.state = generators["states"]["exploration"]
    try:
        start(second)
        second.steps, second.episodes = 8, 2
        found = collected(second, 4)
        state, generators = copy.deepcopy(second.lanes.get_state()), second.generators.get_state()
    finally:
        second.lanes.close()
    third = Pool(MaskedEnv, 2, in_numpy=False, info_spec=SPEC)
    third.generators.set_state(generators)
    third.lanes.set_state(state)
    third.actor.explorer.generator.bit_generator.state = generators["states"]["exploration"]
    found += collected(start(third), 4)
    assert not differences(_plain(found), _plain(expected))


def test_value_that_is_not_a_number_raises_in_the_worker() -> None:
    made = Pool(TextEnv, 1, 1)
    with pytest.raises(WorkerError, match=r"ValueError.*'position'"):
        start(made, {"position": "last"}).rounds(3)
    made.lanes.close(kill=True)


def _plain(found: list[Any]) -> list[Any]:
    return [[list(transition), logs] for transition, logs in found]

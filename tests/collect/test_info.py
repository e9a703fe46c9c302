"""Values of the step's `info` in the logs of episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from noterl.collect.info import EpisodeInfo, check_info, info_of_lane

pytestmark = pytest.mark.backend_free

VALUES = [3.0, -1.0, 2.5]
EXPECTED = {"sum": sum(VALUES), "mean": np.mean(VALUES), "max": max(VALUES), "last": VALUES[-1]}


def filled(reductions: dict[str, str]) -> EpisodeInfo:
    episode = EpisodeInfo(reductions)
    for value in VALUES:
        episode.add({"x": value, "unused": "text"})
    return episode


@pytest.mark.parametrize("reduction", EXPECTED)
def test_reduction_equals_numpy(reduction: str) -> None:
    assert filled({"x": reduction}).logs() == {"x": EXPECTED[reduction]}


def test_steps_without_the_key_do_not_count() -> None:
    episode = EpisodeInfo({"x": "mean", "y": "last", "never": "max"})
    for info in ({}, {"x": 1}, {"y": True}, {"x": 4}):
        episode.add(info)
    assert episode.logs() == {"x": 2.5, "y": 1.0}


def test_maximum_of_negative_values_is_negative() -> None:
    episode = EpisodeInfo({"x": "max"})
    for value in (-3.0, -2.0, -5.0):
        episode.add({"x": value})
    assert episode.logs() == {"x": -2.0}


@pytest.mark.parametrize("value", [np.float32(2), np.int64(2), np.array(2.0), True, 2])
def test_numbers_of_all_types_are_accepted(value: Any) -> None:
    episode = EpisodeInfo({"x": "sum"})
    episode.add({"x": value})
    assert type(episode.logs()["x"]) is float


@pytest.mark.parametrize("value", ["3", None, np.ones(2), [1.0], {"a": 1}, 1j])
def test_value_that_is_not_a_number_raises(value: Any) -> None:
    with pytest.raises(ValueError, match=r"info: .*'x'"):
        EpisodeInfo({"x": "sum"}).add({"x": value})


def test_state_restores_the_values() -> None:
    episode = filled(dict(zip("abcd", EXPECTED, strict=True)) | {"x": "mean"})
    restored = EpisodeInfo.from_state(episode.get_state())
    for each in (episode, restored):
        each.add({"x": 10.0})
    assert restored.logs() == episode.logs() == {"x": (sum(VALUES) + 10) / 4}


def test_copy_with_other_reductions_keeps_equal_ones_only() -> None:
    episode = EpisodeInfo({"x": "mean", "y": "sum"})
    episode.add({"x": 1.0, "y": 2.0})
    copied = episode.copy({"x": "mean", "y": "max", "z": "last"})
    assert copied.logs() == {"x": 1.0}
    copied.add({"x": 3.0})
    assert (copied.logs()["x"], episode.logs()["x"]) == (2.0, 1.0)


def test_info_of_a_lane_follows_the_masks() -> None:
    info = {
        "x": np.array([1.0, 2.0]),
        "_x": np.array([True, False]),
        "y": np.array([3, 4]),  # without a mask, every environment has the value
        "final_info": {"x": np.array([0.0, 7.0]), "_x": np.array([False, True])},
        "_final_info": np.array([False, True]),
    }
    names = ("x", "y")
    assert info_of_lane(info, 0, names, 2, over=False) == {"x": 1.0, "y": 3}
    assert info_of_lane(info, 1, names, 2, over=False) == {"y": 4}
    assert info_of_lane(info, 1, names, 2, over=True) == {"x": 7.0}
    assert info_of_lane({}, 0, names, 2, over=True) == {}


@pytest.mark.parametrize("value", [7, None, "ab", {"a": np.zeros(2)}, np.float32(1), np.zeros(3)])
def test_info_of_a_lane_reads_only_the_names(value: Any) -> None:
    info = {"x": np.array([1.0, 2.0]), "other": value}
    assert info_of_lane(info, 1, ("x",), 2, over=False) == {"x": 2.0}
    with pytest.raises(ValueError, match=r"^env: info\['other'\] must"):
        info_of_lane(info, 1, ("x", "other"), 2, over=False)


@pytest.mark.parametrize("info", ["x", 3, {"x": "median"}, {"x": None}, {1: "sum"}, [""], {"reward": "sum"}])
def test_invalid_argument_raises(info: Any) -> None:
    with pytest.raises(ValueError, match=r"^info"):
        check_info(info, taken=("reward",))

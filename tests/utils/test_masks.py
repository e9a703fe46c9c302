"""Action masks: their layout, what is refused, and uniformly random legal choices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from noterl.utils.masks import legal_choice, mask_spec, read_mask, read_masks

pytestmark = pytest.mark.backend_free

FOUR, PARTS = spaces.Discrete(4), spaces.MultiDiscrete([2, 3])


@pytest.mark.parametrize("value", [[1, 0, 0, 1], np.array([1, 0, 0, 1], np.int8), (True, False, False, True)])
def test_mask_becomes_bools(value: Any) -> None:
    mask = read_mask(np.array(value), FOUR)
    assert mask.dtype == np.bool_ and mask.tolist() == [True, False, False, True]


def test_parts_of_a_mask_lie_side_by_side() -> None:
    parts = np.array([0, 1], np.int8), np.array([1, 0, 1], np.int8)
    assert read_mask(parts, PARTS).tolist() == read_mask(np.concatenate(parts), PARTS).tolist()
    assert mask_spec(PARTS) == {"action_mask": ((5,), np.bool_, True)} and mask_spec(spaces.MultiBinary(3)) == {}


@pytest.mark.parametrize(
    ("value", "space"),
    [
        (np.ones(3, np.bool_), FOUR),
        (np.ones((1, 4), np.bool_), FOUR),
        (np.ones(4), FOUR),
        (np.zeros(4, np.bool_), FOUR),
        (np.array([0, 0, 1, 1, 1]), PARTS),
    ],
)
def test_mask_that_does_not_fit_raises(value: Any, space: Any) -> None:
    with pytest.raises(ValueError, match="action_mask"):
        read_mask(value, space)


def test_terminal_mask_without_legal_actions_allows_all() -> None:
    assert read_mask(np.zeros(4, np.int8), FOUR, terminated=True).all()
    assert read_mask(np.array([0, 0, 1, 0, 0]), PARTS, terminated=True).tolist() == [True, True, True, False, False]


def test_masks_of_a_batch_are_checked_row_by_row() -> None:
    masks = np.array([[1, 0, 0, 1], [0, 1, 0, 0]], np.int8)
    assert read_masks(masks, FOUR, 2).tolist() == masks.astype(bool).tolist()
    for wrong in (masks[0], masks[:1], np.zeros((2, 4), np.int8)):
        with pytest.raises(ValueError, match="action_mask"):
            read_masks(wrong, FOUR, 2)
    with pytest.raises(ValueError, match="action_mask"):
        read_masks(masks, spaces.Box(-1.0, 1.0, (2,)), 2)


def test_legal_choices_are_uniform() -> None:
    mask = np.repeat([[True, False, True, True], [False, True, False, False]], 300, axis=0)
    uniform = np.tile((np.arange(300) + 0.5) / 300, 2)
    chosen = legal_choice(mask, uniform)
    assert np.bincount(chosen[:300], minlength=4).tolist() == [100, 0, 100, 100]
    assert (chosen[300:] == 1).all()

"""Policies select legal actions only, with the probabilities of the legal ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from noterl import policies
from noterl.policies import Policy
from tests.test_policies import ALL, STEP, build

pytestmark = pytest.mark.backend_free

MASK = np.array([True, False, True, True, False])
COUNT = 20_000


def values_for(policy: Policy) -> np.ndarray:
    values = np.array([0.1, 0.9, 0.4, -0.3, 0.2])
    weights = np.exp(values)
    return weights / weights.sum() if policy.acts_on == "probabilities" else values


@ALL
def test_masked_actions_are_those_of_a_problem_without_the_illegal_ones(cls: type[Policy]) -> None:
    """Frequencies over many rows are those of the same policy that sees the legal actions only."""
    masked, reduced = build(cls, seed=1), build(cls, seed=2)
    values = values_for(masked)
    legal = values[MASK] / values[MASK].sum() if masked.acts_on == "probabilities" else values[MASK]
    rows = np.tile(values, (COUNT, 1))
    actions = masked.select_action(rows, STEP, np.tile(MASK, (COUNT, 1)))
    expected = np.flatnonzero(MASK)[reduced.select_action(np.tile(legal, (COUNT, 1)), STEP)]
    found, wanted = (np.bincount(each, minlength=5) / COUNT for each in (actions, expected))
    assert found[~MASK].sum() == 0
    np.testing.assert_allclose(found, wanted, atol=0.02)


@ALL
def test_mask_that_allows_all_changes_nothing(cls: type[Policy]) -> None:
    policy, other = build(cls, seed=3), build(cls, seed=3)
    rows = np.tile(values_for(policy), (50, 1))
    everything = np.ones(rows.shape, np.bool_)
    assert policy.select_action(rows, STEP, everything).tolist() == other.select_action(rows, STEP).tolist()


@ALL
def test_rows_of_a_masked_batch_are_independent(cls: type[Policy]) -> None:
    rng = np.random.default_rng(4)
    together, alone = build(cls, seed=5), build(cls, seed=5)
    if cls is policies.BoltzmannGumbelQPolicy:
        together.C = alone.C = 0.0  # it counts actions between rows
    masks = rng.random((40, 5)) < 0.5
    masks[:, 2] = True
    rows = np.tile(values_for(together), (40, 1))
    expected = [alone.select_action(row, STEP, mask) for row, mask in zip(rows, masks, strict=True)]
    assert together.select_action(rows, STEP, masks).tolist() == expected


def test_own_policy_without_mask_works_if_it_compares_values() -> None:
    class Best(Policy):
        def choose(self, values: Any, step: int) -> Any:
            return values.argmax(axis=1)

    assert Best().select_action([1.0, 5.0, 2.0], 0, [True, False, True]) == 2


def test_own_policy_that_selects_an_illegal_action_raises() -> None:
    class First(Policy):
        def choose(self, values: Any, step: int) -> Any:
            return np.zeros(len(values), np.int64)

    with pytest.raises(ValueError, match="policy: First"):
        First().select_action([1.0, 5.0], 0, [False, True])


@pytest.mark.parametrize("mask", [[True], [False, False], [[True, True]] * 2])
def test_mask_of_another_shape_or_without_legal_actions_raises(mask: Any) -> None:
    with pytest.raises(ValueError, match="action_mask"):
        policies.GreedyQPolicy().select_action([1.0, 2.0], 0, mask)

"""Random numbers and statistics of several processes."""

from __future__ import annotations

import numpy as np
import pytest

from noterl.normalization import RunningMeanStd
from noterl.random import SHARED, Generators

pytestmark = pytest.mark.backends("torch")


def joined(rank: int, step: int = 0) -> Generators:
    generators = Generators(99 + rank)
    generators("environment/0"), generators(f"{SHARED}noise")
    chief = Generators(7)
    chief(f"{SHARED}noise").random(5)
    generators.join(chief.shared_state(), rank, step)
    return generators


def test_ranks_have_their_own_numbers_and_share_those_of_updates() -> None:
    own = {(rank, step): joined(rank, step)("environment/0").random() for rank in (1, 2) for step in (0, 100)}
    assert len(set(own.values())) == 4
    assert Generators(7)("environment/0").random() not in own.values()
    after = Generators(7)(f"{SHARED}noise").random(6)[5]
    assert joined(1)(f"{SHARED}noise").random() == joined(2)(f"{SHARED}noise").random() == after


def test_a_second_fit_continues_the_numbers_of_the_rank() -> None:
    generators = joined(1)
    first = generators("environment/0").random(3)
    twin = joined(1)
    twin("environment/0").random(2)
    twin.join(twin.shared_state(), 1, 500)
    assert twin("environment/0").random() == first[2]


def test_merged_statistics_are_those_of_all_values() -> None:
    rng = np.random.default_rng(0)
    before, parts = rng.normal(3.0, 2.0, (50, 4)), [rng.normal(rank, 1 + rank, (20 + rank, 4)) for rank in range(3)]
    base = RunningMeanStd((4,))
    base.update(before)
    moments = []
    for part in parts:
        own = RunningMeanStd((4,))
        own.set_state(base.get_state())
        own.update(part)
        moments.append(own.moments_since(base))
    nothing = RunningMeanStd((4,))
    nothing.set_state(base.get_state())
    for row in [*moments, nothing.moments_since(base)]:
        base.add_moments(row)
    everything = np.concatenate([before, *parts])
    assert base.count == len(everything)
    np.testing.assert_allclose(base.mean, everything.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(base.variance, everything.var(axis=0), rtol=1e-12)

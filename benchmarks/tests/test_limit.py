"""The bare programs of `benchmarks/limit.py` make the same updates as noterl; and the parts of the measurement."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks import limit

SMALL = {"hidden": (8, 8), "batch_size": 4, "updates": 4, "stored": 64}
TINY = {
    "dqn": replace(limit.CASES["dqn"], **SMALL),
    "ppo": replace(limit.CASES["ppo"], **{**SMALL, "batch_size": 32}),
    "sac": replace(limit.CASES["sac"], **SMALL),
    "td3": replace(limit.CASES["td3"], **SMALL),
    "dqn-images": replace(
        limit.CASES["dqn-images"], observation=(36, 36, 2), actions=3, batch_size=2, updates=2, stored=8
    ),
}


def as_rows(batch: Any) -> dict[str, np.ndarray]:
    names = ("observation", "action", "reward", "next_observation", "discount")
    rows = {name: np.array(getattr(batch, name)) for name in names}
    rows["action"] = rows["action"].astype(np.int64 if rows["action"].dtype.kind == "i" else np.float32)
    return {**rows, **{name: np.array(array) for name, array in batch.extra.items()}}


# TensorFlow and JAX have the same bare programs, apart from some functions that all of them call.
IN_PART = {name: [pytest.mark.backends("jax", "torch")] for name in ("ppo", "sac", "td3")}


@pytest.mark.parametrize("name", [pytest.param(name, marks=IN_PART.get(name, [])) for name in TINY])
def test_bare_program_makes_the_updates_of_noterl(name: str) -> None:
    from noterl.learning.update import add_random_numbers

    case = TINY[name]
    agent = limit.make_agent(case)
    learner: Any = agent._parts.build()[0]
    limit.fill(learner, case, limit.make_arrays(case))
    sample = learner.sample(case.updates)
    bare = limit.make_bare(case, agent, learner)
    before = limit.read_weights(case, agent)
    with learner.batches([sample], case.updates) as batches:
        batch = next(batches)
    if case.algorithm == "ppo":
        rows = {"indices": np.array(batch.indices)}
    else:
        batch = add_random_numbers(agent, batch, case.updates)
        rows = as_rows(batch)
    assert learner.update(batch, case.updates).applied == case.updates
    bare(rows)
    found, expected = bare.read(), limit.read_weights(case, agent)
    assert found.keys() == expected.keys()
    for group in expected:
        for start, one, other in zip(before[group], found[group], expected[group], strict=True):
            # Adam's first steps are of the size of the learning rate, 3e-4, so this bound is a hundredth of a step.
            # Adam divides a gradient by its size, which enlarges the rounding of gradients near zero. Such weights are
            # rare, and differ by less than a tenth of a step.
            different = ~np.isclose(one, other, rtol=1e-4, atol=3e-6)
            assert different.mean() < 1e-3, f"{different.sum()} of {different.size} weights of {group} differ"
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=3e-5, err_msg=group)
            assert group == "target_q" or np.abs(np.asarray(start) - other).max() > 1e-6


@pytest.mark.slow
@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ["td3", "ppo"])
def test_both_sides_and_products_are_measured(name: str) -> None:
    from benchmarks.bare.in_torch import product

    times, peak = limit.measure(limit.make_sides(TINY[name]), product(4), blocks=2, seconds=1e-6)
    assert np.shape(times) == (2, 2) and np.min(times) > 0 and peak > 0

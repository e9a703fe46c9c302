"""The table of docs/memory.md is what agents with a memory do."""

from __future__ import annotations

import os

import pytest

from tests.support.memory_table import AGENTS, FEATURES, Feature, page_table, table
from tests.support.representatives import representatives

CELLS = {f"{feature.text}, {agent}": (feature, agent) for feature in FEATURES for agent in AGENTS}
# On JAX, this agent trains on the device; a masked update is a program of its own on every backend.
COMPILED = ["masks, PPO", *["environments of JAX, PPO"] * (os.environ["KERAS_BACKEND"] == "jax")]


@pytest.mark.parametrize("cell", representatives(CELLS, *COMPILED))
def test_cell_is_what_the_agent_does(cell: str) -> None:
    feature, agent = CELLS[cell]
    if feature.text == "environments of JAX":
        pytest.importorskip("jax")
    feature.check(agent)


@pytest.mark.backends("torch")
def test_page_holds_the_table() -> None:
    assert page_table() == table(), "run python -m tests.support.memory_table --write"


@pytest.mark.backends("torch")
def test_wrong_cell_is_found() -> None:
    with pytest.raises(AssertionError, match="was not refused"):
        Feature("nothing", lambda kind: None, refused={"PPO": "a reason"}).check("PPO")

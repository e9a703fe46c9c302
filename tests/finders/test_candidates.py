"""Names of candidates."""

from __future__ import annotations

from typing import Any

import pytest

from noterl.finders.candidates import named

pytestmark = pytest.mark.backends("torch")


@pytest.mark.parametrize(
    ("candidates", "names"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "a"], ["a 1", "a 2"]),
        (["a 1", "a", "a"], ["a 1", "a 2", "a 3"]),
        (["a", "a 2", "a"], ["a 1", "a 2", "a 3"]),
        ({1: "x", "1": "y"}, ["1 1", "1 2"]),
    ],
)
def test_every_candidate_has_its_own_name(candidates: Any, names: list[str]) -> None:
    found = named(candidates)
    assert list(found) == names
    values = candidates.values() if isinstance(candidates, dict) else candidates
    assert list(found.values()) == list(values)

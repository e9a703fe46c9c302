"""`make check` stays short: the tests that it runs on torch are listed with what they take, and do not become more."""

from __future__ import annotations

from collections import Counter

import pytest

from conftest import FAST, ROOT

pytestmark = pytest.mark.backends("torch")


def test_listed_modules_take_at_most_40_seconds() -> None:
    assert sum(module["seconds"] for module in FAST.values()) <= 40
    assert not [path for path in FAST if not (ROOT / path).is_file()]


def test_modules_have_no_more_tests_than_are_listed(request: pytest.FixtureRequest) -> None:
    """Tests of a slow machine take longer, but are not more: count them instead of seconds."""
    chosen = [item for item in request.session.items if item.get_closest_marker("fast")]
    counts = Counter(item.path.relative_to(ROOT).as_posix() for item in chosen)
    grown = {path: count for path, count in counts.items() if count > FAST[path]["tests"]}
    assert not grown, "measure with `pytest MODULE --durations=0 --durations-min=0`, and change tests/fast.toml"


def test_no_fast_test_is_slow(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    assert not [item.nodeid for item in items if item.get_closest_marker("fast") and item.get_closest_marker("slow")]

"""Comparison of stored results."""

from __future__ import annotations

from typing import Any

import pytest


def assert_equal_json(ours: Any, stored: Any) -> None:
    """Compare JSON values with a relative tolerance for floats, whose last digits depend on the machine."""
    if isinstance(ours, dict):
        assert list(ours) == list(stored)
        ours, stored = list(ours.values()), list(stored.values())
    if isinstance(ours, list | tuple):
        for one, other in zip(ours, stored, strict=True):
            assert_equal_json(one, other)
    else:
        assert ours == (pytest.approx(stored) if isinstance(stored, float) else stored)

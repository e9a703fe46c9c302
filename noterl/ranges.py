"""The ranges that single numbers may lie in: each function returns the value to keep, or raises a ValueError."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

Check = Callable[[str, Any], Any]


def _number(name: str, value: Any, fits: Callable[[float], bool], wanted: str) -> float:
    if isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value) and fits(float(value)):
        return float(value)
    raise ValueError(f"{name} must be {wanted}, got {value!r}")


def finite(name: str, value: Any) -> float:
    """Return `value` as a float, or raise a ValueError that names it: it must be finite."""
    return _number(name, value, lambda number: True, "a finite number")


def non_negative(name: str, value: Any) -> float:
    """Return `value` as a float, or raise a ValueError that names it: it must be finite and at least 0."""
    return _number(name, value, lambda number: number >= 0, "a finite number of at least 0")


def positive(name: str, value: Any) -> float:
    """Return `value` as a float, or raise a ValueError that names it: it must be finite and above 0."""
    return _number(name, value, lambda number: number > 0, "a finite number above 0")


def probability(name: str, value: Any) -> float:
    """Return `value` as a float, or raise a ValueError that names it: it must be between 0 and 1."""
    return _number(name, value, lambda number: 0 <= number <= 1, "a number between 0 and 1")


def increasing_pair(name: str, value: Any) -> tuple[float, float]:
    """Return `value` as `(low, high)`, or raise a ValueError that names it: finite numbers, low below high."""
    wanted = f"{name} must be a pair (low, high) of finite numbers with low < high, got {value!r}"
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ValueError(wanted)
    low, high = (_number(name, bound, lambda number: True, "a pair of finite numbers") for bound in value)
    if low >= high:
        raise ValueError(wanted)
    return low, high

"""Checks of arguments: accepted values, returned types, and error messages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from noterl.utils.checks import check_int, check_int_or_word, check_number, check_positive, check_word

pytestmark = pytest.mark.backend_free

NOT_INTS = [True, np.True_, 2.0, np.float64(2), "2", None, [2]]


@pytest.mark.parametrize("value", [1, 7, np.int64(3), np.uint8(5), np.int32(2**31 - 1)])
def test_numpy_ints_are_accepted_and_returned_as_python_ints(value: Any) -> None:
    for checked in (check_positive("count", value), check_int("count", value, least=0)):
        assert checked == value
        assert type(checked) is int


@pytest.mark.parametrize("value", [*NOT_INTS, 0, -1, np.int64(0)], ids=repr)
def test_check_positive_error_names_argument_and_value(value: Any) -> None:
    with pytest.raises(ValueError) as raised:
        check_positive("count", value)
    assert str(raised.value) == f"count must be a positive int, got {value!r}"


def test_none_is_returned_if_it_is_allowed() -> None:
    assert check_positive("count", None, none=True) is None
    with pytest.raises(ValueError, match=r"^count must be a positive int, got 0$"):
        check_positive("count", 0, none=True)


@pytest.mark.parametrize("value", [*NOT_INTS, 1, np.int8(-2)], ids=repr)
def test_check_int_error_names_bound_and_word(value: Any) -> None:
    with pytest.raises(ValueError) as raised:
        check_int("every", value, least=2, word="episode")
    assert str(raised.value) == f"every must be an int of at least 2 or 'episode', got {value!r}"


def test_all_types_of_numbers_are_returned_as_floats() -> None:
    for value in (2, 2.0, np.float32(2), np.int64(2)):
        checked = check_number("rate", value, low=0, high=2)
        assert checked == 2.0
        assert type(checked) is float


@pytest.mark.parametrize(
    ("value", "bounds", "words"),
    [
        (math.nan, {}, ""),
        (math.inf, {}, ""),
        (True, {}, ""),
        ("1", {}, ""),
        (-0.5, {"low": 0}, " of at least 0"),
        (0, {"low": 0, "above": True}, " above 0"),
        (1.5, {"low": 0, "high": 1}, " of at least 0 and at most 1"),
        (1.5, {"high": 1}, " of at most 1"),
        (0.0, {"low": 0, "high": 1, "above": True}, " above 0 and at most 1"),
    ],
)
def test_check_number_error_names_bounds_and_value(value: Any, bounds: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as raised:
        check_number("rate", value, **bounds)
    assert str(raised.value) == f"rate must be a finite number{words}, got {value!r}"


def test_check_word_error_lists_the_allowed_words() -> None:
    assert check_word("unit", "steps", ("episodes", "steps", "seconds")) == "steps"
    for other in ("days", np.array([1, 2]), np.array(["steps", "days"]), 3, None):
        with pytest.raises(ValueError) as raised:
            check_word("unit", other, ("episodes", "steps", "seconds"))
        assert str(raised.value) == f"unit must be 'episodes', 'steps' or 'seconds', got {other!r}"


def test_check_int_or_word_accepts_both() -> None:
    assert check_int_or_word("updates", "pass", "pass") == "pass"
    assert check_int_or_word("updates", np.int64(3), "pass") == 3
    for other in ("episode", 0, None, np.array([1, 2])):
        with pytest.raises(ValueError) as raised:
            check_int_or_word("updates", other, "pass")
        assert str(raised.value) == f"updates must be a positive int or 'pass', got {other!r}"

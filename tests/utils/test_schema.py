"""Schemas: each kind accepts what it describes, and an error names the place, the expected and the actual value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from noterl.utils.schema import Array, Constant, DictOf, Float, Int, ListOf, check

pytestmark = pytest.mark.backend_free

FITTING: list[tuple[Any, Any]] = [
    (3, int),
    (None, None),
    ("a", str),
    (math.nan, float),
    (0, Int(0)),
    (2**100, Int(0)),
    (10**400, Int(0)),
    (0.5, Float(0, 1)),
    ("DQN", Constant("DQN")),
    (np.zeros(3), Array()),
    (np.zeros((3, 2), np.int32), Array("int32", (None, 2))),
    (np.float32(1), Array(np.float32, ())),
    ([1, 2], [int, int]),
    ([1, 2], ListOf(Int(0, 2))),
    ([], ListOf(int)),
    ({"a": 1, "b": 2}, DictOf(int)),
    ({"a": [None, 1]}, {"a": ListOf((None, int))}),
    ({"a": {"b": []}}, {"a": (None, {"b": []})}),
]


@pytest.mark.parametrize(("value", "schema"), FITTING)
def test_value_that_fits_is_accepted(value: Any, schema: Any) -> None:
    check(value, schema)


MISFITS: list[tuple[Any, Any, str]] = [
    (True, int, r"^state must be int, got True$"),
    (3, float, "state must be float, got 3"),
    (0, None, "state must be None, got 0"),
    (True, Int(), "state must be an int, got True"),
    (-1, Int(0), "state must be an int of at least 0, got -1"),
    (3, Int(high=2), "state must be an int of at most 2, got 3"),
    (math.nan, Float(0, 1), "state must be a finite float of at least 0 and at most 1, got nan"),
    (1, Constant(True), "state must be True, got 1"),
    ([0.0], Array(), "state must be an array, got a list of 1 items"),
    (np.zeros(3), Array(np.float32), r"state must be an array float32, got float64\[3\]"),
    (np.zeros(3), Array(shape=(None, 2)), r"state must be an array \[any, 2\], got float64\[3\]"),
    (np.zeros((3, 1)), Array("float64", (3, 2)), r"must be an array float64\[3, 2\], got float64\[3, 1\]"),
    ((1,), [int], r"state must be a list of 1 items, got \(1,\)"),
    ([1, 2], [int], "state must be a list of 1 items, got a list of 2 items"),
    ({}, ListOf(int), "state must be a list, got a dict"),
    ([1, "a"], ListOf(int), r"state\[1\] must be int, got 'a'"),
    ({1: 1}, DictOf(int), "state must be a dict with str keys"),
    (
        {"a": 1},
        {"a": int, "b": int},
        r"keys \['a', 'b'\], got a dict with the keys \['a'\]",
    ),
    ({"a": 1, "c": 1}, {"a": int}, r"must be a dict with the keys \['a'\]"),
    ({"a": {"b": [0, 0.5]}}, {"a": {"b": ListOf(int)}}, r"state\['a'\]\['b'\]\[1\] must be int, got 0.5"),
    ({"a": 1}, {"a": (None, float)}, r"state\['a'\] must be None or float, got 1"),
    ({"a": {"b": 1}}, {"a": (None, {"b": float})}, r"state\['a'\]\['b'\] must be float, got 1"),
]


@pytest.mark.parametrize(("value", "schema", "message"), MISFITS)
def test_value_that_does_not_fit_is_named(value: Any, schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(value, schema)


def test_error_begins_with_the_name_argument() -> None:
    with pytest.raises(ValueError, match=r"^the rollout\['round'\] must be int"):
        check({"round": None}, {"round": int}, "the rollout")


@pytest.mark.parametrize("junk", [None, -1, "junk", [], {}, [1, {}], np.zeros((3, 3)), True, {1: 2}, (1,), object()])
def test_junk_raises_nothing_but_value_errors(junk: Any) -> None:
    for _, schema in FITTING:
        try:
            check(junk, schema)
        except ValueError as error:
            assert str(error).startswith("state")

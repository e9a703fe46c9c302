"""Cells of tables."""

from __future__ import annotations

import decimal
import fractions

import numpy as np
import pytest

from noterl.utils.tables import plain_row

pytestmark = pytest.mark.backend_free


def test_objects_are_left_out() -> None:
    values = {"object": object(), "class": int, "decimal": decimal.Decimal(1), "fraction": fractions.Fraction(1, 2)}
    assert plain_row({**values, "complex": np.complex64(1), "text": np.array("x"), "reward": 1.0}) == {"reward": 1.0}


def test_scalars_become_numbers() -> None:
    row = plain_row({"a": np.float32(0.5), "b": np.array(3), "c": np.bool_(True), "d": None, "e": "x", "f": [1]})
    assert row == {"a": 0.5, "b": 3, "c": True, "d": None, "e": "x"}
    assert [type(value) for value in row.values()] == [float, int, bool, type(None), str]

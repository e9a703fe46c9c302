"""What is asked instead of a whole state whether it is finite, inside a compiled call on TensorFlow and JAX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras

# Elements from which on a matrix is asked with the others of its shape.
LARGE = 4_096


def witnesses(values: Sequence[Any]) -> list[Any]:
    """Return arrays that are finite where all floating values are, and fewer numbers than those.

    XLA reduces an array to one boolean an element at a time. So zero times each large array, which is zero or NaN, is
    summed with the others of its shape and then over the rows, in whole vectors; that takes a quarter of the time.
    """
    small: list[Any] = []
    large: dict[tuple, list[Any]] = {}
    for value in values:
        shape = tuple(value.shape)
        if not keras.backend.is_float_dtype(value.dtype):
            continue
        if len(shape) < 2 or math.prod(shape) < LARGE:
            small.append(value)
        else:
            large.setdefault((shape, str(value.dtype)), []).append(value)
    zeros = [sum((value * 0 for value in group[1:]), group[0] * 0) for group in large.values()]
    return small + [keras.ops.sum(keras.ops.reshape(zero, (-1, zero.shape[-1])), axis=0) for zero in zeros]

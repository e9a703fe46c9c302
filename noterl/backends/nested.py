"""Splitting the columns of rows into a nested dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def split_columns(rows: Any, places: Mapping[str, Any], reshape: Callable[[Any, tuple[int, ...]], Any]) -> Any:
    """Return a dict of the parts of rows `[B, D]`, nested as `places`.

    Args:
        rows: an array or tensor.
        places: for each part, its first column, its end column and the shape of its rows; or a dict of parts.
        reshape: a function of a tensor and its new shape.
    """
    parts = {}
    for name, place in places.items():
        if isinstance(place, Mapping):
            parts[name] = split_columns(rows, place, reshape)
        else:
            start, stop, shape = place
            parts[name] = reshape(rows[:, start:stop], (-1, *shape))
    return parts

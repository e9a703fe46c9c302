"""Splitting the columns of rows into a nested dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def split_columns(rows: Any, places: Mapping[str, Any], reshape: Callable[[Any, tuple[int, ...]], Any]) -> Any:
    """Return a dict of the parts of rows `[B, D]`, nested as `places`.

    Args:
        rows: an array or tensor.
        places: for each part, the first column, the end column and the shape of a row; or a dict of parts.
        reshape: a function of a tensor and the new shape.
    """
    columns = {}
    for name, place in places.items():
        if isinstance(place, Mapping):
            columns[name] = split_columns(rows, place, reshape)
        else:
            start, stop, shape = place
            columns[name] = reshape(rows[:, start:stop], (-1, *shape))
    return columns

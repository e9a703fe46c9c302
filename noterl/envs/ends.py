"""The check of `terminated` and `truncated`, of which environments may return anything."""

from __future__ import annotations

from typing import Any

import numpy as np


class InvalidStepError(ValueError):
    """An environment returned an invalid observation or reward; the message names the lane and the step."""


def check_end(name: str, values: Any) -> None:
    """Raise an `InvalidStepError` if `terminated` or `truncated` is None or a str, or an array that holds one.

    Their truth says nothing: that of "False" is true.
    """
    ends = np.asarray(values)
    for value in ends.astype(object).flat if ends.dtype.kind in "USO" else ():
        if value is None or isinstance(value, str | bytes):
            raise InvalidStepError(f"{name} must be a bool, got {value!r:.40}")

"""The check of `terminated` and `truncated`, of which environments may return anything, and of missing ends."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

# The number of steps of one episode after which a warning names `max_steps`.
LONG_EPISODE = 100_000


class InvalidStepError(ValueError):
    """An environment returned an invalid observation or reward; the message names the lane and the step."""


def check_end(name: str, values: Any, count: int | None = None) -> None:
    """Raise an `InvalidStepError` unless ends of episodes are `count` bools or numbers; None for any count.

    The truth of other values says nothing: NaN and "False" are true.
    """
    ends = np.asarray(values)
    if count is not None and ends.size != count:
        raise InvalidStepError(f"{name} must be {'a bool' if count == 1 else f'{count} bools'}, got {values!r:.40}")
    # Bools, ints and unsigned ints need no look at each value.
    for value in ends.astype(object).flat if ends.dtype.kind not in "biu" else ():
        is_number = isinstance(value, bool | int | float | np.generic) and not isinstance(value, str | bytes)
        # `value != value` is true for NaN only.
        if not is_number or value != value:
            raise InvalidStepError(f"{name} must be a bool, got {value!r:.40}")


def warn_if_long(length: int) -> None:
    """Warn if an episode has this number of steps, because the episode may never end."""
    if length == LONG_EPISODE:
        warnings.warn(
            f"an episode has not ended after {LONG_EPISODE:,} steps outside of training; if it may never end, pass "
            "max_steps= (to record, steps=) or wrap the environment in gymnasium.wrappers.TimeLimit",
            RuntimeWarning,
            stacklevel=3,
        )

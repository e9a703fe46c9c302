"""`ActionLog`: the actions since the last reset, with which an episode can be repeated."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from gymnasium import spaces

# Limit of one log in bytes. A bytearray may allocate up to an eighth more, so it never exceeds 64 MiB.
MAX_BYTES = 2**26 * 8 // 9


class ActionLog:
    """The actions since the last reset of one environment, or of a vector environment, as bytes of bounded size.

    Args:
        space: of the actions.
        lanes: the number of environments that step together; None for one environment.

    Attributes:
        shape: of all actions, with -1 for the number of actions: `(-1, *space.shape)` or `(-1, lanes, *space.shape)`.
        dtype: of the actions: the dtype of the space or, for a Discrete space, the smallest that holds all actions.
    """

    def __init__(self, space: spaces.Space[Any], lanes: int | None = None) -> None:
        self.shape: tuple[int, ...] = (-1, *(() if lanes is None else (lanes,)), *(space.shape or ()))
        self.dtype: np.dtype[Any] = (
            np.min_scalar_type(space.n - 1) if isinstance(space, spaces.Discrete) else np.dtype(space.dtype)
        )
        self._bytes: bytearray | None = bytearray()

    def restart(self, actions: np.ndarray | None = None) -> None:
        """Remove all actions, or replace the actions by saved ones."""
        self._bytes = bytearray(b"" if actions is None else actions.astype(self.dtype).tobytes())

    def stop(self) -> None:
        """Remove all actions and record no more until the next `restart`."""
        self._bytes = None

    def append(self, action: Any) -> bool:
        """Record an action, or one of each lane; if this exceeds the limit, call `stop` and return False."""
        if self._bytes is None:
            return True
        if type(action) is int:  # 0.3 µs, a fifth of the time of a NumPy scalar
            self._bytes += action.to_bytes(self.dtype.itemsize, sys.byteorder)
        else:
            self._bytes += action.astype(self.dtype, copy=False).tobytes()
        if len(self._bytes) <= MAX_BYTES:
            return True
        self.stop()
        return False

    def actions(self) -> np.ndarray | None:
        """Return all actions; None after `stop`."""
        return None if self._bytes is None else np.array(self._bytes, np.uint8).view(self.dtype).reshape(self.shape)

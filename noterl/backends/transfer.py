"""What the host reads after every compiled call, as one vector.

Owns: its layout. Each array that crosses has its price, which for small networks adds up to a good part of an update:
whether all was finite, what the updates logged and the weights for acting cross together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Brief:
    """The vector's layout, known once the update has been traced.

    Args:
        concatenate: the backend's, of one-dimensional arrays.
    """

    def __init__(self, concatenate: Callable[[list[Any]], Any]) -> None:
        self._concatenate = concatenate
        self._names: list[str] = []
        self._weights = 0

    def write(self, finite: Any, logs: dict[str, Any], weights: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
        """Return the vector, and the logs that are no part of it.

        Args:
            finite: 1 if all is finite, float32 `[1]`.
            logs: `[K, ...]` by name; those of float32 `[K]` go along.
            weights: of the networks that act, flat and float32.
        """
        self._names = [name for name, value in logs.items() if len(value.shape) == 1 and "float32" in str(value.dtype)]
        self._weights = sum(value.shape[0] for value in weights)
        vector = self._concatenate([finite, *(logs[name] for name in self._names), *weights])
        return vector, {name: value for name, value in logs.items() if name not in self._names}

    def read(self, vector: np.ndarray, logs: dict[str, Any]) -> tuple[bool, dict[str, Any], np.ndarray | None]:
        """Return whether all is finite, all logs, and the weights if there are any.

        Args:
            vector: as `write` made it, on the host.
            logs: those that it left out.
        """
        stop = len(vector) - self._weights
        # A copy, so that whoever keeps a loss does not keep the weights with it.
        parts = np.split(vector[1:stop].copy(), len(self._names)) if self._names else []
        values = dict(zip(self._names, parts, strict=True))
        return bool(vector[0]), {**values, **logs}, vector[stop:] if self._weights else None

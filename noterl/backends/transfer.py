"""Transfers between host and device: small arrays cross together, because each transfer has a fixed cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from noterl.types import Batch

# Arrays with more bytes are transferred alone: copying them into the packed array costs more than a transfer.
_LARGEST_PACKED = 2**16

# (path in the batch, shape, dtype, position among the packed arrays, first word there or None for the whole array)
Place = tuple[tuple[str, ...], tuple[int, ...], str, int, int | None]


class HostReport:
    """The vector that the host reads after a compiled call: a finite flag, the logs, and the weights for acting.

    The layout is known once the updates have been traced.

    Args:
        concatenate: the backend's concatenation of one-dimensional arrays.
    """

    def __init__(self, concatenate: Callable[[list[Any]], Any]) -> None:
        self._concatenate = concatenate
        self._names: list[str] = []
        self._num_weights = 0

    def write(self, finite: Any, logs: dict[str, Any], weights: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
        """Set the layout, and return the vector and the logs that are not part of the vector; called during tracing.

        Args:
            finite: 1 if everything is finite, float32 `[1]`.
            logs: `[K, ...]` by name; the vector contains logs of shape `[K]` and float32.
            weights: the weights to report, flat and float32.
        """
        self._names = [name for name, value in logs.items() if len(value.shape) == 1 and "float32" in str(value.dtype)]
        self._num_weights = sum(value.shape[0] for value in weights)
        vector = self._concatenate([finite, *(logs[name] for name in self._names), *weights])
        return vector, {name: value for name, value in logs.items() if name not in self._names}

    def read(self, vector: np.ndarray, logs: dict[str, Any]) -> tuple[bool, dict[str, Any], np.ndarray | None]:
        """Return whether everything is finite, all logs, and the weights if there are any.

        Args:
            vector: the vector that `write` returned, on the host.
            logs: the logs that are not part of the vector.
        """
        end = len(vector) - self._num_weights
        # Copied, so that a stored loss does not keep the weights in memory.
        log_values = np.split(vector[1:end].copy(), len(self._names)) if self._names else []
        values = dict(zip(self._names, log_values, strict=True))
        return bool(vector[0]), {**values, **logs}, vector[end:] if self._num_weights else None


def pack(batch: Batch) -> tuple[list[np.ndarray], tuple[Place, ...]]:
    """Concatenate the small arrays of a batch as 32-bit words.

    Returns:
        the arrays, the words last; and the place of each field, hashable and equal for batches of equal shapes.
    """
    arrays: list[np.ndarray] = []
    words: list[np.ndarray] = []
    places: list[Place] = []
    length = 0
    for path, array in _leaves(batch._asdict()):
        if array.dtype == np.int64 and path == ("index",):
            array = array.astype(np.int32)  # indices of a memory, which has fewer than 2^31 rows
        if array.itemsize == 4 and array.nbytes <= _LARGEST_PACKED:
            places.append((path, array.shape, array.dtype.str, -1, length))
            words.append(array.reshape(-1).view(np.int32))
            length += array.size
        else:
            places.append((path, array.shape, array.dtype.str, len(arrays), None))
            arrays.append(array)
    return [*arrays, np.concatenate(words)] if words else arrays, tuple(places)


def unpack(
    packed: Sequence[Any], places: Sequence[Place], cast: Callable[[Any, np.dtype, tuple[int, ...]], Any]
) -> Batch:
    """Return the batch of a packed one, as tensors of a backend.

    Args:
        packed: the arrays of `pack`, as tensors.
        places: from `pack`.
        cast: reinterprets words as a dtype, bit for bit, and reshapes the result.
    """
    # A batch without extra fields has no leaves under this name, and so no place.
    fields: dict[str, Any] = {"extra": {}}
    for path, shape, dtype, position, first in places:
        tensor = packed[position]
        if first is not None:
            tensor = cast(tensor[first : first + math.prod(shape)], np.dtype(dtype), shape)
        holder = fields
        for name in path[:-1]:
            holder = holder.setdefault(name, {})
        holder[path[-1]] = tensor
    return Batch(**fields)


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    """Yield the path and the array of each leaf of nested dicts."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _leaves(part, (*path, name))
    else:
        yield path, value

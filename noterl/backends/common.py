"""What the three backends share: the result of a group of updates, and the guard of a compiled call.

Owns: nothing of a framework.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from noterl.types import Batch


class NonFiniteError(FloatingPointError):
    """A loss or gradient is not finite; the agent holds the last finite state."""

    def __init__(self, loss: float, *, update: int | None = None, step: int | None = None) -> None:
        where = "" if update is None else f" at update {update} (environment step {step})"
        super().__init__(
            f"the loss ({loss}) or a gradient of it is not finite{where}; the agent holds the last finite state"
        )
        self.loss, self.update, self.step = loss, update, step


class GroupResult(NamedTuple):
    """What K gradient updates gave; arrays stay on the device until somebody reads them.

    `logs` are `[K]` and `feedback` `[K, B]` by name. `finite` is the number of updates that were applied: smaller than
    asked for when a loss or gradient was not finite, and the state is then that before the offending update; or when
    the agent had `enough` of a rollout, and `ended` is then true.
    """

    logs: dict[str, Any]
    feedback: dict[str, Any]
    finite: int
    ended: bool = False
    weights: Any = None


def split_loss(result: Any) -> tuple[Any, Any]:
    """Return `(loss, aux)` of what a loss function returned: a scalar, or a pair of a scalar and anything.

    Raises:
        ValueError: if it is something else.
    """
    pair = result if isinstance(result, tuple) else (result, {})
    if len(pair) != 2:
        raise ValueError(f"a loss function returns a scalar or (scalar, feedback), got a tuple of {len(pair)}")
    shape = getattr(pair[0], "shape", None)
    if shape is None or len(shape):
        raise ValueError(f"a loss is a scalar tensor, got {pair[0]!r}: take the mean over the batch")
    return pair


def bucket(count: int) -> int:
    """Return the smallest power of two that holds `count`: group sizes that vary compile in few shapes."""
    return 1 << (count - 1).bit_length()


def settle(apply: Callable[[int], bool], located: int, count: int) -> int:
    """Apply as many of `count` updates as leave a finite state, once it is known that not all of them do.

    Args:
        apply: makes so many updates, or returns False and changes nothing.
        located: how many come before the first whose loss or gradient is not finite; all, if only the state overflows.
        count: how many were asked for.

    Returns:
        how many were applied, fewer than `count`.
    """
    applied = min(located, count - 1)
    while applied and not apply(applied):
        applied -= 1
    return applied


# Arrays above this many bytes travel alone: copying them together costs more than a transfer of their own.
_LARGEST_PACKED = 2**16

# (path in the batch, shape, type, position among the packed arrays, first word there or None for the whole array)
Place = tuple[tuple[str, ...], tuple[int, ...], str, int, int | None]


def pack(batch: Batch) -> tuple[list[np.ndarray], tuple[Place, ...]]:
    """Put the small arrays together as words of 32 bits, for backends where every transfer has its price.

    Returns:
        the arrays, the words last, and where each field lies: hashable, and equal for batches of equal shapes.
    """
    arrays: list[np.ndarray] = []
    words: list[np.ndarray] = []
    places: list[Place] = []
    length = 0
    for path, array in _leaves(batch):
        if array.dtype == np.int64 and path == ("index",):
            array = array.astype(np.int32)  # rows of a memory: fewer than 2^31
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
    """Take apart what `pack` put together, as tensors of a backend.

    Args:
        packed: tensors.
        places: as `pack` returned them.
        cast: gives words a type, bit for bit, and a shape.
    """
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


def _leaves(batch: Batch) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    def walk(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
        if isinstance(value, dict):
            for name, part in value.items():
                yield from walk((*path, name), part)
        else:
            yield path, value

    for name, value in zip(Batch._fields, batch, strict=True):
        yield from walk((name,), value)


def must_loop(variables: Sequence[Any]) -> bool:
    """Whether even a single update must run inside a loop.

    A loop of one costs as much as a small update, but XLA computes convolutions otherwise outside of loops, and how a
    group is split into calls must not change a bit. Dense layers come out the same.
    """
    return any(len(variable.shape) > 2 for variable in variables)


class InterruptGuard:
    """Defers Ctrl-C while the loop runs, so that no step, write or compiled call is torn.

    The first SIGINT is noted and raised by `check`, where the loop is whole; a second one is raised at once, for an
    environment that hangs. Outside the main thread signals cannot be handled and nothing is deferred.
    """

    def __init__(self) -> None:
        self.pending = False
        self._critical = False

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was deferred, if there is one."""
        if self.pending:
            self.pending = False
            raise KeyboardInterrupt

    @contextmanager
    def critical(self) -> Iterator[None]:
        """Hold back even the second Ctrl-C: between a compiled call and its write-back the old state is gone."""
        self._critical = True
        try:
            yield
        finally:
            self._critical = False

    @contextmanager
    def installed(self) -> Iterator[InterruptGuard]:
        """Handle SIGINT for the duration."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        previous = signal.signal(signal.SIGINT, self._handle)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, previous if previous is not None else signal.default_int_handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.pending and not self._critical:
            self.pending = False
            raise KeyboardInterrupt
        self.pending = True

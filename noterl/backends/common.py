"""What the three backends share: the result of a group of updates, and the guard of a compiled call.

Owns: nothing of a framework.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple


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
    asked for when a loss or gradient was not finite, and the state is then that before the offending update.
    """

    logs: dict[str, Any]
    feedback: dict[str, Any]
    finite: int


def split_loss(result: Any) -> tuple[Any, Any]:
    """Return `(loss, aux)` of what a loss function returned: a scalar, or a pair of a scalar and anything."""
    if isinstance(result, tuple):
        if len(result) != 2:
            raise ValueError(f"a loss function returns a scalar or (scalar, feedback), got a tuple of {len(result)}")
        return result
    return result, {}


def bucket(count: int) -> int:
    """Return the smallest power of two that holds `count`: group sizes that vary compile in few shapes."""
    return 1 << (count - 1).bit_length()


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

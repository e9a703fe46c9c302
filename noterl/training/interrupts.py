"""Ctrl-C during training: deferred to a point where the agent is consistent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class InterruptGuard:
    """Defers Ctrl-C, so that it never interrupts a step, a write or a compiled call.

    The first SIGINT is stored, and `check` raises it. A second one is raised immediately, in case an environment hangs.
    Outside the main thread signals cannot be handled, and nothing is deferred.
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
        """Defer even a second Ctrl-C: between a compiled call and its write-back the variables are inconsistent."""
        self._critical = True
        try:
            yield
        finally:
            self._critical = False

    @contextmanager
    def installed(self) -> Iterator[InterruptGuard]:
        """Handle SIGINT inside the context."""
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
